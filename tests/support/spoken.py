"""A worker's protocol and its frontier. A test makes each exchange."""

from __future__ import annotations

import os
import time
from unittest.mock import Mock

from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.calls import Demand
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Identity
from scrapy_dq.frontier.worker.dialogue import exchange
from scrapy_dq.frontier.worker.identity import new_worker_id, own_identity
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.protocol import WorkerProtocol


class Spoken:
    """A worker that has only its protocol, but no task, no heartbeats and no pace."""

    def __init__(self, frontier: Frontier, crawl: Identity, horizon_s: float) -> None:
        self.frontier, self.crawl, self.identity = frontier, crawl, own_identity()
        self.listener = Mock()
        self.protocol = WorkerProtocol(
            frontier.crawl, self.listener, Outbox(), horizon_s,
            new_id=lambda: new_worker_id(self.identity), random_bytes=os.urandom,
            start_keys=frontier.start_keys,
        )  # fmt: skip

    async def join(self, new_epoch: str) -> Joined:
        joined = await self.frontier.join(self.protocol.id, self.identity, new_epoch, self.crawl)
        self.protocol.joined(joined, time.monotonic())
        return joined

    async def exchange(self, want: int) -> tuple[int, int]:
        """Make one exchange, or a rejoin if one is due. See `dialogue.exchange`."""
        return await exchange(self.frontier, self.protocol, self.identity, self.crawl, Demand(want))

    async def leave(self) -> None:
        of = self.protocol
        await self.frontier.leave(of.id, of.epoch, of.run, self.crawl.keep_seen)
