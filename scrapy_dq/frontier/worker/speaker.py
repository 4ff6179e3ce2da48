"""Speaks with the frontier for a worker: at the right pace, through outages, from joining to leaving."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import MAX_LEASES, FrontierError, FrontierUnavailable, Hold, Joined, Status
from scrapy_dq.frontier.worker import durability
from scrapy_dq.frontier.worker.audit import Auditor
from scrapy_dq.frontier.worker.driver import Driver
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.outage import Outage
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.reclaim import Reclaimer

logger = logging.getLogger(__name__)
T = TypeVar("T")
JOIN_PATIENCE_S = 5.0
"""How long a start that gets no answer is repeated before it gives up."""


@dataclass(frozen=True)
class WorkerOptions:
    """Times in seconds; docs/settings.md says what each is for."""

    ttl_s: float = 30.0
    stall_timeout_s: float = 300.0
    rollback_horizon_s: float = 10.0
    max_attempts: int = 3
    most_of_a_partition: int = MAX_LEASES
    """How many leases of one partition can run here at once."""
    spill_dir: str = ""
    """Folder for moves that are more than memory should hold; "": the system's for temporary files."""


class Speaker:
    """Makes one worker's exchanges, and keeps it registered and alive in the eyes of others.

    All network I/O of a worker happens here and in the heartbeat's thread.
    """

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        connect: Callable[[], Any],
        capacity: Callable[[], int],
        limit: Callable[[bytes], int],
        pace: Pace,
    ) -> None:
        """The arguments are those of Worker."""
        identity = own_identity()
        self._frontier = frontier
        self._listener = listener
        self._capacity = capacity
        self._driver = Driver(
            frontier, crawl, identity, listener, options.rollback_horizon_s, options.spill_dir, limit
        )
        self.protocol = self._driver.protocol
        self.pace = pace
        self.outage = Outage()
        self._most = options.most_of_a_partition
        self._kick = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reclaimer = Reclaimer(
            frontier, identity, options.max_attempts, lambda n: listener.counted("reclaim", n)
        )
        self._auditor = Auditor(frontier)
        protocol = self.protocol
        self._heartbeat = Heartbeat(
            frontier,
            connect,
            ttl_s=options.ttl_s,
            stall_timeout_s=options.stall_timeout_s,
            observed=lambda silent, dead: self._reclaimer.observed(
                protocol.id, protocol.epoch, protocol.run, silent, dead
            ),
            told=self._told,
        )

    @property
    def on_hold(self) -> bool:
        """No worker of the crawl gets a lease, because somebody said so."""
        return self.protocol.words.hold is not Hold.NONE

    def kick(self) -> None:
        """Ask the pace anew when the next exchange is due."""
        self._kick.set()

    def _told(self, words: int) -> None:
        # The heartbeat's call. An exchange brings what it was; one that looks in often has it already.
        if words != self.protocol.words.count:
            self.pace.called()
            self._kick.set()

    async def start(self, new_epoch: str) -> Joined:
        """Join the crawl, take back what dead workers of this machine held, and begin to exchange.

        Raises:
            FrontierUnavailable, FrontierRefused: nothing was started.
        """
        # Idempotent by its id: a reply that a busy Redis is late with is no reason to refuse.
        deadline = time.monotonic() + JOIN_PATIENCE_S
        joined = await self._until(deadline, lambda: self._driver.join(new_epoch))
        if joined.status is Status.FINISHED:
            return joined
        with suppress(FrontierError):  # the heartbeat does it again; to raise would leave a ghost behind
            await self._reclaimer.reclaim_local(self.protocol.epoch, self.protocol.run, by=self.protocol.id)
        self._heartbeat.start(self.protocol.id, self.protocol.epoch)
        self._task = asyncio.create_task(self._speak_on(), name=f"scrapy-dq {self.protocol.id}")
        return joined

    async def stop(self, deadline_s: float, durable: bool | None) -> None:
        """See Worker.stop."""
        deadline = time.monotonic() + deadline_s
        self._closing.set()
        self._kick.set()
        if self._task is None:
            return
        await self._task
        protocol = self.protocol
        try:
            self.protocol.empty_buffer()
            await self._hand_in(deadline)
            durable = protocol.vouches if durable is None else durable
            if durable and not (protocol.finished or protocol.over or protocol.lost):
                await self._leave_durable(deadline)
            if not (protocol.lost or protocol.over):
                protocol.retire_log()
                applied = -1
                while protocol.forgets and protocol.applied > applied and time.monotonic() < deadline:
                    applied = protocol.applied
                    await self._until(deadline, self._speak)
            if not protocol.lost:
                await self._until(deadline, self._driver.leave)
        except FrontierError as error:
            logger.error(
                "%s, for the %.0f s that closing may take: %d moves were not stored. Nothing is lost of what "
                "came from pages: they are in flight under worker %s and will be run again. %d requests came "
                "from start() or engine.crawl(): the next crawl's start() has to bring them back",
                error,
                deadline_s,
                len(protocol.outbox),
                self.protocol.id,
                protocol.outbox.parentless,
            )
        finally:
            self._heartbeat.stop()
            self._reclaimer.cancel()
            self._auditor.cancel()
            protocol.outbox.clear()

    async def _hand_in(self, deadline: float) -> None:
        protocol = self.protocol
        while protocol.unsaid and not (protocol.lost or protocol.over):
            await self._until(deadline, self._speak)
            if protocol.unsaid and time.monotonic() >= deadline:
                raise FrontierUnavailable("Redis takes too long for what this worker has found")

    async def _leave_durable(self, deadline: float) -> None:
        async def verify() -> None:
            await self._until(deadline, self._speak)
            await self._hand_in(deadline)

        doubt = await self.wait_until_durable(verify, deadline)
        if doubt:
            logger.warning("%s", doubt)

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """See `durability.py`."""
        return await durability.wait_until_durable(self._frontier, self.protocol, verify, deadline)

    async def _until(self, deadline: float, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await call()
            except FrontierUnavailable as error:
                self.outage.noted(error)
                self._listener.counted("error", 1)
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(min(self.outage.delay_s(), max(0.0, deadline - time.monotonic())))
            else:
                self.outage.noted(None)
                return answer

    async def _speak_on(self) -> None:
        while not (self._closing.is_set() or self.protocol.lost or self.protocol.over):
            began = time.monotonic()
            try:
                await self._until_due()
                if self._closing.is_set():
                    break
                if self._capacity() <= 0:
                    self.protocol.empty_buffer()
                await self._speak()
            except FrontierError as error:
                # A callback that blocks the loop makes every timeout late: the answer may have been there.
                blocked = self._heartbeat.blocked_since(began)
                if not blocked:
                    self.outage.began(error)
                self._listener.counted("error", 1)
                if not blocked:
                    await self._rest()
            except Exception:
                # Never end silently: without this coroutine the crawl would hang for ever.
                logger.exception("Unexpected error in an exchange; trying again")
                await self._rest()

    async def _rest(self) -> None:
        """Wait before the next try; closing ends it."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), self.outage.delay_s())

    async def _until_due(self) -> None:
        outbox = self.protocol.outbox
        while not self._closing.is_set():
            moves = len(outbox) + len(self.protocol.notes)
            due = self.pace.due_at(self._wants(), moves, outbox.full, self.protocol.census.waiting)
            pause = due - time.monotonic()
            if pause <= 0:
                return
            self._kick.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._kick.wait(), pause)

    def _wants(self) -> int:
        capacity = 0 if self._closing.is_set() or self.on_hold else self._capacity()
        leases, appended = self.protocol.leases, self.protocol.outbox.appended
        return self.pace.want(capacity, leases.running, leases.buffered, leases.usable, appended)

    async def _speak(self) -> None:
        began, registered, kept = time.monotonic(), self.protocol.id, len(self.protocol.outbox)
        pace, protocol = self.pace, self.protocol
        most = self._most + pace.ahead
        wanted, granted = await self._driver.exchange(
            self._wants(), ahead_s=pace.ahead_s, ahead=pace.ahead, most=most, until=pace.until
        )
        now = time.monotonic()
        # Others that seed are counted only while nothing waits; what is fed comes without a word.
        quiet = protocol.census.only_delayed and not (
            protocol.seeding or protocol.listening or protocol.outbox
        )
        pace.expect(protocol.next_due_s, quiet=quiet)
        self.pace.answered(began, now)
        self.pace.granted(wanted, granted, protocol.outbox.confirmed)
        self.outage.ended(kept)
        if protocol.damage:
            self._auditor.observed(protocol.damage, protocol.epoch, protocol.run)
        self._listener.counted("exchange", 1)
        self._listener.counted("seconds", now - began)
        if self.protocol.id != registered:
            self._heartbeat.start(self.protocol.id, self.protocol.epoch)
