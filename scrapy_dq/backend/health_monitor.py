"""Repeats the checks of Redis during the crawl, because its configuration may be changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from scrapy_dq.backend import cluster, health

logger = logging.getLogger(__name__)
EVERY_S = 10.0


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
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Stop the checks."""
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            for node, client in {cluster.address_of(each): each for each in self._clients}.items():
                # The worker reports an outage; or INFO is not allowed.
                with suppress(RedisError, OSError, TimeoutError):
                    self._compare(node, await client.info())
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
