"""SharedStats: a stats collector with sums over all workers. A coroutine sends a worker's counts."""

from __future__ import annotations

import asyncio
import logging
import math
import operator
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.statscollectors import MemoryStatsCollector

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.wire import pack_tally
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.repeated import Repeated

logger = logging.getLogger(__name__)
LONGEST_NAME = 500
"""Maximum number of characters in the name of a shared stat."""
MAX_NAMES = 10_000
"""Maximum number of stats that one worker shares."""


class SharedStats(MemoryStatsCollector):
    """`STATS_CLASS`: with `scrapy_dq.Scheduler`, the crawl stores the stats of all its workers together.

    Counts of `inc_value` are summed. For `max_value` and `min_value`, the largest and the smallest number of
    all workers is kept. Values of `set_value` and `set_stats`, values that are not numbers, and a worker's
    stats beyond its first 10,000 are not shared. In the process, and in its log, the stats are this worker's
    own; `scrapy_dq.frontier.shared_stats(client, crawl)` reads the shared stats.

    A worker sends its counts every five seconds, and when the scheduler closes. Later counts, in handlers of
    `spider_closed`, are not shared. Under another scheduler nothing is shared.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        # Log records are also counted, in any thread. A signal handler may write one while its own thread
        # holds this lock, so the lock is reentrant.
        self._lock = threading.RLock()
        self._deltas: dict[tuple[str, str], int | float] = {}
        self._names: set[object] = set()
        self._warned = False

    def inc_value(self, key: str, count: int = 1, start: int = 0, spider: Spider | None = None) -> None:
        """Do the same as Scrapy's method, and share the count."""
        with self._lock:
            amount = count if key in self._stats else start + count
            super().inc_value(key, count, start)
            self._share("sum", key, amount, operator.add)

    def max_value(self, key: str, value: Any, spider: Spider | None = None) -> None:
        """Do the same as Scrapy's method, and share the number."""
        with self._lock:
            super().max_value(key, value)
            self._share("max", key, value, max)

    def min_value(self, key: str, value: Any, spider: Spider | None = None) -> None:
        """Do the same as Scrapy's method, and share the number."""
        with self._lock:
            super().min_value(key, value)
            self._share("min", key, value, min)

    def _share(self, kind: str, key: str, number: Any, joined: Callable[[Any, Any], Any]) -> None:
        """Add *number* to the changes of a stat that are sent next, if the stat is shared."""
        if not _shareable(key, number):
            return
        if key not in self._names:
            # One stat per URL, for example, would fill the memory of Redis and every view of the stats.
            if len(self._names) >= MAX_NAMES:
                if not self._warned:
                    self._warned = True
                    logger.warning(
                        "%d stats have been counted: further ones (such as %.100r) are not shared with other "
                        "workers",
                        MAX_NAMES, key,
                    )  # fmt: skip
                return
            self._names.add(key)
        before = self._deltas.get((kind, key))
        self._deltas[kind, key] = number if before is None else joined(before, number)

    def take_deltas(self, limit: int) -> list[tuple[str, str, int | float]]:
        """Return up to *limit* changes, as (kind, stat, number), and remove them."""
        with self._lock:
            taken = list(islice(self._deltas.items(), limit))
            for name, _ in taken:
                del self._deltas[name]
        return [(kind, stat, number) for (kind, stat), number in taken]


def _shareable(key: object, number: object) -> bool:
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        return False
    # Redis counts in 64 bits. A depth may be an int of 5,000 digits, which Python does not even print.
    if not (math.isfinite(number) if isinstance(number, float) else abs(number) < 2**63):
        return False
    # A name may contain text from a site or a payload, and the sums are kept for the whole run.
    if not isinstance(key, str) or len(key) > LONGEST_NAME:
        return False
    return key.isascii() or not any("\ud800" <= char <= "\udfff" for char in key)


class Tally:
    """Passes counts on once per turn of the event loop. In one turn, a page yields dozens of requests.

    Each request adds to two stats, and Scrapy examines the arguments of each call. Without this class,
    counting was 7 % of the cost of a put.
    """

    def __init__(self, inc_value: Callable[[str, int], Any]) -> None:
        """*inc_value*: the method of `crawler.stats`."""
        self._inc_value = inc_value
        self._counts: dict[tuple[str, ...], int] = {}
        """Counts, by the stats that are counted together."""

    def __call__(self, *names: str) -> None:
        """Add 1 to each of these stats, in the next turn."""
        if not self._counts:
            asyncio.get_running_loop().call_soon(self.flush)
        self._counts[names] = self._counts.get(names, 0) + 1

    def flush(self) -> None:
        """Pass on all counts now."""
        counts, self._counts = self._counts, {}
        for names, count in counts.items():
            for name in names:
                self._inc_value(name, count)


EVERY_S = 5.0
"""Seconds between two tallies: messages with the changed counts. A killed worker loses the counts since its
last tally."""
MAX_DELTAS = 500
"""Maximum number of changes in one tally, which bounds how long it blocks Redis."""
LAST_S = 1.0
"""Seconds that the end of a crawl waits for the last tally."""


class StatsSharing:
    """Sends a tally every EVERY_S, in one coroutine. A tally without a reply is repeated, and counts once.

    CRASH: the counts since the last answered tally are lost. Without an outage, this is at most one interval.
    """

    def __init__(self, stats: SharedStats, frontier: Frontier, worker: Worker) -> None:
        self._stats = stats
        self._frontier = frontier
        self._worker = worker
        self._source = worker.id  # stays the same after a rejoin, so that a repeat is recognised
        self._number = 0
        self._unanswered: bytes | None = None
        self._turn = asyncio.Lock()
        self._sharing = Repeated("Stats are not shared", self.share, EVERY_S)

    async def share(self) -> None:
        """Send all counts so far.

        Raises:
            FrontierError: the next call repeats the tally that got no reply.
        """
        async with self._turn:
            while True:
                if self._unanswered is None:
                    deltas = self._stats.take_deltas(MAX_DELTAS)
                    if not deltas:
                        return
                    self._number += 1
                    self._unanswered = pack_tally(deltas)
                worker = self._worker
                status = await self._frontier.tally(
                    self._source, worker.epoch, worker.run, self._number, self._unanswered
                )
                if status == "RESYNC":
                    return  # Redis was rolled back to before this run, so the worker has to rejoin first
                self._unanswered = None

    async def end(self) -> None:
        """Send a last tally, within LAST_S, and stop."""
        await self._sharing.call_once(LAST_S)
