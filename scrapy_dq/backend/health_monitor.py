"""Looks again, in mid-crawl, whether its Redis can still be trusted: settings change under a crawl."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from scrapy_dq.backend import health

logger = logging.getLogger(__name__)
EVERY_S = 10.0


class HealthMonitor:
    """Logs what has become unfit of a Redis since the last look: its eviction policy, its persistence."""

    def __init__(self, client: Any, target: str, *, embedded: bool) -> None:
        """
        Args:
            client: a `redis.asyncio` client.
            target: where it is, for messages.
        """
        self._client = client
        self._target = target
        self._embedded = embedded
        self._known: set[str] | None = None
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Look no more."""
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            # An outage is told of elsewhere; or INFO is not allowed.
            with suppress(RedisError, OSError, TimeoutError):
                self._compare(await self._client.info())
            await asyncio.sleep(EVERY_S)

    def _compare(self, info: dict[str, Any]) -> None:
        found = [
            finding
            for finding in health.needed(info, self._target, embedded=self._embedded)
            if finding.level != health.OK
        ]
        for finding in found:
            if self._known is not None and finding.text not in self._known:
                level = logging.ERROR if finding.level == health.BAD else logging.WARNING
                logger.log(level, "It has changed while the crawl goes on: %s", finding.text)
        # What was found when the crawl was opened has been told then.
        self._known = {finding.text for finding in found}
