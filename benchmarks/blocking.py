"""Part `blocking` measures how long Scrapy's event loop waits for its scheduler, with and without outages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from benchmarks.call_times import QUANTILES, summary
from benchmarks.crawl import CONTENDERS, MEMORY, OURS, SETTINGS
from benchmarks.outage_crawl import AFTER_S, BACK_PAGES, OUTAGE_S, Watched, watch, watch_outages
from benchmarks.part import Bar, Part
from benchmarks.plots import COLOURS, picture
from benchmarks.tables import markdown, ratios, spread
from benchmarks.timed import BESIDE, STEPS

PEACE_S = 8.0
BUDGET_S = 90.0
MAX_REPETITIONS = 3
"""The maximum number of repetitions. Fewer are made if they would exceed the budget."""
PEACE, THROUGH = "peace", "through"
WAYS = {
    "killed": "Redis killed (SIGKILL), started again",
    "frozen": "Redis frozen (SIGSTOP)",
    "silent": "packets swallowed",
    "refused": "connections refused",
}
SHOWN_FROM_S = 1e-4
"""The table shows methods with a call that took at least this long."""
HEAD = ["longest call, ms", "its CPU, ms", "its garbage collections, ms", "most CPU less collections, ms"]
LEGEND = """\
{count} crawls of {seconds:g} s with each scheduler, CONCURRENT_REQUESTS {concurrent}, Redis on loopback,
AOF everysec. Both schedulers are subclasses that time the calls from the engine. scrapy_dq's also times
{settlement} and each step of its coroutines; the next table excludes these steps. Methods whose calls all
took less than {shown_from:g} ms are missing. A long call with little CPU has waited for another process or
thread. Any call can start a garbage collection. The longest collection took {their_collection} ms with Scrapy
and {our_collection} ms with scrapy_dq. Timers of the event loop were at most {their_loop} ms late with Scrapy
and {our_loop} ms with scrapy_dq."""
OF_OUTAGES = """\
Crawls with outages had all four, of {outage:g} s each. *Seconds*: the outage, the time for {pages} more
pages, and {after:g} s. *Of Scrapy's longest*: our longest call,
divided by Scrapy's longest call in {seconds:g} s."""


class Blocking(Part):
    """The longest time inside one method that the engine calls."""

    name: ClassVar[str] = "blocking"
    title: ClassVar[str] = "How long the event loop is blocked"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Alternately crawl with Scrapy's scheduler, with ours, and with ours through four outages."""
        found: dict[str, list[Any]] = {MEMORY: [], PEACE: [], THROUGH: []}
        crawls: dict[str, Callable[[], Watched]] = {
            MEMORY: lambda: watch(MEMORY, PEACE_S),
            PEACE: lambda: watch(OURS, PEACE_S),
            THROUGH: watch_outages,
        }
        began, taken = time.monotonic(), 0.0
        for repetition in range(MAX_REPETITIONS):
            if repetition and time.monotonic() - began + taken > BUDGET_S:
                break
            turn = time.monotonic()
            for kind in list(crawls)[:: -1 if repetition % 2 else 1]:
                watched = summary(crawls[kind]())
                found[kind].append(watched)
                longest_s = watched["quantiles"]["longest"]
                tell(
                    f"{kind} #{repetition + 1}: {watched['pages']} pages, longest call "
                    f"{longest_s * 1000:.1f} ms"
                )
            taken = time.monotonic() - turn
        return {**found, "peace_s": PEACE_S, "outage_s": OUTAGE_S}

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the targets for the longest call."""
        theirs = _longest(found[MEMORY])
        bars = [_bar("under load", _longest(found[PEACE]), theirs)]
        for way, title in WAYS.items():
            bars.append(_bar(title, [each["windows"][way]["longest"][0] for each in found[THROUGH]], theirs))
        return bars

    def section(self, found: dict[str, Any]) -> str:
        """Return a table of methods and a table of outages."""
        of_outages = OF_OUTAGES.format(
            outage=found["outage_s"], pages=BACK_PAGES, after=AFTER_S, seconds=found["peace_s"]
        )
        return "\n\n".join([_by_method(found), _legend(found), _by_outage(found), of_outages])

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw how long calls take, from the median to the longest."""
        path = folder / "performance-blocking.png"
        lines = {
            MEMORY: (CONTENDERS[MEMORY].title, COLOURS[MEMORY], "o--"),
            PEACE: (CONTENDERS[OURS].title, COLOURS[OURS], "o-"),
            THROUGH: (f"{CONTENDERS[OURS].title}, through four outages", COLOURS["ours-2"], "o-"),
        }
        with picture(path) as axes:
            for kind, (title, colour, style) in lines.items():
                taken = [
                    median([each["quantiles"][name] for each in found[kind]]) * 1000 for name in QUANTILES
                ]
                axes.plot(list(QUANTILES), taken, style, color=colour, label=title)
            axes.set_yscale("log")
            axes.set(xlabel="of all calls of the engine", ylabel="ms inside the scheduler")
            axes.legend(fontsize="small")
        return [path]


def _bar(when: str, ours: list[float], theirs: list[float]) -> Bar:
    return Bar(f"longest call, {when}: ours / Scrapy in memory", 1.0, True, ratios(ours, theirs))


def _longest(runs: Iterable[dict[str, Any]]) -> list[float]:
    return [run["longest"][0] for run in runs]


def _ms(seconds: Iterable[float], digits: int = 1) -> str:
    return spread([value * 1000 for value in seconds], digits)


def _by_method(found: dict[str, Any]) -> str:
    rows = []
    for kind, title in ((MEMORY, CONTENDERS[MEMORY].title), (PEACE, CONTENDERS[OURS].title)):
        for name in dict.fromkeys(chain.from_iterable(run["methods"] for run in found[kind])):
            mine = [run["methods"][name] for run in found[kind] if name in run["methods"]]
            if max(each["longest"][0] for each in mine) < SHOWN_FROM_S:
                continue
            rows.append([
                title,
                "a step of its coroutines" if name == STEPS else f"`{name}`",
                spread([each["calls"] for each in mine]),
                spread([each["median"] * 1e6 for each in mine], 1),
                _ms((each["99.9 %"] for each in mine), 2),
                *_cells([each["longest"] for each in mine]),
            ])  # fmt: skip
    return markdown(["scheduler", "method", "calls", "median, µs", "99.9 %, ms", *HEAD], rows)


def _legend(found: dict[str, Any]) -> str:
    def of(kind: str, what: str) -> str:
        return _ms((run[what] for run in found[kind]), 0)

    return LEGEND.format(
        count=len(found[MEMORY]),
        seconds=found["peace_s"],
        concurrent=SETTINGS["CONCURRENT_REQUESTS"],
        shown_from=SHOWN_FROM_S * 1000,
        settlement=", ".join(f"`{name}`" for name in BESIDE[2:]),
        their_collection=of(MEMORY, "collection"),
        our_collection=of(PEACE, "collection"),
        their_loop=of(MEMORY, "loop"),
        our_loop=of(PEACE, "loop"),
    )


def _by_outage(found: dict[str, Any]) -> str:
    theirs = _longest(found[MEMORY])
    runs = {"none": [{"seconds": found["peace_s"], **run} for run in found[PEACE]]}
    runs |= {title: [run["windows"][way] for run in found[THROUGH]] for way, title in WAYS.items()}
    rows = []
    for title, mine in runs.items():
        as_long = [
            _in_as_long(run["each_second"], each["seconds"])
            for run, each in zip(found[MEMORY], mine, strict=True)
        ]
        rows.append([
            title,
            spread([each["seconds"] for each in mine], 1),
            *_cells([each["longest"] for each in mine]),
            spread(ratios(_longest(mine), theirs), 2),
            _ms(as_long, 2),
            _ms((each["loop"] for each in mine), 0),
        ])  # fmt: skip
    last = ["of Scrapy's longest", "Scrapy's longest in as many seconds, ms", "longest delay of a timer, ms"]
    return markdown(["outage", "seconds", *HEAD, *last], rows)


def _cells(mine: Sequence[Sequence[float]]) -> list[str]:
    return [_ms((each[n] for each in mine), 2) for n in range(len(HEAD))]


def _in_as_long(each_second: Sequence[float], seconds: float) -> float:
    """Return the median, over all periods of *seconds*, of the longest call in the period."""
    length = min(max(round(seconds), 1), len(each_second))
    return median(max(each_second[begin : begin + length]) for begin in range(len(each_second) - length + 1))


PART = Blocking()
