"""A member of a crawl that puts requests and leases none, for as long as a command runs."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from scrapy_dq.frontier.frontier import Frontier, Identity
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
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.listener import Listener

logger = logging.getLogger(__name__)
T = TypeVar("T")
PATIENCE_S = 60.0
"""How long to wait for a Redis that does not answer."""
LEAVING_S = 5.0


class Producer(Listener):
    """Joins, puts in order, and leaves the run open. While it is a member, the run does not finish.

    If it is killed, it is detected as dead like any worker, and no longer keeps the run open.
    """

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        *,
        connect: Callable[[], Any],
        ttl_s: float,
        rollback_horizon_s: float,
        dropped: Callable[[Put], None],
        durable: bool = True,
    ) -> None:
        """
        Args:
            connect: returns a blocking `redis` client for the heartbeat thread.
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
        self._frontier = frontier
        # It has no start(), and is not a worker that a supervisor has restarted.
        crawl = replace(crawl, starts="", restart_window_s=0.0)
        self._driver = Driver(frontier, crawl, own_identity(), self, rollback_horizon_s)
        self._protocol = self._driver.protocol
        self._heartbeat = Heartbeat(
            frontier, connect, ttl_s=ttl_s, stall_timeout_s=300.0, observed=lambda silent, dead: None
        )

    @property
    def worker_id(self) -> str:
        return self._protocol.id

    @property
    def epoch(self) -> str:
        return self._protocol.epoch

    @property
    def run(self) -> int:
        return self._protocol.run

    @property
    def unconfirmed(self) -> int:
        """Number of puts that Redis has not confirmed."""
        return self._protocol.outbox.puts

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[Joined]:
        """Be a member.

        Raises:
            FrontierError: the run is over, or differs; nothing was changed.
        """
        joined = await self.patiently(lambda: self._driver.join(uuid.uuid4().hex))
        if joined.status is Status.FINISHED:
            raise FrontierRefused(
                "the run that DQ_RUN_NAME names is finished: another DQ_RUN_NAME starts a new run"
            )
        if joined.loss:
            logger.warning("%s", joined.loss)
        self._heartbeat.start(self._protocol.id, self._protocol.epoch)
        try:
            yield joined
            if self._durable:
                await self._wait_until_durable()
        finally:
            try:
                if not self._protocol.lost:
                    # The next worker detects a member that was left behind as dead.
                    with suppress(FrontierError, asyncio.TimeoutError):
                        await asyncio.wait_for(self._leave(), LEAVING_S)
            finally:
                self._heartbeat.stop()

    async def put(self, put: Put) -> None:
        """Add *put* to the outbox; send the outbox if it fills an exchange."""
        self._protocol.outbox.append(put)
        if self._protocol.outbox.full:
            await self._hand_in()

    async def hand_in(self) -> None:
        """Hand in all that was put.

        Raises:
            FrontierError: the crawl is another one now, or Redis does not answer.
        """
        while self._protocol.outbox or self._protocol.under_way:
            await self._hand_in()

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

    async def _hand_in(self) -> None:
        worker_id = self._protocol.id
        await self.patiently(lambda: self._driver.exchange(0))
        if self._protocol.lost or self._protocol.over:
            raise FrontierRefused("the crawl was deleted meanwhile, or replaced by another one: start again")
        if self._protocol.id != worker_id:
            self.disturbed = True
            self._heartbeat.start(self._protocol.id, self._protocol.epoch)

    async def _wait_until_durable(self) -> None:
        async def verify() -> None:
            await self._hand_in()
            await self.hand_in()

        deadline = time.monotonic() + PATIENCE_S
        self.doubt = await durability.wait_until_durable(self._frontier, self._protocol, verify, deadline)

    async def _leave(self) -> None:
        if self._protocol.under_way:
            # Ctrl-C came before the answer: if the repeat is answered, it tells what was stored.
            with suppress(FrontierError):
                await self._driver.exchange(0)
        if not (self._protocol.outbox or self._protocol.under_way):
            # Forget the ids that only this process could put again.
            self._protocol.retire_log()
            applied = -1
            while self._protocol.forgets and self._protocol.applied > applied:
                applied = self._protocol.applied
                await self._driver.exchange(0)
        await self._driver.leave()

    # Called by the protocol.

    def put_dropped(self, put: Put) -> None:
        self._dropped(put)

    def put_refused(self, put: Put) -> None:
        raise AssertionError("no request is put with a bound")

    def outbox_lost(self, parentless: bool) -> None:
        raise AssertionError("nothing of it is ever on disk")

    def rolled_back(self, parentless: bool) -> None:
        self.disturbed = True
