"""`scrapy dq events`, `report`: events of a crawl with their authors, and the crawl's speed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console
from scrapy.settings import Settings

from scrapy_dq.commands import common
from scrapy_dq.commands.output.display import cell, print_json, print_table
from scrapy_dq.commands.output.status_view import WIDE_TERMINAL, partition_tables
from scrapy_dq.commands.streams import until_interrupted
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.own_files import open_own
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.inspection import history
from scrapy_dq.inspection.entries import read_failures
from scrapy_dq.inspection.history import Event, Sample
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.snapshot import COUNTS, TOP, watched
from scrapy_dq.inspection.words import memory, missing, phase_of, span, when
from scrapy_dq.text import count_of, printable

POLL_S = 1.0
BLOCKS = "▁▂▃▄▅▆▇█"
MAX_COLUMNS = 60
"""Maximum number of columns of a curve."""
MAX_FAILURES = 1_000
"""Maximum number of records of each kind that a report groups."""


class Events(Subcommand):
    """What happened, and who did it.

    Lists the newest of at most 500 events: workers that joined, left or died, outages of Redis, commands and
    their users, starts and ends of runs.
    """

    name = "events"
    flags = (
        ("--follow", "print new events until Ctrl-C"),
        ("--curves", "also draw rate, backlog, failures and memory of two days"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        common.add_count(parser, 50)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with common.place_of(settings, options) as place:
            place.overview()
            events = history.read_events(place.shards, place.crawl)
            samples = history.whole_history(place.shards, place.crawl) if options.curves else []
            common.warn_unanswered(place)
            if options.follow:
                with until_interrupted():
                    self._follow(place, events, options)
                return DONE
        listed = events[-options.count :]
        if options.json:
            found = {"events": [asdict(event) for event in listed]}
            if options.curves:
                pairs = zip(samples, history.paces(samples), strict=True)
                found["samples"] = [asdict(sample) | asdict(pace) for sample, pace in pairs]
            print_json(common.found_in(place, **found))
        else:
            if options.curves:
                _print_curves(samples)
            _print_events(listed, len(events))
        return DONE

    def _follow(self, place: Place, events: Sequence[Event], options: argparse.Namespace) -> None:
        """Print new events until Ctrl-C. An outage of Redis does not end this."""
        shown, missed = set(events[: -options.count]), ""
        while True:
            for event in events:
                if event not in shown and not history.is_known(event, shown):
                    print(json.dumps(asdict(event)) if options.json else _line(event), flush=True)
            # No event is removed: the events of a shard that does not answer now are read again later.
            shown.update(events)
            time.sleep(POLL_S)
            try:
                with as_unavailable(place.target):
                    place.ask_all()
                    events = history.read_events(place.shards, place.crawl)
                missed = ""
            except FrontierUnavailable as error:
                if str(error) != missed:
                    missed = str(error)
                    print(f"{missed}. Trying again.", file=sys.stderr, flush=True)


def _line(event: Event) -> str:
    return f"{when(event.at)} {history.describe(event)}" + (f" ({event.who})" if event.who else "")


def _print_events(listed: Sequence[Event], kept: int) -> None:
    shown = "" if len(listed) == kept else f"; the newest {len(listed):,} are shown"
    print(f"{count_of(kept, 'event')}{shown}.")
    if listed:
        rows = [[when(event.at), str(event.run), history.describe(event), event.who] for event in listed]
        print_table(("when", "run", "what", "who"), rows, numbers=("run",), wraps=("what", "who"))


def _print_curves(samples: Sequence[Sample]) -> None:
    if not samples:
        print("There is no sample yet: workers take one each 10 s.")
        return
    print(f"{count_of(len(samples), 'sample')} of {span(samples[-1].at - samples[0].at)}.")
    console = Console()
    columns = min(MAX_COLUMNS, max(1, console.width - 45))
    blocks = not console.options.ascii_only
    for name, found in history.curves_of(samples).items():
        line = curve(found[0], columns) if blocks else ""
        print(f"{name:<9} {line} {history.extent(found)}")


def curve(values: Sequence[float | None], columns: int) -> str:
    """Draw *values* as a line of at most *columns* blocks, from 0 to the largest value.

    Each block shows the mean of the values in its column. If all of these are None (unknown), a space
    replaces the block.
    """
    columns = min(columns, len(values))
    ends = [i * len(values) // columns for i in range(columns + 1)] if columns else [0]
    means = [history.mean(values[begin:end]) for begin, end in pairwise(ends)]
    largest = max((each for each in means if each is not None), default=0) or 1
    steps = (len(BLOCKS) - 1) / largest
    return "".join(" " if each is None else BLOCKS[round(each * steps)] for each in means)


class Report(Subcommand):
    """An HTML report of a crawl.

    Writes an HTML page without scripts to standard output, or in a terminal to a file: totals, curves,
    partitions, failures by cause, events.
    """

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--output", metavar="FILE", type=Path, help="write it to FILE")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with common.place_of(settings, options) as place:
            status = watched(place, 0.0, turn=True, partitions=True).status()
            samples = history.whole_history(place.shards, place.crawl)
            events = history.read_events(place.shards, place.crawl)
            failures = [read_failures(place, kind, MAX_FAILURES) for kind in ("failed", "dead")]
        if options.json:
            groups = {found["kind"]: found["groups"] for found in failures}
            lists = {"samples": [*map(asdict, samples)], "events": [*map(asdict, events)]}
            print_json({"status": status} | lists | groups)
            return DONE
        page = page_of(status, samples, events, failures).encode()
        output = options.output
        if output is None and not sys.stdout.isatty():
            sys.stdout.buffer.write(page)
            return DONE
        output = output or report_file(place.crawl)

        try:
            with open(output, "wb", opener=open_own) as file:
                file.write(page)
        except (OSError, CrewError) as error:
            raise CommandError(f"{output} cannot be written: {error}") from error
        if options.output is None:
            print(f"The report is in {output}")
        return DONE


def report_file(crawl: str) -> Path:
    """Return the name of a crawl's report, in the current folder."""
    return Path(f"report-{quote(crawl, safe='')}.html")


WIDTH, HEIGHT = 860, 120
"""Size of a curve, in units of its SVG picture."""
MAX_ROWS = 50
LONGEST = 200
"""Maximum number of characters of a text in the report. Longer texts are cut."""
MARKED = {
    "died": "bad", "outage": "bad", "waits": "bad", "damaged": "bad", "began": "good", "finished": "good",
}  # fmt: skip
"""Events that the curves mark, with the style of the mark."""

_STYLE = """
:root { --ink: #1b2230; --dim: #586174; --line: #e2e5ea; --card: #fff; --ground: #f6f7f9; --accent: #2f4fc4;
  --bad: #b3261e; --good: #1a7048 }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaf1; --dim: #a0a9ba; --line: #2a3140;
  --card: #181d27; --ground: #10141b; --accent: #9db2ff; --bad: #ff9a91; --good: #6fd6a3 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 940px; padding: 32px 20px 64px; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere }
h1 { font-size: 26px; line-height: 1.25; margin: 0 } h2 { font-size: 17px; margin: 36px 0 10px }
p { margin: 4px 0; color: var(--dim) } .bad { color: var(--bad) }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; margin: 20px 0 0 }
dl div, figure, table { background: var(--card); border: 1px solid var(--line); border-radius: 8px }
dl div { padding: 10px 14px } dt { color: var(--dim); font-size: 13px } dd { margin: 0; font-size: 21px }
figure { margin: 0 0 12px; padding: 12px 14px } figcaption { font-size: 13px; color: var(--dim) }
figcaption b { color: var(--ink) } svg { display: block; width: 100%; height: auto; margin-top: 6px }
path { fill: none; stroke: var(--accent); stroke-width: 1.5; vector-effect: non-scaling-stroke }
line { stroke: var(--line); vector-effect: non-scaling-stroke } line.bad { stroke: var(--bad) }
line.good { stroke: var(--good) } table { width: 100%; border-collapse: collapse; font-size: 14px }
th, td { text-align: left; padding: 6px 12px; border-top: 1px solid var(--line); vertical-align: top }
th { color: var(--dim); font-weight: 500; border-top: 0 } .n { text-align: right; white-space: nowrap }
@media print { body { background: none; max-width: none; padding: 0 } figure, table { break-inside: avoid } }
"""


def page_of(
    status: dict[str, Any], samples: Sequence[Sample], events: Sequence[Event],
    failures: Sequence[dict[str, Any]],
) -> str:  # fmt: skip
    """Return the report as HTML.

    Args:
        status: result of `Snapshot.status`.
        samples, events: sorted, oldest first.
        failures: results of `read_failures` for both kinds, "failed" and "dead".
    """
    name = _text(status["crawl"])
    body = [
        f"<h1>{name}</h1>",
        f"<p>Run {status['run']}, {_text(phase_of(status))}; {_text(status['redis'])}; "
        f"as of {when(status['at'])}</p>",
        *(f'<p class="bad">{_text(each)}</p>' for each in missing(status)),
        _totals(status, samples),
        *_curves(samples, events),
        *_partitions(status),
        *(part for each in failures for part in _failures(each)),
        *_events(events),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _text(value: Any) -> str:
    return escape(printable(str(value), LONGEST))


def _totals(status: dict[str, Any], samples: Sequence[Sample]) -> str:
    of_run = [each for each in samples if each.run == status["run"]]
    totals = {name.replace("_", " "): f"{status[name]:,}" for name in COUNTS}
    if len(of_run) > 1 and (passed_s := of_run[-1].at - of_run[0].at) > 0:
        done = of_run[-1].done + of_run[-1].failed - of_run[0].done - of_run[0].failed
        totals |= {"pages per second": f"{done / passed_s:,.1f}", "sampled for": span(passed_s)}
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in totals.items())
    return f"<dl>{tiles}</dl><p>{_text(memory(status))}</p>"


def _curves(samples: Sequence[Sample], events: Sequence[Event]) -> Iterable[str]:
    yield "<h2>Over time</h2>"
    if len(samples) < 2:
        yield "<p>There are no samples: workers take one each 10 s.</p>"
        return
    for name, curve in history.curves_of(samples).items():
        picture = _svg(samples, curve[0], events)
        yield f"<figure><figcaption><b>{name}</b>: {history.extent(curve)}</figcaption>{picture}</figure>"
    marks = "Red lines: deaths of workers, outages; green: a run began or ended."
    yield f"<p>From {when(samples[0].at)} to {when(samples[-1].at)}. {marks}</p>"


def _svg(samples: Sequence[Sample], values: Sequence[float | None], events: Iterable[Event]) -> str:
    begin, end = samples[0].at, samples[-1].at
    most = max(filter(None, values), default=1.0)

    def x(at: float) -> float:
        return round((at - begin) / ((end - begin) or 1) * WIDTH, 1)

    lines = [f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>']
    for event in events:
        if begin <= event.at <= end and event.kind in MARKED:
            title = f"<title>{when(event.at)} {_text(history.describe(event))}</title>"
            at = x(event.at)
            lines.append(
                f'<line class="{MARKED[event.kind]}" x1="{at}" x2="{at}" y1="0" y2="{HEIGHT}">{title}</line>'
            )
    path, pen = [], "M"
    for sample, value in zip(samples, values, strict=True):
        if value is not None:
            path.append(f"{pen}{x(sample.at)} {HEIGHT - value / most * (HEIGHT - 4):.1f}")
        pen = "M" if value is None else "L"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-hidden="true">'
        f'{"".join(lines)}<path d="{"".join(path)}"/></svg>'
    )


def _partitions(status: dict[str, Any]) -> Iterable[str]:
    for title, columns, rows in partition_tables(status, TOP, WIDE_TERMINAL):
        yield f"<h2>{_text(title.rstrip(':'))}</h2>"
        yield _table(columns, rows, columns[:-1])


def _failures(found: dict[str, Any]) -> Iterable[str]:
    name = {"failed": "Failed requests", "dead": "Dead letters"}[found["kind"]]
    yield f"<h2>{name}, by cause</h2>"
    if not found["groups"]:
        yield f"<p>{found['total']:,}, none of them is kept.</p>" if found["total"] else "<p>None.</p>"
        return
    yield f"<p>The newest {len(found['rows']):,} of {found['total']:,} are grouped.</p>"
    rows = [(group["cause"], group["host"], group["count"]) for group in found["groups"][:MAX_ROWS]]
    yield _table(("cause", "host", "requests"), rows, ("requests",))


def _events(events: Sequence[Event]) -> Iterable[str]:
    yield "<h2>Events</h2>"
    rows = [(when(event.at), history.describe(event), event.who) for event in reversed(events)]
    yield _table(("when", "what", "who"), rows) if rows else "<p>None.</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = ()) -> str:
    """Return a table; the columns in *numbers* are aligned right."""
    styles = [" class=n" if head in numbers else "" for head in heads]

    def row_of(tag: str, row: Sequence[object]) -> str:
        cells = (
            f"<{tag}{style}>{_text(cell(value))}</{tag}>" for style, value in zip(styles, row, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(row_of("td", row) for row in rows)
    return f"<table><thead>{row_of('th', heads)}</thead><tbody>{body}</tbody></table>"
