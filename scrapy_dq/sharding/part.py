"""A worker in one shard of a crawl with several shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.sharding.membership import PartMembership
from scrapy_dq.sharding.protocol import ShardProtocol

if TYPE_CHECKING:
    from scrapy_dq.sharding.worker import ShardedWorker


class Part(Worker):
    """A worker in one shard. For the arguments after the first two, see `Worker`.

    Args:
        whole: the worker in all shards, to which this part belongs.
        number: the number of the shard.
    """

    protocol_class = ShardProtocol
    membership_class = PartMembership
    protocol: ShardProtocol
    membership: PartMembership

    def __init__(self, whole: ShardedWorker, number: int, *args: Any, **options: Any) -> None:
        self._whole = whole
        self.number = number
        super().__init__(*args, capacity=lambda: whole.room_of(self), **options)

    @property
    def puts_outage(self) -> str:
        """Why this shard takes no puts without a parent now: its own outage, or an outage of home."""
        return self.outage or self._whole.home.outage

    def has_all(self, since: int) -> bool:
        """As in `Worker.has_all`. Home must also keep the run open for puts in other shards, or end it."""
        if not super().has_all(since):
            return False
        protocol = self.protocol
        ended = protocol.finished and protocol.composed > since and not protocol.under_way
        return protocol is not protocol.home or ended or self._whole.keeps_open

    def _exchanged(self) -> None:
        self.membership.beat()
        self._whole.exchanged(self)
