"""Sends the calls of a worker's protocol to Redis, and passes it the answers, time and randomness."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from scrapy_dq.frontier.frontier import Frontier, Home, Identity
from scrapy_dq.frontier.model import MAX_LEASES, FrontierRefused, Joined
from scrapy_dq.frontier.worker.identity import new_worker_id
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.log import ShardLog, label_of
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.protocol import Rejoin, WorkerProtocol

logger = logging.getLogger(__name__)


class Driver:
    """One protocol and its frontier. `worker.py` decides when to exchange."""

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        identity: dict[str, Any],
        listener: Listener,
        rollback_horizon_s: float,
        spill_dir: str = "",
        limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
    ) -> None:
        self.frontier = frontier
        self.label = label_of(frontier.name, crawl.shards)
        """See `ShardLog`."""
        self._logger = ShardLog(logger, self.label)
        self.protocol = WorkerProtocol(
            frontier.name, listener, Outbox(spill_dir), rollback_horizon_s,
            new_id=lambda: new_worker_id(identity), random_bytes=os.urandom, limit=limit,
            start_keys=frontier.start_keys, has_start=bool(crawl.starts),
            label=self.label,
        )  # fmt: skip
        self._crawl = crawl
        self._identity = identity

    async def join(self, new_epoch: str, of: Home | None = None) -> Joined:
        """Register; see Frontier.join."""
        joined = await self.frontier.join(self.protocol.id, self._identity, new_epoch, self._crawl, of)
        self.protocol.joined(joined, time.monotonic())
        return joined

    async def leave(self, version: int = -1, kept: bool = False, began: bool = True, why: str = "") -> None:
        """Release all leases and unregister; see Frontier.leave."""
        of = self.protocol
        released, last = await self.frontier.leave(
            of.id, of.epoch, of.run, self._crawl.keep_seen, version, kept, began, why
        )
        self._logger.debug("Worker %s left: %d leases released, last worker: %s", of.id, released, last)

    async def exchange(
        self,
        want: int,
        ahead_s: float = 0.0,
        ahead: int = 0,
        most: int = MAX_LEASES,
        until: int | None = None,
    ) -> tuple[int, int]:
        """Make one exchange, or the rejoin that is due; return the numbers of requested and granted leases.

        The arguments are those of `WorkerProtocol.compose`.

        Raises:
            FrontierUnavailable: no answer; the next call sends the same bytes again.
        """
        call = self.protocol.compose(time.monotonic(), want, ahead_s, ahead, most, until)
        if call is None:
            return 0, 0
        if isinstance(call, Rejoin):
            answer = await self.frontier.rejoin(
                call.new_id, self._identity, call.old_id, call.epoch, call.run, call.held, call.parentless,
                call.seeding, self._crawl, call.registered,
            )  # fmt: skip
            self.protocol.rejoined(answer)
            return 0, 0
        try:
            receipt = await self.frontier.exchange(
                call.worker_id, call.epoch, call.run, call.seq, call.want, call.seeding, call.held,
                call.moves, call.terms, call.registered,
            )  # fmt: skip
        except FrontierRefused:
            self.protocol.refused()
            raise
        return self.protocol.received(receipt, time.monotonic())
