"""What runs next to a worker: the progress log, checks of Redis, shared stats, notices, and Retry-After."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler

from scrapy_dq.backend import cluster, health
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling.downloads import Downloads
from scrapy_dq.scheduling.engine_hooks import Settlement
from scrapy_dq.scheduling.notices import Notices
from scrapy_dq.scheduling.partitions import OneSlot, Slots
from scrapy_dq.scheduling.progress_log import Progress
from scrapy_dq.scheduling.retry_after import RetryAfter
from scrapy_dq.settings import Config
from scrapy_dq.stats.collector import SharedStats, StatsSharing

logger = logging.getLogger(__name__)
EVERY_S = 10.0
"""Between two checks of Redis."""


class SideTasks:
    """They start with a worker's first exchange, and end with `stop` and `leave`."""

    def __init__(
        self,
        crawler: Crawler,
        config: Config,
        frontiers: Sequence[Frontier],
        target: str,
        worker: Worker,
        slots: Slots | OneSlot,
        settlement: Settlement,
        downloads: Downloads,
    ) -> None:
        """
        Args:
            frontiers: of all shards.
            target: where Redis is, for messages.
        """
        frontier = frontiers[HOME]
        assert crawler.stats is not None
        if config.retry_backoff.retry_after and config.partition_by != "none":
            # Signals hold their receivers weakly.
            self._retry_after = RetryAfter(
                slots, downloads.partition_of, downloads.block, config.retry_backoff.retry_after,
                crawler.stats,
            )  # fmt: skip
            crawler.signals.connect(self._retry_after.downloaded, signals.response_downloaded)
        self._sharing: StatsSharing | None = None
        if isinstance(crawler.stats, SharedStats):
            self._sharing = StatsSharing(crawler.stats, frontier, worker)
        self._notices: Notices | None = None
        if config.notify_url:
            self._notices = Notices(config.notify_url, config.crawl, frontier, worker)
        every_s = crawler.settings.getfloat("LOGSTATS_INTERVAL")
        self._progress = Progress(every_s, lambda: worker.census, lambda: settlement.start_over)
        self._health = HealthMonitor([each.client for each in frontiers], target, embedded=config.embedded)

    def stop(self) -> None:
        """Stop the progress log and the health checks."""
        self._progress.stop()
        self._health.stop()

    async def leave(self, leaving: Awaitable[None]) -> None:
        """Await *leaving*, which unregisters the worker; share the last stats, and send the last notices."""
        if self._sharing is None:
            await leaving
        else:
            # Stats are sent before the next run can start; those that leaving itself counts, afterwards.
            await asyncio.gather(self._sharing.end(), leaving)
            await self._sharing.end()
        if self._notices is not None:
            await self._notices.end()


class HealthMonitor:
    """Logs what has become unsuitable since the last check: the eviction policy, the persistence."""

    def __init__(self, clients: Sequence[Any], target: str, *, embedded: bool) -> None:
        """
        Args:
            clients: of `redis.asyncio`, for the keys of each shard: in a cluster, several nodes.
            target: the address of Redis, for messages.
        """
        self._clients = clients
        self._target = target
        self._embedded = embedded
        self._known: dict[str, set[str]] = {}
        """By node, what was found there last."""
        self._stopped = False
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Stop the checks."""
        self._stopped = True
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            for node, client in {cluster.address_of(each): each for each in self._clients}.items():
                # The worker reports an outage; or INFO is not allowed.
                with suppress(FrontierUnavailable), as_unavailable():
                    self._compare(node, await client.info())
            if self._stopped:
                return  # before Python 3.12, asyncio.wait_for forgets a cancel that comes with an answer
            await asyncio.sleep(EVERY_S)

    def _compare(self, node: str, info: dict[str, Any]) -> None:
        found = [
            finding
            for finding in health.check_requirements(info, node or self._target, embedded=self._embedded)
            if finding.level != health.OK
        ]
        known = self._known.get(node)
        for finding in found:
            if known is not None and finding.text not in known:
                level = logging.ERROR if finding.level == health.BAD else logging.WARNING
                logger.log(level, "Changed during the crawl: %s", finding.text)
        # What was found when the crawl was opened was logged then.
        self._known[node] = {finding.text for finding in found}
