"""A member of a crawl that puts requests and leases none, for as long as a command runs."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from scrapy_dq.frontier.frontier import Frontier, Home, Identity
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import (
    FrontierError,
    FrontierRefused,
    FrontierUnavailable,
    Joined,
    Put,
    Status,
)
from scrapy_dq.frontier.worker import durability
from scrapy_dq.frontier.worker.driver import Driver
from scrapy_dq.frontier.worker.heartbeat import Heartbeat, Pulse
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.level import Level, spread
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.routing import shard_of

logger = logging.getLogger(__name__)
T = TypeVar("T")
PATIENCE_S = 60.0
"""How long to wait for a Redis that does not answer."""
LEAVING_S = 5.0


class _Part:
    """This process in one shard."""

    def __init__(self, driver: Driver, pulse: Pulse) -> None:
        self.driver, self._pulse = driver, pulse
        self.protocol = driver.protocol
        self.exchanging = asyncio.Lock()

    def beat(self) -> None:
        """Have a heartbeat under the present id."""
        self._pulse.start(self.protocol.id, self.protocol.epoch)


def _need_run(part: _Part) -> None:
    if part.protocol.lost or part.protocol.over:
        raise FrontierRefused("the crawl was deleted meanwhile, or replaced by another one: start again")


class Producer(Listener):
    """Joins, puts in order, and leaves the run open. While it is a member, the run does not finish.

    If it is killed, it is detected as dead like any worker, and no longer keeps the run open.
    """

    def __init__(
        self,
        frontiers: Sequence[Frontier],
        crawl: Identity,
        *,
        connect: Callable[[int], Any],
        ttl_s: float,
        rollback_horizon_s: float,
        dropped: Callable[[Put], None],
        durable: bool = True,
    ) -> None:
        """
        Args:
            frontiers: of all shards; the first one is home.
            connect: returns a client of `redis.asyncio` for the heartbeat in a shard; called in its thread.
            ttl_s: how long a worker may have no heartbeat before it counts as dead.
            rollback_horizon_s: puts confirmed within this time are repeated if Redis is rolled back.
            dropped: called with each put that was already seen.
            durable: do not leave before all puts are on Redis's disk; after an error, leave at once.
        """
        self.disturbed = False
        """Redis was rolled back, or this process was declared dead: some puts may be missing."""
        self.doubt = ""
        """Why it is not certain that it is, in a sentence without a full stop."""
        self._dropped = dropped
        self._durable = durable
        # It has no start(), and is not a worker that a supervisor has restarted.
        crawl = replace(crawl, starts="", restart_window_s=0.0)
        self._heartbeat = Heartbeat(ttl_s=ttl_s)
        self._parts = [
            _Part(
                Driver(frontier, crawl, own_identity(), self, rollback_horizon_s),
                self._heartbeat.pulse(
                    frontier, partial(connect, shard), observed=lambda silent, dead: None, home=shard == HOME
                ),
            )
            for shard, frontier in enumerate(frontiers)
        ]  # fmt: skip
        self._home = self._parts[HOME].protocol
        # Its own level of seeding is raised until it leaves.
        protocols = [part.protocol for part in self._parts]
        spread(protocols)
        self._level = Level(protocols)

    @property
    def members(self) -> list[tuple[Frontier, str]]:
        """The frontier of each shard, and the id under which this process is registered there."""
        return [(part.driver.frontier, part.protocol.id) for part in self._parts]

    @property
    def epoch(self) -> str:
        return self._home.epoch

    @property
    def run(self) -> int:
        return self._home.run

    @property
    def unconfirmed(self) -> int:
        """Number of puts that Redis has not confirmed."""
        return sum(part.protocol.outbox.puts for part in self._parts)

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[Joined]:
        """Be a member.

        Raises:
            FrontierError: the run is over, or differs; nothing was changed.
        """
        home, *others = self._parts
        joined = await self.patiently(lambda: home.driver.join(uuid.uuid4().hex))
        if joined.status is Status.FINISHED:
            raise FrontierRefused(
                "the run that DQ_RUN_NAME names is finished: another DQ_RUN_NAME starts a new run"
            )
        if joined.loss:
            logger.warning("%s", joined.loss)
        home.beat()
        try:
            await self._join_others(others, joined)
            yield joined
            if self._durable:
                await self._wait_until_durable()
        finally:
            try:
                if not self._home.lost:
                    # The next worker detects a member that was left behind as dead.
                    with suppress(FrontierError, asyncio.TimeoutError):
                        await asyncio.wait_for(self._leave(), LEAVING_S)
            finally:
                self._heartbeat.stop()

    async def _join_others(self, others: Sequence[_Part], joined: Joined) -> None:
        of = Home(joined.epoch, joined.run, joined.shards_exist, self._parts[HOME].driver.frontier.standing)
        for part in others:
            await self.patiently(partial(part.driver.join, "", of))
            part.beat()
        if others and not joined.shards_exist:
            await self.patiently(lambda: self._parts[HOME].driver.frontier.note_shards(*of[:2]))

    async def put(self, put: Put) -> None:
        """Add *put* to the outbox; send the outbox if it fills an exchange."""
        part = self._parts[shard_of(put.partition, put.token, len(self._parts))]
        part.protocol.outbox.append(put)
        if part.protocol.outbox.full:
            await self._hand_in(part)

    async def hand_in(self) -> None:
        """Hand in all that was put.

        Raises:
            FrontierError: the crawl is another one now, or Redis does not answer.
        """
        for part in self._parts:
            await self._hand_in_all(part)
        if len(self._parts) > 1:
            # If it has taken this process for dead, others may have finished the run over what is elsewhere.
            await self._hand_in(self._parts[HOME])
            await self._hand_in_all(self._parts[HOME])
            while not self._level.is_raised():  # it has registered again: the run has to be open
                await self._hand_in(self._parts[HOME])

    async def _hand_in_all(self, part: _Part) -> None:
        while part.protocol.outbox or part.protocol.under_way:
            await self._hand_in(part)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of *call*; while Redis does not answer, repeat it for at most PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        told = False
        while True:
            try:
                answer = await call()
                # redis-py sends in asyncio.wait_for, which before Python 3.12 forgets a Ctrl-C that comes as
                # the bytes are out. Python 3.10 does not cancel for it.
                if getattr(asyncio.current_task(), "cancelling", int)():
                    await asyncio.sleep(0)  # from Python 3.12 on it may be still to come: not in mid-leave
                    raise asyncio.CancelledError
                return answer
            except FrontierUnavailable as error:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    logger.warning("%s. Trying again for %.0f s", error, PATIENCE_S)
                    told = True
                await asyncio.sleep(0.5)

    async def _hand_in(self, part: _Part) -> None:
        if part.protocol is not self._home and not self._level.is_raised():
            await self._hand_in(self._parts[HOME])  # home was rolled back: first it hears of this process
        worker_id = part.protocol.id
        async with part.exchanging:
            _need_run(part)  # another coroutine, which had the lock, may have learned that it is gone
            await self.patiently(lambda: part.driver.exchange(0))
        _need_run(part)
        if part.protocol.id != worker_id:
            self.disturbed = True
            part.beat()

    async def _wait_until_durable(self) -> None:
        deadline = time.monotonic() + PATIENCE_S

        async def wait(part: _Part) -> str:
            async def verify() -> None:
                await self._hand_in(part)
                await self._hand_in_all(part)

            return await durability.wait_until_durable(part.driver.frontier, part.protocol, verify, deadline)

        doubt = await durability.first_doubt(map(wait, self._parts))
        await self.hand_in()
        self.doubt = doubt

    async def _leave(self) -> None:
        home, *others = self._parts
        for part in (*others, home):
            protocol = part.protocol
            if protocol.under_way:
                # Ctrl-C came before the answer: if the repeat is answered, it tells what was stored.
                with suppress(FrontierError):
                    await part.driver.exchange(0)
            if not (protocol.outbox or protocol.under_way):
                # Forget the ids that only this process could put again.
                protocol.retire_log()
                applied = -1
                while protocol.forgets and protocol.applied > applied:
                    applied = protocol.applied
                    await part.driver.exchange(0)
            await part.driver.leave()

    # Called by the protocol.

    def put_dropped(self, put: Put) -> None:
        self._dropped(put)

    def put_refused(self, put: Put) -> None:
        raise AssertionError("no request is put with a bound")

    def outbox_lost(self, parentless: bool) -> None:
        raise AssertionError("nothing of it is ever on disk")

    def rolled_back(self, parentless: bool) -> None:
        self.disturbed = True
