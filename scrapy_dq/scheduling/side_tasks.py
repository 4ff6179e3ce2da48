"""Looks at intervals whether Redis is still suitable for the crawl."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_dq.backend import cluster, health
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.repeated import Repeated

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)
EVERY_S = 10.0
"""Between two checks of Redis."""


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
        # The findings of the first check were logged when the crawl was opened.
        self._checks = Repeated("Redis is not checked", self._check, EVERY_S, first_s=0.0)
        self.stop = self._checks.stop

    async def _check(self) -> None:
        for node, client in {cluster.address_of(each): each for each in self._clients}.items():
            # The worker reports an outage; or INFO is not allowed.
            with suppress(FrontierUnavailable), as_unavailable():
                self._compare(node, await client.info())

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
        self._known[node] = {finding.text for finding in found}
