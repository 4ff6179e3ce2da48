"""Repairs a crawl whose keys were deleted or evicted: rebuilds derived keys, and records lost entries.

The lists, sorted sets and in-flight hashes hold the entries themselves. The indexes (`bands`, `rotation`,
`beats`, the counts) are derived from these keys, and can be rebuilt. A scan of all keys also finds lists that
are in no index.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from scrapy_dq.frontier.answers import Audited
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.frontier.scan import scan
from scrapy_dq.frontier.worker.log import LabelledLog

logger = logging.getLogger(__name__)
NEXT_S = 1.0
"""Pause between two audits."""
_TORN = "torn"
"""The damage after a script that was stopped by an error (lua/lib/stopped.lua)."""
_FINDINGS = {
    "gone": "requests that are gone: {}",
    "seen_gone": "the seen set is gone: pages are crawled again",
    "lists": "lists of requests that were in no index: {}",
    "partitions": "partitions that would not have been served: {}",
    "members": "workers that were missing among the members: {}",
}


async def audit(frontier: Frontier, epoch: str, run: int, *, repair: bool = True) -> Audited:
    """Rebuild derived keys, and record losses. This scans all keys of this Redis for the crawl's keys.

    Any number of workers may run audits at the same time.

    Args:
        repair: False: only report.

    Raises:
        FrontierError: the audit is incomplete, but the keys that it has rebuilt are valid.
    """
    total = Audited()
    async for part in scan(frontier.client, [frontier.name]):
        found = part.get(frontier.name)
        if found and (found.lists or found.workers):
            total += await frontier.audit(epoch, run, found.lists, found.workers, False, repair)
    total += await frontier.audit(epoch, run, [], [], True, repair)
    # An audit without repair counts the entries of unindexed lists as gone. They exist, so subtract them.
    return replace(total, gone=max(0, total.gone - total.bandless), bandless=0)


def findings_of(found: Audited) -> str:
    """Return the findings of an audit, in a sentence without a full stop."""
    counts = {name: getattr(found, name) for name in _FINDINGS}
    return ", ".join(_FINDINGS[name].format(n) for name, n in counts.items() if n) or "nothing is missing"


class Auditor:
    """Runs the audits that exchanges request, in the background, one at a time."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self._logger = LabelledLog(logger, frontier.name.label)
        self._task: asyncio.Task[None] | None = None
        self._warned = self._failed = False

    def observed(self, damage: str, epoch: str, run: int) -> None:
        """Start an audit, unless one runs already: an exchange has found keys that contradict the counts."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._audit(damage, epoch, run))

    def cancel(self) -> None:
        """Cancel the audit that is running."""
        if self._task is not None:
            self._task.cancel()

    async def _audit(self, damage: str, epoch: str, run: int) -> None:
        try:
            found = await audit(self._frontier, epoch, run)
        except FrontierError as error:
            level = logging.DEBUG if self._failed else logging.WARNING
            self._logger.log(
                level, "Keys of crawl %r contradict its counts (%s), and an audit has failed: %s. It will be "
                "repeated", self._frontier.crawl, damage, error,
            )  # fmt: skip
            self._failed = True
        else:
            if found != Audited() or not self._warned:
                self._warned = True
                level, cause = logging.ERROR, "Keys of crawl %r were deleted, evicted, or lost in a failover"
                if damage == _TORN and not (found.gone or found.seen_gone):
                    level, cause = logging.WARNING, "A script of crawl %r was stopped by an error"
                text = cause + " (%s): %s. %s"
                self._logger.log(
                    level, text, self._frontier.crawl, damage, findings_of(found), _consequence(found)
                )
        await asyncio.sleep(NEXT_S)


def _consequence(found: Audited) -> str:
    if found.gone or found.seen_gone:
        return (
            "The workers close with reason frontier_damaged when the rest is done. "
            "SCHEDULER_FLUSH_ON_START = True crawls everything again"
        )
    return "The indexes were rebuilt, and the crawl continues"
