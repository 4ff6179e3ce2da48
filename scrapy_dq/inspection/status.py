"""The status of a crawl: counts, speed, time left, the largest and slowest partitions."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrapy_dq.inspection.words import TROUBLED
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.backlog import Sizes
    from scrapy_dq.frontier.admin.overview import Overview
    from scrapy_dq.inspection.place import Place

TOP = 10
COUNTS = ("workers", "waiting", "delayed", "in_flight", "done", "failed", "dead", "seen")
RATE_OVER_S = 5.0
LONGEST_WAIT = 250
"""Characters of the reason for which a worker waits."""
SIZES_PART = 50
"""The search for large partitions takes at most one part in 50 of the time."""


class Progress:
    """Reads a crawl repeatedly; the rate is that of the last 5 s, or between the last two reads."""

    def __init__(self, place: Place) -> None:
        from scrapy_dq.inspection.workers import WorkersWatch

        self._place = place
        self.rows: list[dict[str, Any]] = []
        """The state of each worker, as of `workers_of`."""
        self._workers = WorkersWatch()
        self._looks: deque[tuple[float, int]] = deque()
        self._counted: tuple[Any, ...] = ()
        """Of which run the counts are, and without which shards."""
        self._sizes: Sizes | None = None
        self._sizes_until = 0.0

    def note(self, overview: Overview, now_there: float = 0.0) -> None:
        """Record the counts at this moment; *now_there*: `now` of `workers_of`."""
        self.rows = self._workers.look(overview, now_there)
        now, counted = time.monotonic(), counted_in(overview)
        if counted != self._counted:
            self._looks.clear()  # a run starts at 0, and of a shard all counts come or go at once
        self._counted = counted
        while len(self._looks) > 1 and now - self._looks[1][0] >= RATE_OVER_S:
            self._looks.popleft()
        self._looks.append((now, settled(asdict(overview.census))))

    def status(self, overview: Overview, now_there: float = 0.0) -> dict[str, Any]:
        """Return all that is shown of a crawl; the rate is None the first time."""
        from scrapy_dq.backend.health import refusals
        from scrapy_dq.frontier.admin.backlog import info_of
        from scrapy_dq.inspection.workers import awaits, turn_of

        self.note(overview, now_there)
        turn = turn_of(self._place, overview)
        sizes = self._newest_sizes()
        info = info_of(self._place.client) or {}
        counts = {
            name: asdict(overview.census)[name]
            for name in (*COUNTS, "gone", "incomplete", "declined", "unserved")
        }
        rate = self.rate() if overview.phase == "open" else None
        # A higher rate does not help a partition that has to wait.
        least_s = max((each.takes_s for each in sizes.slowest), default=0.0)
        return {
            "crawl": self._place.crawl,
            "redis": self._place.target,
            "at": round(time.time(), 3),
            "phase": overview.phase,
            "hold": overview.hold.value,
            "run": overview.run,
            "run_name": printable(overview.run_name),
            **counts,
            "worker_states": dict(Counter(row["state"] for row in self.rows)),
            "turn": turn and turn | {"workers": sum(map(awaits, self.rows))},
            "shards": overview.shards,
            "unreachable_shards": list(overview.unreachable),
            "apart_shards": list(overview.apart),
            "pages_per_s": None if rate is None else round(rate, 1),
            "left_s": round(max(left(counts) / rate, least_s), 1) if rate else None,
            "waits": waits_of(self.rows),
            "redis_refuses": refusals(info),
            "redis_memory_bytes": info.get("used_memory"),
            "redis_maxmemory_bytes": info.get("maxmemory"),
            "partitions": sizes.partitions,
            "partitions_looked_at": sizes.looked_at,
            "largest_partitions": [asdict(each) for each in sizes.largest],
            "slowest_partitions": [asdict(each) for each in sizes.slowest],
            "blocked_partitions": [asdict(each) for each in sizes.blocked],
        }

    def rate(self) -> float | None:
        """Return settled requests per second; None: there was one look."""
        (first_at, first), (last_at, last) = self._looks[0], self._looks[-1]
        return max(0, last - first) / (last_at - first_at) if last_at > first_at else None

    def _newest_sizes(self) -> Sizes:
        """Return the partitions; from an earlier read if another one would cost Redis too much."""
        from scrapy_dq.frontier.admin.backlog import sizes

        began = time.monotonic()
        if self._sizes is None or began >= self._sizes_until:
            self._sizes = sizes(self._place.shards, self._place.crawl, TOP)
            self._sizes_until = began + SIZES_PART * (time.monotonic() - began)
        return self._sizes


def waits_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many workers wait for Redis, since when the first one does, and why, by reason.

    Args:
        rows: as of `workers_of`. The record of a dead worker may still say that it waits.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["waits_for"] and row["state"] not in TROUBLED:
            found.setdefault(row["waits_for"], []).append(row["waits_since"] or 0.0)
    return [{"workers": len(each), "since": min(each), "why": why} for why, each in found.items()]


def counted_in(overview: Overview) -> tuple[Any, ...]:
    """Return which run is counted, and without which shards; a rate is that of two looks with the same."""
    return overview.epoch, overview.run, overview.unreachable, overview.apart


def settled(counts: dict[str, Any]) -> int:
    """Return how many requests are settled, with any outcome."""
    return int(counts["done"] + counts["failed"] + counts["dead"])


def left(counts: dict[str, Any]) -> int:
    """Return how many requests are not settled."""
    return int(counts["waiting"] + counts["delayed"] + counts["in_flight"])


def read_status(place: Place, interval_s: float) -> dict[str, Any]:
    """Return all that is shown of a crawl, after counting pages for *interval_s* seconds; 0: without a rate.

    Raises:
        NoSuchCrawl: there is no such crawl.
    """
    progress = Progress(place)
    overview, began = place.overview(), time.monotonic()
    if interval_s and overview.phase == "open":
        progress.note(overview)
        time.sleep(max(0.0, began + interval_s - time.monotonic()))
        overview = place.overview()
    return progress.status(overview)
