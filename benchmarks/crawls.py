"""Part `crawls` measures whole crawls of one site, with Redis near and far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, NamedTuple

from benchmarks.catalogue import LINKS
from benchmarks.crawl import (
    CONTENDERS,
    DISK,
    HEAD_PAGES,
    MEMORY,
    OURS,
    OURS_TUNED,
    OURS_TWICE,
    OURS_UNTUNED,
    OURS_UVLOOP,
    PAGES,
    PEER,
    SETTINGS,
    Crawl,
    crawl,
)
from benchmarks.part import Bar, Part
from benchmarks.plots import COLOURS, picture
from benchmarks.tables import markdown, spread

FEW_LINKS = 4


class Kind(NamedTuple):
    """The scheduler of a crawl, and its conditions."""

    name: str
    round_trip_ms: float
    links: int = LINKS


EACH_TIME = [
    Kind(OURS, 0), Kind(MEMORY, 0), Kind(OURS_TUNED, 0), Kind(OURS_UNTUNED, 0), Kind(PEER, 0),
    Kind(OURS, 2), Kind(PEER, 2), Kind(OURS, 10), Kind(OURS, 50),
    Kind(OURS, 0, FEW_LINKS), Kind(MEMORY, 0, FEW_LINKS), Kind(OURS, 10, FEW_LINKS), Kind(OURS_UVLOOP, 0),
]  # fmt: skip
"""Crawls of each repetition, in this order or, in every second repetition, in reverse order."""
ONCE = [Kind(DISK, 0), Kind(OURS_TWICE, 0), Kind(OURS_TWICE, 2)]
"""Crawls of the first repetition only."""
WANTED = [
    ("loopback", Kind(OURS, 0), Kind(MEMORY, 0), 1.10),
    ("loopback, 4 links a page", Kind(OURS, 0, FEW_LINKS), Kind(MEMORY, 0, FEW_LINKS), 1.05),
    ("loopback, by `scrapy dq crawl -w 1`", Kind(OURS_TUNED, 0), Kind(MEMORY, 0), 1.20),
    ("loopback", Kind(OURS, 0), Kind(PEER, 0), 1.7),
    ("2 ms", Kind(OURS, 2), Kind(MEMORY, 0), 1.0),
    ("10 ms", Kind(OURS, 10), Kind(MEMORY, 0), 1.08),
    ("50 ms", Kind(OURS, 50), Kind(MEMORY, 0), 1.05),
    ("10 ms, 4 links a page", Kind(OURS, 10, FEW_LINKS), Kind(MEMORY, 0, FEW_LINKS), 1.02),
    ("2 ms", Kind(OURS, 2), Kind(PEER, 2), 7.0),
]
"""For each ratio of pages per second: conditions, the crawl, the crawl to compare with, and the minimum."""
WANTED_REDIS_MS = 0.035
"""Maximum CPU time of Redis per page, on loopback."""
BUDGET_S = 1200.0
MAX_REPETITIONS = 5
"""The maximum number of repetitions. Fewer are made if they would exceed the budget."""
STOP_AFTER_S = {PEER: 8.0}

LEGEND = """\
Each row has {repetitions} crawls, or one if it has no range. Real `scrapy crawl` processes fetch
{pages:,} pages with {links} links each ({known:.0%} to pages already seen), or {few}
({known_of_few:.0%}). CONCURRENT_REQUESTS and CONCURRENT_REQUESTS_PER_DOMAIN are {concurrent}. Each crawl
has a new Redis, AOF everysec. The site counts pages per second from its first to its last request. *The
processes* is the time from their start to their end. No crawl requested a page twice, and each was
complete, except \\*: stopped ({stops}), and counted without the first {head} pages, whose links are all
new.{together}

All processes share the cores. The site takes {site} ms of CPU per page"""
TOGETHER = " A worker of scrapy_dq sends one exchange or heartbeat for every {} pages."
FAR = """, and the proxy that
delays Redis takes {proxy} ms. A PING through it takes, in ms: {pings}."""


class Crawls(Part):
    """Pages per second, from the first request at the site to the last."""

    name: ClassVar[str] = "crawls"
    title: ClassVar[str] = "Whole crawls"
    first_page: ClassVar[bool] = True

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Crawl until the budget is spent."""
        crawls: list[Crawl] = []
        began, taken = time.monotonic(), 0.0
        for repetition in range(MAX_REPETITIONS):
            if repetition and time.monotonic() - began + taken > BUDGET_S:
                break
            turn = time.monotonic()
            kinds = EACH_TIME if repetition % 2 == 0 else EACH_TIME[::-1]
            crawls += [_timed_crawl(tell, kind, repetition) for kind in kinds]
            taken = time.monotonic() - turn
            if repetition == 0:
                crawls += [_timed_crawl(tell, kind, repetition) for kind in ONCE]
        return {"crawls": [asdict(c) for c in crawls], "pages": PAGES, "stop_after_s": STOP_AFTER_S}

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the targets for whole crawls."""
        of = _Found(found)
        bars = [
            Bar(
                f"whole crawl, {where}: ours / {CONTENDERS[to.name].title}",
                wanted,
                False,
                of.ratios(mine, to),
            )
            for where, mine, to, wanted in WANTED
        ]
        redis_ms = [c.redis_s / c.pages * 1000 for c in of.of(Kind(OURS, 0))]
        return [
            *bars,
            Bar("Redis CPU per page of a whole crawl, loopback, ms", WANTED_REDIS_MS, True, redis_ms),
        ]

    def section(self, found: dict[str, Any]) -> str:
        """Return the table, and the conditions of its figures."""
        of = _Found(found)
        head = [
            "scheduler", "links a page", "round trip to Redis", "pages/s", "of Scrapy in memory",
            "of scrapy-redis", "CPU, ms/page: workers", "Redis", "the processes, s",
        ]  # fmt: skip
        rows = [of.row(kind) for kind in of.kinds]
        return f"{markdown(head, rows)}\n\n{of.legend()}"

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw the pages per second by round trip."""
        of = _Found(found)
        distances = sorted({kind.round_trip_ms for kind in of.kinds})
        with picture(folder / "performance-crawls.png") as axes:
            for name in (OURS_TWICE, OURS, PEER):
                there = [ms for ms in distances if Kind(name, ms) in of.kinds]
                rates = [median(of.rates(Kind(name, ms))) for ms in there]
                axes.plot(
                    [distances.index(ms) for ms in there],
                    rates,
                    "o-",
                    color=COLOURS[name],
                    label=_title(name),
                )
            for name in (MEMORY, DISK):
                if Kind(name, 0) in of.kinds:
                    rate = median(of.rates(Kind(name, 0)))
                    axes.axhline(rate, color=COLOURS[name], linestyle="--", label=_title(name))
            axes.set_xticks(range(len(distances)), [f"{ms:g}" if ms else "loopback" for ms in distances])
            axes.set(xlabel="round trip to Redis, ms", ylabel="pages per second")
            axes.set_ylim(bottom=0)
            axes.legend(fontsize="small")
        return [folder / "performance-crawls.png"]


def _timed_crawl(tell: Callable[[str], None], kind: Kind, repetition: int) -> Crawl:
    stop_after_s = STOP_AFTER_S.get(kind.name, 0)
    made = crawl(kind.name, kind.round_trip_ms, repetition, stop_after_s, links=kind.links)
    tell(
        f"{kind.name}, {kind.links} links, {kind.round_trip_ms:g} ms, #{repetition + 1}: "
        f"{made.rate:,.0f} pages/s; "
        f"{made.pages} in {made.seconds:.1f} s, {made.whole_seconds:.1f} s in all"
    )
    return made


def _title(name: str) -> str:
    workers = CONTENDERS[name].workers
    return CONTENDERS[name].title + f", {workers} workers" * (workers > 1)


class _Found:
    """The crawls, by kind."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._all = [Crawl(**made) for made in found["crawls"]]
        self._pages, self._stop_after_s = found["pages"], found["stop_after_s"]
        self.kinds = sorted(
            {_kind(c) for c in self._all},
            key=lambda kind: (-kind.links, list(CONTENDERS).index(kind.name), kind.round_trip_ms),
        )

    def of(self, kind: Kind) -> list[Crawl]:
        return [c for c in self._all if _kind(c) == kind]

    def rates(self, kind: Kind) -> list[float]:
        return [c.rate for c in self.of(kind)]

    def ratios(self, of: Kind, to: Kind) -> list[float]:
        """Return one ratio for each repetition that has both crawls."""
        others = {c.repetition: c.rate for c in self.of(to)}
        mine = self.of(of)
        return [c.rate / others[c.repetition] for c in mine if c.repetition in others]

    def row(self, kind: Kind) -> list[str]:
        crawls, (name, round_trip_ms, links) = self.of(kind), kind
        near = "loopback" if CONTENDERS[name].needs_redis else "–"
        to_peer = self.ratios(kind, Kind(PEER, round_trip_ms, links))
        stopped = any(c.stopped for c in crawls)
        return [
            _title(name),
            str(links),
            f"{round_trip_ms:g} ms" if round_trip_ms else near,
            spread([c.rate for c in crawls]) + " \\*" * stopped,
            spread(self.ratios(kind, Kind(MEMORY, 0, links)), 2),
            spread(to_peer, 1 if median(to_peer) >= 5 else 2) if to_peer else "–",
            spread([c.worker_s / c.pages * 1000 for c in crawls], 2),
            spread([c.redis_s / c.pages * 1000 for c in crawls], 3) if CONTENDERS[name].needs_redis else "–",
            "–" if stopped else spread([c.whole_seconds for c in crawls], 1),
        ]

    def legend(self) -> str:
        near = [c for c in self._all if not c.round_trip_ms and not c.stopped]
        far = [c for c in self._all if c.round_trip_ms]
        pings = {
            ms: median([c.ping_ms for c in far if c.round_trip_ms == ms]) for _, ms, _ in self.kinds if ms
        }
        together = [c.pages / c.calls for c in self.of(Kind(OURS, 0)) if c.calls]
        of_proxy = [c.proxy_s / c.pages * 1000 for c in far if c.contender == OURS]
        text = LEGEND.format(
            repetitions=len(self.of(Kind(OURS, 0))),
            pages=self._pages,
            links=LINKS,
            known=1 - 1 / LINKS,
            few=FEW_LINKS,
            known_of_few=1 - 1 / FEW_LINKS,
            concurrent=SETTINGS["CONCURRENT_REQUESTS"],
            stops=", ".join(
                f"{CONTENDERS[name].title} after {s:g} s" for name, s in self._stop_after_s.items()
            ),
            head=HEAD_PAGES,
            together=TOGETHER.format(spread(together)) if together else "",
            site=spread([c.site_s / c.pages * 1000 for c in near], 2),
        )
        if of_proxy:
            return text + FAR.format(
                proxy=spread(of_proxy, 2),
                pings=", ".join(f"{ping:.2f} for {ms:g}" for ms, ping in sorted(pings.items())),
            )
        return text + "."


def _kind(made: Crawl) -> Kind:
    return Kind(made.contender, made.round_trip_ms, made.links)


PART = Crawls()
