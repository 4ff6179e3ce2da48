"""Part `crawls`: whole crawls of one site, with Redis near and far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from benchmarks.catalogue import LINKS
from benchmarks.crawl import (
    CONTENDERS,
    DISK,
    HEAD_PAGES,
    MEMORY,
    OURS,
    OURS_TWICE,
    PAGES,
    PEER,
    SETTINGS,
    Crawl,
    crawl,
)
from benchmarks.part import Bar, Part
from benchmarks.plots import COLOURS, picture
from benchmarks.tables import markdown, spread

EACH_TIME = [(OURS, 0), (MEMORY, 0), (OURS, 2), (PEER, 0), (PEER, 2), (OURS, 10)]
"""Crawled in each repetition, there and back: who, and the round trip in ms."""
ONCE = [(DISK, 0), (OURS_TWICE, 0), (OURS_TWICE, 2), (OURS, 50)]
"""Crawled with the first repetition only."""
BUDGET_S = 290.0
MOST = 5
"""Repetitions; fewer if the budget is spent before."""
STOP_AFTER_S = {PEER: 8.0}

LEGEND = """\
{pages:,} pages of {links} links each, of which {known:.0%} lead to pages that were already seen; real
`scrapy crawl` processes, CONCURRENT_REQUESTS and CONCURRENT_REQUESTS_PER_DOMAIN {concurrent}; a new Redis for
each crawl, AOF everysec. Pages per second are counted by the site, from its first request to its last: the
start of the processes is not included. *The processes* is the time from their start to their end. Each
crawl was complete and requested no page twice; otherwise there would be no figures. A ratio is of one
repetition. \\*: stopped ({stops}); such a rate leaves out the first {head} pages, whose links are all new.

All processes share the cores: the site takes {site} ms of CPU per page"""
FAR = """, and the proxy that
makes Redis distant {proxy} ms, with one worker of scrapy_dq. A PING through it takes, in ms: {pings}."""


class Crawls(Part):
    """Pages per second, from the first request at the site to the last."""

    name: ClassVar[str] = "crawls"
    title: ClassVar[str] = "Whole crawls"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Crawl until the budget is spent."""
        crawls: list[Crawl] = []
        began, taken = time.monotonic(), 0.0
        for repetition in range(MOST):
            if repetition and time.monotonic() - began + taken > BUDGET_S:
                break
            turn = time.monotonic()
            for name, round_trip_ms in EACH_TIME if repetition % 2 == 0 else EACH_TIME[::-1]:
                crawls.append(_told(tell, name, round_trip_ms, repetition))
            taken = time.monotonic() - turn
            if repetition == 0:
                crawls += [_told(tell, *each, repetition) for each in ONCE]
        return {"crawls": [asdict(c) for c in crawls], "pages": PAGES, "stop_after_s": STOP_AFTER_S}

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return those of whole crawls."""
        of = _Found(found)
        return [
            Bar(
                "whole crawl, loopback: ours / Scrapy in memory",
                1.0,
                False,
                of.ratios((OURS, 0), (MEMORY, 0)),
            ),
            Bar("whole crawl, loopback: ours / scrapy-redis", 1.7, False, of.ratios((OURS, 0), (PEER, 0))),
            Bar("whole crawl, 2 ms: ours / Scrapy in memory", 0.97, False, of.ratios((OURS, 2), (MEMORY, 0))),
            Bar(
                "whole crawl, 10 ms: ours / Scrapy in memory", 0.97, False, of.ratios((OURS, 10), (MEMORY, 0))
            ),
            Bar("whole crawl, 2 ms: ours / scrapy-redis", 7.0, False, of.ratios((OURS, 2), (PEER, 2))),
        ]

    def section(self, found: dict[str, Any]) -> str:
        """Return the table, and how it was measured."""
        of = _Found(found)
        head = [
            "scheduler", "workers", "round trip to Redis", "pages/s", "of Scrapy in memory",
            "of scrapy-redis", "CPU, ms/page: workers", "Redis", "the processes, s", "crawls",
        ]  # fmt: skip
        rows = [of.row(name, round_trip_ms) for name, round_trip_ms in of.kinds]
        return f"{markdown(head, rows)}\n\n{of.legend()}"

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw the pages per second by distance."""
        of = _Found(found)
        distances = sorted({round_trip_ms for _, round_trip_ms in of.kinds})
        with picture(folder / "performance-crawls.png") as axes:
            for name in (OURS_TWICE, OURS, PEER):
                there = [ms for ms in distances if (name, ms) in of.kinds]
                rates = [median(of.rates(name, ms)) for ms in there]
                axes.plot(
                    [distances.index(ms) for ms in there],
                    rates,
                    "o-",
                    color=COLOURS[name],
                    label=_title(name),
                )
            for name in (MEMORY, DISK):
                if (name, 0) in of.kinds:
                    rate = median(of.rates(name, 0))
                    axes.axhline(rate, color=COLOURS[name], linestyle="--", label=_title(name))
            axes.set_xticks(range(len(distances)), [f"{ms:g}" if ms else "loopback" for ms in distances])
            axes.set(xlabel="round trip to Redis, ms", ylabel="pages per second")
            axes.set_ylim(bottom=0)
            axes.legend(fontsize="small")
        return [folder / "performance-crawls.png"]


def _told(tell: Callable[[str], None], name: str, round_trip_ms: float, repetition: int) -> Crawl:
    made = crawl(name, round_trip_ms, repetition, STOP_AFTER_S.get(name, 0))
    tell(
        f"{name}, {round_trip_ms:g} ms, #{repetition + 1}: {made.rate:,.0f} pages/s; "
        f"{made.pages} in {made.seconds:.1f} s, {made.whole_seconds:.1f} s in all"
    )
    return made


def _title(name: str) -> str:
    workers = CONTENDERS[name].workers
    return CONTENDERS[name].title + f", {workers} workers" * (workers > 1)


class _Found:
    """The crawls, by scheduler and distance."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._all = [Crawl(**made) for made in found["crawls"]]
        self._pages, self._stop_after_s = found["pages"], found["stop_after_s"]
        there = {(c.contender, c.round_trip_ms) for c in self._all}
        self.kinds = sorted(there, key=lambda kind: (list(CONTENDERS).index(kind[0]), kind[1]))

    def of(self, name: str, round_trip_ms: float) -> list[Crawl]:
        return [c for c in self._all if (c.contender, c.round_trip_ms) == (name, round_trip_ms)]

    def rates(self, name: str, round_trip_ms: float) -> list[float]:
        return [c.rate for c in self.of(name, round_trip_ms)]

    def ratios(self, of: tuple[str, float], to: tuple[str, float]) -> list[float]:
        """Return one ratio for each repetition in which there are both."""
        others = {c.repetition: c.rate for c in self.of(*to)}
        mine = self.of(*of)
        return [c.rate / others[c.repetition] for c in mine if c.repetition in others]

    def row(self, name: str, round_trip_ms: float) -> list[str]:
        crawls = self.of(name, round_trip_ms)
        near = "loopback" if CONTENDERS[name].needs_redis else "–"
        to_peer = self.ratios((name, round_trip_ms), (PEER, round_trip_ms))
        stopped = any(c.stopped for c in crawls)
        return [
            CONTENDERS[name].title,
            str(CONTENDERS[name].workers),
            f"{round_trip_ms:g} ms" if round_trip_ms else near,
            spread([c.rate for c in crawls]) + " \\*" * stopped,
            spread(self.ratios((name, round_trip_ms), (MEMORY, 0)), 2),
            spread(to_peer, 1 if median(to_peer) >= 5 else 2) if to_peer else "–",
            spread([c.worker_s / c.pages * 1000 for c in crawls], 2),
            spread([c.redis_s / c.pages * 1000 for c in crawls], 3) if CONTENDERS[name].needs_redis else "–",
            "–" if stopped else spread([c.whole_seconds for c in crawls], 1),
            str(len(crawls)),
        ]

    def legend(self) -> str:
        near = [c for c in self._all if not c.round_trip_ms and not c.stopped]
        far = [c for c in self._all if c.round_trip_ms]
        pings = {ms: median([c.ping_ms for c in far if c.round_trip_ms == ms]) for _, ms in self.kinds if ms}
        of_proxy = [c.proxy_s / c.pages * 1000 for c in far if c.contender == OURS]
        text = LEGEND.format(
            pages=self._pages,
            links=LINKS,
            known=1 - 1 / LINKS,
            concurrent=SETTINGS["CONCURRENT_REQUESTS"],
            stops=", ".join(
                f"{CONTENDERS[name].title} after {s:g} s" for name, s in self._stop_after_s.items()
            ),
            head=HEAD_PAGES,
            site=spread([c.site_s / c.pages * 1000 for c in near], 2),
        )
        if of_proxy:
            return text + FAR.format(
                proxy=spread(of_proxy, 2),
                pings=", ".join(f"{ping:.2f} for {ms:g}" for ms, ping in sorted(pings.items())),
            )
        return text + "."


PART = Crawls()
