"""What the metrics are made of: the figures of all crawls of a Redis, read a bounded part at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scrapy_dq.backend.health import refusals
from scrapy_dq.frontier.admin.backlog import info_of
from scrapy_dq.frontier.admin.crawls import CrawlSearch
from scrapy_dq.frontier.admin.shards import in_cluster
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.crawls import LONGEST_S, MOST_CRAWLS
from scrapy_dq.inspection.measured import MeasuredCrawl, Row

if TYPE_CHECKING:
    from scrapy_dq.inspection.place import Place

PART = 15
"""Crawls that one look reads at most."""
MOST_COST = 3.0
"""Milliseconds of Redis that they may take, as estimated: for each crawl, and for each of its workers."""
CRAWL_COST, WORKER_COST = 0.16, 0.008
MOST_KEYS = 2_000
"""Keys that a look examines in search of further crawls; the first look examines more."""
SHARED_S = 1.0
"""Whoever asks within so long of a look gets the same."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The result of a look."""

    up: bool
    took_s: float
    crawls: Sequence[Row] = ()
    """No two have the same name."""
    memory_bytes: int | None = None
    """Used memory of the whole Redis; None: unknown."""
    maxmemory_bytes: int | None = None
    """0: no limit."""
    writable: bool | None = None
    """False: Redis refuses writes, as far as its INFO says; None: unknown."""


class MeasuresWatch:
    """Looks at the crawls of a Redis, for whoever asks, in whatever thread; one look at a time."""

    def __init__(self, crawl: str = "") -> None:
        """*crawl*: the only one; empty: all."""
        self._only = crawl
        self._crawls: dict[str, MeasuredCrawl] = {crawl: MeasuredCrawl(crawl)} if crawl else {}
        self._search: CrawlSearch | None = None
        """For crawls; None: it has not begun."""
        self._newest = Measures(False, 0.0)
        self._at = -SHARED_S
        self._lock = threading.Lock()

    def look(self, place: Place | None) -> Measures:
        """Return what there is now; without crawls if Redis gives no usable answer.

        Args:
            place: of any crawl; None: there is no Redis.
        """
        with self._lock:
            began = time.monotonic()
            if began - self._at >= SHARED_S:
                self._newest = Measures(False, 0.0)
                with suppress(FrontierError):
                    self._newest = self._read(place) if place else self._newest
                self._at = time.monotonic()
                self._newest = replace(self._newest, took_s=self._at - began)
            return self._newest

    @property
    def complete(self) -> bool:
        """Whether each crawl that was found has been read, and its workers for long enough to be judged."""
        return all(each.complete for each in self._crawls.values())

    def _read(self, place: Place) -> Measures:
        with as_unavailable():
            client = place.client
            if not self._only:
                self._find(place)
            self._look_at_some(client)
            info = info_of(client)
        rows = [self._crawls[name].row for name in sorted(self._crawls)]
        return Measures(
            True, 0.0, [row for row in rows if row.at],
            (info or {}).get("used_memory"), (info or {}).get("maxmemory"),
            None if info is None else not refusals(info),
        )  # fmt: skip

    def _look_at_some(self, client: Any) -> None:
        """Look at those that were not read for longest, as many as may be read at once, and at least one."""
        cost, until = 0.0, time.monotonic() + LONGEST_S
        for crawl in sorted(self._crawls.values(), key=lambda each: each.due)[:PART]:
            if cost and (cost + _cost_of(crawl) > MOST_COST or time.monotonic() >= until):
                break
            exists = self._look_at(crawl, client)
            cost += _cost_of(crawl)
            if not (exists or self._only):
                del self._crawls[crawl.name]

    def _look_at(self, crawl: MeasuredCrawl, client: Any) -> bool:
        try:
            with as_unavailable():
                return crawl.look(client)
        except FrontierError:
            if self._only or not in_cluster(client):
                raise
            crawl.missed()  # the nodes of the others may answer
            return True

    def _find(self, place: Place) -> None:
        if self._search is None:
            self._search = CrawlSearch()
            names = self._search.go_on(place.nodes)
        else:
            names = self._search.go_on(place.nodes, most_keys=MOST_KEYS)
        for name in names:
            if name not in self._crawls and len(self._crawls) < MOST_CRAWLS:
                self._crawls[name] = MeasuredCrawl(name)


def _cost_of(crawl: MeasuredCrawl) -> float:
    """Return what the last look at a crawl has cost, as estimated; to ask for the next one takes time."""
    measured = crawl.row.measured
    return CRAWL_COST + WORKER_COST * (measured.overview.census.workers if measured else 0)
