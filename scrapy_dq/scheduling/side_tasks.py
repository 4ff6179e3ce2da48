"""What runs beside a worker: progress log, health checks of Redis, shared stats, notices, Retry-After."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from scrapy import signals
from scrapy.crawler import Crawler

from scrapy_dq.backend.health_monitor import HealthMonitor
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling.downloads import Downloads
from scrapy_dq.scheduling.engine_hooks import Settlement
from scrapy_dq.scheduling.notices import Notices
from scrapy_dq.scheduling.partitions import OneSlot, Slots
from scrapy_dq.scheduling.progress_log import Progress
from scrapy_dq.scheduling.retry_after import RetryAfter
from scrapy_dq.settings import Config
from scrapy_dq.stats.collector import SharedStats, StatsSharing


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
