"""Repeats the checks of Redis during the crawl, because its configuration may be changed."""

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
    """Logs what has become unsuitable since the last check: the eviction policy, the persistence."""

    def __init__(self, client: Any, target: str, *, embedded: bool) -> None:
        """
        Args:
            client: a `redis.asyncio` client.
            target: the address of Redis, for messages.
        """
        self._client = client
        self._target = target
        self._embedded = embedded
        self._known: set[str] | None = None
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Stop the checks."""
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            # The worker reports an outage; or INFO is not allowed.
            with suppress(RedisError, OSError, TimeoutError):
                self._compare(await self._client.info())
            await asyncio.sleep(EVERY_S)

    def _compare(self, info: dict[str, Any]) -> None:
        found = [
            finding
            for finding in health.check_requirements(info, self._target, embedded=self._embedded)
            if finding.level != health.OK
        ]
        for finding in found:
            if self._known is not None and finding.text not in self._known:
                level = logging.ERROR if finding.level == health.BAD else logging.WARNING
                logger.log(level, "Changed during the crawl: %s", finding.text)
        # What was found when the crawl was opened was logged then.
        self._known = {finding.text for finding in found}
