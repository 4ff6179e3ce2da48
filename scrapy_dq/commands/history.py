"""`scrapy dq history`: how fast a crawl was, and what it had to do, over the last hours or days."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.inspection.history import Pace, Sample

BLOCKS = "▁▂▃▄▅▆▇█"
WIDEST = 60
"""Columns of a curve."""
COLUMNS = ("when", "pages/s", "done", "failed", "waiting", "in flight", "workers", "memory")


class History(Subcommand):
    """Shows the samples of a crawl as curves, and the newest as a table."""

    name = "history"
    arguments = "[<spider>]"
    summary = "rate, backlog, failures and memory over time"
    description = (
        "Shows how a spider's crawl went: curves of the last three hours, from samples that its workers take "
        "each 10 s, and the newest samples as a table; with --minutes, curves of the last two days, a sample "
        "each minute. --json has all samples, with more counts."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument("--minutes", action="store_true", help="two days, a sample each minute")
        looking.add_count(parser, 10)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json
        from scrapy_dq.inspection.history import paces, read_samples

        with looking.place_of(settings, options) as place:
            place.overview()
            samples = read_samples(place.shards, place.crawl, minutes=options.minutes)
            looking.say_unanswered(place)
        found = list(zip(samples, paces(samples), strict=True))
        if options.json:
            samples_of = [asdict(sample) | asdict(pace) for sample, pace in found]
            print_json(looking.found_in(place, samples=samples_of))
        elif not found:
            print("There is no sample yet: workers take one each 10 s.")
        else:
            _print(found, options.count)
        return DONE


def _print(found: Sequence[tuple[Sample, Pace]], count: int) -> None:
    from scrapy_dq.commands.output.display import print_table, width
    from scrapy_dq.inspection.words import span
    from scrapy_dq.text import count_of

    print(f"{count_of(len(found), 'sample')} of {span(found[-1][0].at - found[0][0].at)}.")
    curves = ((name, [of(*each) for each in found]) for name, of in _CURVES.items())
    for name, values in curves if _prints(BLOCKS) else ():
        line = curve(values, min(WIDEST, max(1, width() - 45)))
        if line:
            print(f"{name:<9} {line} {_extent(name, values)}")
    rows = [_row(*each) for each in found[-count:]]
    print_table(COLUMNS, rows, numbers=COLUMNS[1:], wraps=("when",))


_CURVES: dict[str, Callable[[Sample, Pace], float | None]] = {
    "pages/s": lambda sample, pace: pace.pages_per_s,
    "waiting": lambda sample, pace: sample.waiting + sample.delayed,
    "failed/s": lambda sample, pace: pace.failed_per_s,
    "memory": lambda sample, pace: sample.memory_bytes or None,
}


def curve(values: Sequence[float | None], columns: int) -> str:
    """Return *values* as a line of at most *columns* blocks from 0 to the largest; unknown ones are blank.

    A block is the mean of its values. Empty: none is known.
    """
    columns = min(columns, len(values))
    means = []
    for i in range(columns):
        part = values[i * len(values) // columns : (i + 1) * len(values) // columns]
        known = [value for value in part if value is not None]
        means.append(sum(known) / len(known) if known else None)
    largest = max((mean for mean in means if mean is not None), default=None)
    if largest is None:
        return ""
    steps = (len(BLOCKS) - 1) / largest if largest else 0.0
    return "".join(" " if mean is None else BLOCKS[round(mean * steps)] for mean in means)


def _extent(name: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    last, most = known[-1], max(known)
    if name == "memory":
        from scrapy_dq.backend.health import format_bytes

        return f"{format_bytes(int(last))}, at most {format_bytes(int(most))}"
    form = ",.1f" if name.endswith("/s") else ",.0f"
    return f"{last:{form}}, at most {most:{form}}"


def _row(sample: Sample, pace: Pace) -> list[object]:
    from scrapy_dq.backend.health import format_bytes

    rate = "" if pace.pages_per_s is None else f"{pace.pages_per_s:,.1f}"
    memory = format_bytes(sample.memory_bytes) if sample.memory_bytes else ""
    when = datetime.fromtimestamp(sample.at).strftime("%m-%d %H:%M:%S")
    counts = (sample.done, sample.failed, sample.waiting + sample.delayed, sample.in_flight, sample.workers)
    return [when, rate, *counts, memory]


def _prints(text: str) -> bool:
    """Tell whether standard output can show *text*."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
