"""A worker: the outbox, the lease buffer, and the coroutine that exchanges them with the frontier.

The caller's side (put, take, ack, ...) never waits; all network I/O happens in `_run`, one exchange
at a time. docs/design.md has the protocol.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from scrapy_dq.frontier.frontier import Frontier, Identity, pack_moves
from scrapy_dq.frontier.heartbeat import Heartbeat
from scrapy_dq.frontier.identity import new_worker_id, own_identity
from scrapy_dq.frontier.leases import Leases
from scrapy_dq.frontier.model import (
    Ack,
    Bury,
    Census,
    FrontierUnavailable,
    Joined,
    Lease,
    Move,
    Put,
    Receipt,
    Release,
    Status,
)
from scrapy_dq.frontier.outage import Outage
from scrapy_dq.frontier.outbox import Outbox, PutLog
from scrapy_dq.frontier.pace import Pace
from scrapy_dq.frontier.reclaim import Reclaimer

logger = logging.getLogger(__name__)


class Listener(Protocol):
    """What a worker tells its owner; called on the event loop, must neither block nor raise."""

    def leases_arrived(self) -> None: ...
    def run_finished(self) -> None: ...
    def frontier_lost(self) -> None: ...
    def put_dropped(self, put: Put) -> None: ...
    def counted(self, what: str, amount: float) -> None:
        """*what*: exchange, seconds, error, rejoin, reclaim, or a move's name once it is confirmed."""


@dataclass(frozen=True)
class WorkerOptions:
    """Times in seconds; docs/settings.md says what each is for."""

    ttl_s: float = 30.0
    stall_timeout_s: float = 300.0
    rollback_horizon_s: float = 10.0
    max_attempts: int = 3


@dataclass(frozen=True)
class _Sent:
    """An exchange under way: frozen until it is answered, so that a repeat is the same bytes."""

    prefix: list[Move]
    want: int
    seeding: int
    held: int
    moves: bytes
    sent_at: float


@dataclass(frozen=True)
class _Rejoin:
    """A rejoin under way: frozen until it is answered, for the same reason."""

    new_id: str
    held: list[bytes]
    parentless: bool


class Worker:
    """One worker's side of the protocol, on the running event loop."""

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        connect: Callable[[], Any],
        capacity: Callable[[], int],
    ) -> None:
        """
        Args:
            connect: makes a blocking `redis` client for the heartbeat thread.
            capacity: how many leases could run here at once; 0 (paused, closing) gives the buffer back.
        """
        self._frontier = frontier
        self._crawl = crawl
        self._listener = listener
        self._capacity = capacity
        self._identity = own_identity()
        self.id = new_worker_id(self._identity)
        self.epoch = ""
        self.run = 0
        self.census = Census()
        self.seeding = 1
        self.finished = False
        self.lost = False
        self._run_is_over = False
        self._seq = 1
        self._outbox = Outbox()
        self._log = PutLog(options.rollback_horizon_s)
        self._leases = Leases()
        self._sent: _Sent | None = None
        self._rejoin: _Rejoin | None = None
        self._pace = Pace()
        self._outage = Outage()
        self._kick = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._reclaimer = Reclaimer(
            frontier, self._identity, options.max_attempts, lambda n: listener.counted("reclaim", n)
        )
        self._heartbeat = Heartbeat(
            frontier,
            connect,
            ttl_s=options.ttl_s,
            stall_timeout_s=options.stall_timeout_s,
            observed=lambda silent, dead: self._reclaimer.observed(
                self.id, self.epoch, self.run, silent, dead
            ),
        )

    # The caller's side: nothing here waits.

    def put(self, put: Put) -> bool:
        """Take a new entry into the outbox; False if the run is over for good and it was dropped."""
        if self._run_is_over:
            return False
        self.finished = False
        self._append(put)
        return True

    def take(self) -> Lease | None:
        """Hand out the next lease; None if there is none at the moment."""
        lease = self._leases.take()
        if lease is not None:
            self._pace.taken()
            if not self._leases.buffered:
                self._kick.set()
        elif not self._pace.hungry:
            self._pace.hungry = True
            self._kick.set()
        return lease

    def ack(self, entry_id: bytes) -> None:
        """The work on a lease is done, and all its children were put."""
        self._settle(Ack(entry_id))

    def release(self, entry_id: bytes) -> None:
        """Give a lease back unspent."""
        self._settle(Release(entry_id))

    def bury(self, entry_id: bytes, reason: str) -> None:
        """Set a lease aside as a dead letter."""
        self._settle(Bury(entry_id, reason))

    def seeded(self, *, failed: bool = False) -> None:
        """Note that `start()` is exhausted, or raised."""
        if self.seeding == 1:
            self.seeding = 2 if failed else 0
            self._kick.set()

    @property
    def pending(self) -> bool:
        """Something of the whole crawl is not done yet, as far as this worker knows."""
        if self._run_is_over:
            return False
        if self.seeding == 2 and not self._outbox and not self._leases:
            # Our start() failed: the run must not be marked finished, so that the next crawl repeats it.
            return bool(self.census.waiting or self.census.in_flight or self.census.seeding)
        return not self.finished or bool(self._outbox)

    @property
    def unconfirmed(self) -> int:
        """Moves that Redis has not confirmed."""
        return len(self._outbox)

    def _settle(self, move: Ack | Release | Bury) -> None:
        if self._leases.settle(move):
            self._append(move)

    def _append(self, move: Move) -> None:
        first = not self._outbox
        self._outbox.append(move)
        if first:
            self._pace.first_move()
        if first or self._pace.hungry or self._outbox.full:
            self._kick.set()

    # Joining and leaving.

    async def start(self, new_epoch: str) -> Joined:
        """Join the crawl, take back what dead workers of this machine held, and begin to exchange.

        Raises:
            FrontierUnavailable, FrontierRefused: nothing was started.
        """
        joined = await self._frontier.join(self.id, self._identity, new_epoch, self._crawl)
        self.epoch, self.run, self.census = joined.epoch, joined.run, joined.census
        if joined.status is Status.FINISHED:
            self.finished = self._run_is_over = True
            return joined
        await self._reclaimer.reclaim_local(self.epoch, self.run)
        self._heartbeat.start(self.id, self.epoch)
        self._task = asyncio.create_task(self._exchange_on(), name=f"scrapy-dq {self.id}")
        return joined

    async def stop(self, deadline_s: float) -> None:
        """Give the buffer back, hand in the outbox, and leave; give up after *deadline_s* of trying.

        What could not be handed in stays in flight under this worker's id, and is run again.
        """
        self._closing = True
        self._kick.set()
        if self._task is None:
            return
        await self._task
        deadline = time.monotonic() + deadline_s
        try:
            self._release_buffer()
            while (self._outbox or self._sent or self._rejoin) and not (self.lost or self._run_is_over):
                await self._until(deadline, self._exchange)
            if not self.lost:
                await self._until(deadline, self._leave)
        except FrontierUnavailable as error:
            logger.error(
                "Redis could not be reached for %.0f s while closing (%s): %d moves were not stored. "
                "Nothing is lost: their requests are in flight under worker %s and will be run again",
                deadline_s,
                error,
                len(self._outbox),
                self.id,
            )
        finally:
            self._heartbeat.stop()
            self._reclaimer.cancel()

    async def _leave(self) -> None:
        released, last = await self._frontier.leave(self.id, self.epoch, self.run, self._crawl.keep_seen)
        logger.debug("Worker %s left: %d leases released, nobody left: %s", self.id, released, last)

    async def _until(self, deadline: float, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await call()
            except FrontierUnavailable:
                self._listener.counted("error", 1)
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(self._outage.delay_s())

    def _release_buffer(self) -> None:
        for entry_id in self._leases.empty_buffer():
            self.release(entry_id)

    # The exchange.

    async def _exchange_on(self) -> None:
        while not (self._closing or self.lost or self._run_is_over):
            await self._until_due()
            if self._closing:
                break
            try:
                if self._capacity() <= 0:
                    self._release_buffer()
                await self._exchange()
            except FrontierUnavailable as error:
                self._listener.counted("error", 1)
                self._outage.began(error, len(self._outbox))
                await asyncio.sleep(self._outage.delay_s())
            except Exception:
                # Never end silently: without this coroutine the crawl would hang for ever.
                logger.exception("Unexpected error in an exchange; trying again")
                await asyncio.sleep(self._outage.delay_s())

    async def _until_due(self) -> None:
        while not self._closing:
            due = self._pace.due_at(
                self._wants(), len(self._outbox), self._outbox.full, self.census.waiting
            )
            pause = due - time.monotonic()
            if pause <= 0:
                return
            self._kick.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._kick.wait(), pause)

    def _wants(self) -> int:
        capacity = 0 if self._closing else self._capacity()
        return self._pace.want(capacity, self._leases.running, self._leases.buffered)

    async def _exchange(self) -> None:
        if self._rejoin is not None:
            await self._register_anew(self._rejoin)
            return
        if self._sent is None:
            self._sent = self._freeze()
        sent = self._sent
        began = time.monotonic()
        receipt = await self._frontier.exchange(
            self.id, self.epoch, self.run, self._seq, sent.want, sent.seeding, sent.held, sent.moves
        )
        now = time.monotonic()
        self._sent = None
        self._pace.answered(began, now)
        self._outage.ended(len(self._outbox))
        self._listener.counted("exchange", 1)
        self._listener.counted("seconds", now - began)
        if receipt.status is Status.LOST:
            self._lose()
        elif receipt.status is Status.RESYNC:
            self._begin_rejoin()
        elif receipt.applied:
            self._accept(sent, receipt, now)
            if receipt.status is Status.FINISHED and not self._outbox:
                self._finish()
        elif sent.prefix:
            self._begin_rejoin()
        elif not self._outbox:
            self._finish()

    def _freeze(self) -> _Sent:
        prefix = self._outbox.prefix()
        # A parentless put beyond the prefix is known to nobody else: until it is handed in, we seed.
        beyond = self._outbox.parentless - sum(isinstance(m, Put) and m.parent is None for m in prefix)
        seeding = self.seeding or int(beyond > 0)
        return _Sent(prefix, self._wants(), seeding, len(self._leases), pack_moves(prefix), time.monotonic())

    def _accept(self, sent: _Sent, receipt: Receipt, now: float) -> None:
        self.finished = False
        self.census = receipt.census
        self._outbox.confirm(sent.prefix)
        self._seq += 1
        self._log.retire(sent.sent_at)
        for position in receipt.dropped:
            self._listener.put_dropped(sent.prefix[position])  # type: ignore[arg-type]
        for move in sent.prefix:
            self._listener.counted(type(move).__name__.lower(), 1)
            if isinstance(move, Put):
                self._log.add(move, now)
            else:
                self._leases.confirmed(move.entry_id)
        for lease in receipt.leases:
            self._leases.grant(lease)
        self._pace.granted(sent.want, len(receipt.leases))
        if receipt.leases:
            self._listener.leases_arrived()
        elif not self.pending:
            self._listener.run_finished()

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            self._listener.run_finished()

    # Faults.

    def _begin_rejoin(self) -> None:
        parentless = self._outbox.parentless > 0
        self._rejoin = _Rejoin(new_worker_id(self._identity), self._leases.held(), parentless)
        logger.info("Worker %s is out of step with the frontier: it rejoins", self.id)

    async def _register_anew(self, rejoin: _Rejoin) -> None:
        """Register under a new id, keep what is still ours, and queue the log again."""
        answer = await self._frontier.rejoin(
            rejoin.new_id, self._identity, self.id, self.epoch, self.run, rejoin.held, rejoin.parentless,
            self._crawl.keep_seen,
        )  # fmt: skip
        self._rejoin = None
        self._outage.ended(len(self._outbox))
        self._listener.counted("rejoin", 1)
        if answer.status is Status.LOST:
            self._lose()
            return
        self._leases.keep(answer.owned)
        if answer.status is Status.FINISHED:
            if self._outbox.parentless and not rejoin.parentless:
                self._begin_rejoin()  # it came while this rejoin was under way, and opens the run again
            else:
                self._close_run()
            return
        logger.info("Worker %s goes on as %s with %d leases", self.id, rejoin.new_id, len(answer.owned))
        self.id, self.run = rejoin.new_id, answer.run
        self._outbox.replay(self._log.take(), answer.owned)
        self._seq = 1
        self._heartbeat.start(self.id, self.epoch)

    def _close_run(self) -> None:
        dropped = sum(isinstance(move, Put) for move in self._outbox)
        if dropped:
            logger.error(
                "The run is over, finished by others while this worker was away: %d requests that it found "
                "late are not stored; the next run finds them again",
                dropped,
            )
        self._run_is_over = True
        self._outbox = Outbox()
        self._finish()

    def _lose(self) -> None:
        self.lost = True
        logger.critical(
            "The frontier of crawl %r is gone, or another one has taken its place (FLUSHALL? an empty "
            "replica promoted? a Redis without persistence restarted?). This worker closes with reason "
            "frontier_lost; the next crawl begins again from start()",
            self._frontier.crawl,
        )
        self._listener.frontier_lost()
