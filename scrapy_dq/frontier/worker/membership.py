"""A worker as a member of its crawl in one frontier: joining, being alive, leaving."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable, Identity, Status
from scrapy_dq.frontier.worker import durability
from scrapy_dq.frontier.worker.dialogue import Dialogue
from scrapy_dq.frontier.worker.heartbeat import Heartbeat, Pulse
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.log import LabelledLog
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.reclaim import Reclaimer

logger = logging.getLogger(__name__)
T = TypeVar("T")
JOIN_PATIENCE_S = 5.0
"""How long `join` repeats a call without an answer before it raises an error."""


class Membership:
    """The membership of one worker in one frontier.

    Args:
        dialogue: the dialogue of the worker with the frontier.
        identity: the identity of this process; see `identity.py`.
        connect: see `Pulse`.
    """

    def __init__(
        self,
        frontier: Frontier,
        dialogue: Dialogue,
        identity: dict[str, Any],
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        heartbeat: Heartbeat,
        connect: Callable[[], Any],
    ) -> None:
        self._frontier = frontier
        self.dialogue, self._protocol = dialogue, dialogue.protocol
        self._identity, self._crawl = identity, crawl
        self._logger = LabelledLog(logger, frontier.name.label)
        self.handed_in = False
        """Whether the worker is leaving and has stored all its moves, so that later puts would be lost."""
        self.gave_up = False
        """Whether a step of leaving has failed."""
        protocol = self._protocol
        self._reclaimer = Reclaimer(
            frontier, identity, options.max_attempts, lambda n: listener.counted(Count.RECLAIM, n)
        )
        self._beats_as = ""
        self._pulse = Pulse(
            heartbeat, frontier, connect, outage=dialogue.outage,
            observed=lambda silent, dead: self._reclaimer.observed(
                protocol.id, protocol.epoch, protocol.run, silent, dead
            ),
            commanded=dialogue.count_commands, counting=dialogue.counting,
        )  # fmt: skip

    async def join(self, new_epoch: str) -> Joined:
        """Join, reclaim the leases of dead workers of this machine, and start the heartbeat.

        Raises:
            FrontierUnavailable, FrontierRefused: the worker may be a member. If it is, other workers will
            declare it dead.
        """
        # A busy Redis may reply late. A repeat of the call does no harm, because it has the same worker id.
        joined = await self.with_retries(lambda: self._join(new_epoch))
        if joined.status is Status.OK:
            of_run = self._protocol.epoch, self._protocol.run
            # Ignore an error: if this method raised it, the worker would stay a member without a heartbeat.
            # The heartbeat will repeat the reclaim.
            with suppress(FrontierError):
                await self._reclaimer.reclaim_local(*of_run, by=self._protocol.id)
            self.beat()
        return joined

    async def _join(self, new_epoch: str) -> Joined:
        joined = await self._register(new_epoch)
        self._protocol.joined(joined, time.monotonic())
        return joined

    async def _register(self, new_epoch: str) -> Joined:
        return await self._frontier.join(self._protocol.id, self._identity, new_epoch, self._crawl)

    async def with_retries(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a joining call; without an answer, repeat it for JOIN_PATIENCE_S."""
        return await self.dialogue.retry_until(time.monotonic() + JOIN_PATIENCE_S, call)

    async def undo_join(self) -> None:
        """If `join` was answered, unregister: this worker could not join another shard."""
        if self._protocol.epoch:
            with suppress(FrontierError):  # other workers will declare this worker dead
                await self._leave(began=False)

    def beat(self) -> None:
        """Send heartbeats under the worker's present id, which a rejoin changes."""
        if self._beats_as != self._protocol.id:
            self._beats_as = self._protocol.id
            self._pulse.start(self._protocol.id, self._protocol.epoch)

    # Leaving.

    async def attempt(self, step: Callable[[float], Awaitable[None]], deadline: float) -> None:
        """Take a step of leaving (one of the methods below), unless an earlier step has failed."""
        if self.gave_up or not self.dialogue.begun:
            return
        try:
            await step(deadline)
        except FrontierError as error:
            self.gave_up = True
            outbox, from_no_page = self._protocol.outbox, ""
            if outbox.parentless:
                from_no_page = (
                    f". Requests that came from no page: {outbox.parentless}; start(), or the program that "
                    f"put them, has to put them again"
                )
            self._logger.error(
                "This worker could not leave within DQ_SHUTDOWN_GRACE: %s. Moves that were not stored: %d. "
                "Requests from pages are not lost: the pages are in flight under worker %s and will be "
                "crawled again%s",
                error, len(outbox), self._protocol.id, from_no_page,
            )  # fmt: skip

    async def hand_in(self, deadline: float) -> None:
        """Release the buffer, and send the outbox."""
        protocol, dialogue = self._protocol, self.dialogue
        protocol.empty_buffer()
        while protocol.has_unconfirmed and not dialogue.done:
            await dialogue.retry_until(deadline, dialogue.exchange)
            await self._wait_for_more()
            if protocol.has_unconfirmed and time.monotonic() >= deadline:
                raise FrontierUnavailable("Redis takes too long to store what this worker has found")
        self.handed_in = True

    async def _wait_for_more(self) -> None:
        """Wait until the next exchange can send more moves than the last one."""

    async def make_durable(self, deadline: float) -> None:
        """Wait, in an open run, until all puts are on Redis's disk, and then retire them."""

        async def verify() -> None:
            await self.dialogue.retry_until(deadline, self.dialogue.exchange)
            await self.hand_in(deadline)

        if self._protocol.finished or self.dialogue.done:
            return
        doubt = await self.wait_until_durable(verify, deadline)
        if doubt:
            self._logger.warning("%s", doubt)
        else:
            self._protocol.all_durable()

    async def leave(
        self, deadline: float, *, version: int = -1, kept: bool = False, reason: str = ""
    ) -> None:
        """Unregister, and release the remaining leases. *version*, *kept*, *reason*: see `Frontier.leave`."""
        protocol, dialogue = self._protocol, self.dialogue
        if not dialogue.done:
            protocol.log.retire_all()
            applied = -1
            while protocol.log.forgettable and protocol.applied > applied and time.monotonic() < deadline:
                applied = protocol.applied
                await dialogue.retry_until(deadline, dialogue.exchange)
        if not protocol.lost:
            await dialogue.retry_until(deadline, lambda: self._leave(version, kept, reason=reason))

    async def _leave(
        self, version: int = -1, kept: bool = False, began: bool = True, reason: str = ""
    ) -> None:
        protocol, keep_seen = self._protocol, self._crawl.keep_seen
        released, last = await self._frontier.leave(
            protocol.id, protocol.epoch, protocol.run, keep_seen, version, kept, began, reason
        )
        self._logger.debug("Worker %s left: %d leases released, last worker: %s", protocol.id, released, last)

    def end(self) -> None:
        """Drop all moves that were not stored, and stop reclaiming; the owner stops the heartbeat."""
        self.handed_in = True
        self._reclaimer.cancel()
        self.dialogue.end()

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """Wait for the disk of Redis; see `durability.py`."""
        return await durability.wait_until_durable(self._frontier, self._protocol, verify, deadline)
