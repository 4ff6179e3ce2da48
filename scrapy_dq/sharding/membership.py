"""A worker as a member of one shard: it joins home's run, and leaves when home allows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from scrapy_dq.frontier.answers import Joined, RunState
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierRefused, Identity, RunOver
from scrapy_dq.frontier.wire import parse_joined
from scrapy_dq.frontier.worker import pace
from scrapy_dq.frontier.worker.membership import Membership
from scrapy_dq.sharding.protocol import ShardProtocol


class Home(NamedTuple):
    """The state of a crawl's home shard, which the other shards follow."""

    epoch: str
    run: int
    shards_exist: bool
    """All other shards have existed before. So a shard that is absent or has another epoch was lost."""
    run_state: Callable[[], Awaitable[RunState]]
    """Asks home for its present state."""


async def follow_home(
    frontier: Frontier, worker_id: str, identity: dict[str, Any], crawl: Identity, home: Home
) -> Joined:
    """Register a new worker in another shard, in the run of *home*.

    Raises:
        RunOver: that run ended during the call.
        FrontierRefused: for example, this shard is gone although home knows it, or this shard is in a later
            run than home.
    """
    name, replaces = f"crawl {frontier.crawl!r}", b""
    while True:
        reply = await frontier.call_join(
            worker_id, identity, home.epoch, crawl, home.run, home.shards_exist, replaces
        )
        if reply[0] == b"LOST":
            raise FrontierRefused(
                f"shard {frontier.name.number} of {name} is gone (FLUSHALL? an empty replica promoted?), "
                f"with its waiting requests. `scrapy dq clear --all` deletes the rest, so that the crawl "
                f"starts again"
            )
        if reply[0] not in (b"OTHER", b"LATER"):
            return parse_joined(reply)
        now = await home.run_state()
        if now.epoch != home.epoch:
            raise FrontierRefused(
                f"{name} was lost while this worker joined it (FLUSHALL? an empty replica promoted?): start "
                f"it again"
            )
        if now.run > home.run or not now.open:
            raise RunOver(f"run {home.run} of {name} has ended while this worker joined it: start again")
        if reply[0] == b"LATER":
            raise FrontierRefused(
                f"shard {frontier.name.number} of {name} is in run {int(reply[1])}, and home in run "
                f"{now.run}: the Redis of home was rolled back. `scrapy dq clear --all` deletes the crawl, "
                f"so that it starts again"
            )
        replaces = reply[1]


class PartMembership(Membership):
    """The membership in one shard."""

    _protocol: ShardProtocol
    home: Home | None = None
    """None: this shard is home, or home was not joined yet."""

    async def _register(self, new_epoch: str) -> Joined:
        if self.home is None:
            return await super()._register(new_epoch)
        return await follow_home(self._frontier, self._protocol.id, self._identity, self._crawl, self.home)

    async def _wait_for_more(self) -> None:
        protocol = self._protocol
        if protocol.waits_to_seed and protocol.home.over and not protocol.under_way:
            protocol.outbox.drop_parentless()  # the protocol with home has reported the loss of these puts
        elif protocol.waits_to_seed:  # these puts wait for an answer of home
            await asyncio.sleep(pace.IDLE_FIRST_S)
