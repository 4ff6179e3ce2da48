"""A worker's dialogue with its frontier: the moves and leases, and the coroutine that exchanges them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from scrapy_dq.frontier.calls import Demand, Rejoin
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import (
    FrontierError,
    FrontierRefused,
    FrontierUnavailable,
    Identity,
    Lease,
    Note,
    Sent,
)
from scrapy_dq.frontier.moves import Bury, Ending, Move, Release, Return
from scrapy_dq.frontier.worker.audit import Auditor
from scrapy_dq.frontier.worker.counting import Counting
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.log import LabelledLog
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.outage import Outage
from scrapy_dq.frontier.worker.pace import Alarm, Pace
from scrapy_dq.frontier.worker.protocol import WorkerProtocol

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def exchange(
    frontier: Frontier, protocol: WorkerProtocol, identity: dict[str, Any], crawl: Identity, demand: Demand
) -> tuple[int, int]:
    """Make one exchange, or the rejoin that is due; return the numbers of requested and granted leases.

    Raises:
        FrontierUnavailable, FrontierRefused: no usable answer. The next call sends the same bytes again.
    """
    call = protocol.compose(time.monotonic(), demand)
    if call is None:
        return 0, 0
    if isinstance(call, Rejoin):
        protocol.rejoined(await frontier.rejoin(call, identity, crawl))
        return 0, 0
    try:
        receipt = await frontier.exchange(call)
    except FrontierRefused:
        protocol.refused()
        raise
    return protocol.received(receipt, time.monotonic())


class Dialogue:
    """The dialogue of one worker with one frontier, on the running event loop. Only coroutine methods wait.

    This class does network I/O only in exchanges and audits; `membership.py` does the rest.
    """

    def __init__(
        self,
        frontier: Frontier,
        protocol: WorkerProtocol,
        identity: dict[str, Any],
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        heartbeat: Heartbeat,
        capacity: Callable[[], int],
        pace: Pace,
        exchanged: Callable[[], None],
    ) -> None:
        """
        Args:
            identity: the identity of this process; see `identity.py`.
            capacity: returns how many leases of this frontier can run here. While it returns 0, because the
                owner is paused or closing, the dialogue releases the buffer.
            exchanged: called after each answered exchange or rejoin.
        """
        self._frontier = frontier
        self.protocol = protocol
        self._identity, self._crawl = identity, crawl
        self._listener = listener
        self._capacity = capacity
        self._exchanged = exchanged
        self.leases = protocol.leases
        self.pace = pace
        self._logger = LabelledLog(logger, frontier.name.label)
        self._heartbeat = heartbeat
        self.outage = Outage(options.outage_note, label=frontier.name.label)
        heartbeat.outages.append(self.outage)
        self.counting = Counting()
        self._most = options.max_per_partition
        self._alarm = Alarm()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._auditor = Auditor(frontier)

    @property
    def done(self) -> bool:
        """Whether there will be no more exchanges, because the run has ended or the frontier is gone."""
        return self.protocol.over or self.protocol.lost

    @property
    def begun(self) -> bool:
        return self._task is not None

    # Moves and leases. None of these methods waits.

    def append(self, move: Move) -> None:
        """Add a move to the outbox."""
        outbox = self.protocol.outbox
        first = not outbox
        outbox.append(move)
        if first:
            self.pace.first_move()
        if first or self.pace.starved or outbox.full:
            self.kick()

    def settled(self, move: Ending | Return) -> Ending | Return | None:
        """Record that a lease ends. Return the move to append, now or later; None: append nothing."""
        leases, entry_id = self.leases, move.entry_id
        if entry_id in leases.forfeited or self.protocol.drops_puts:
            move = Release(entry_id)
        elif entry_id in leases.never_sent and not isinstance(move, Bury | Return):
            move.never_sent = True
        leases.forfeited.discard(entry_id)
        leases.never_sent.discard(entry_id)
        return move if self.leases.settle(move) else None

    def take(self) -> Lease | None:
        """Return the next lease to run; None if no lease can run now."""
        if self.leases.buffered:
            now = time.monotonic()
            lease = self.leases.take(now)
            if lease is not None:
                self.pace.taken()
                if not self.leases.buffered:
                    self.kick()
                return lease
            send_at = self.leases.next_send_at(now)
            if send_at is not None:
                self._wake_at(send_at - now)
        return None

    def lease_missed(self) -> None:
        """Record that the owner asked for a lease and got none."""
        if self.pace.lease_missed(self.protocol.outbox.appended):
            self.kick()

    def sent(self, entry_id: bytes, at: float | None) -> None:
        """Record that a request was sent at the time *at*, or never will be, if *at* is None.

        Only leases with a time for sending are recorded, once each.
        """
        partition = self.leases.sent(entry_id, at)
        if partition is not None:
            self.note(Sent(partition, entry_id, at))
            send_at = self.leases.send_at_of(partition)
            if send_at is not None:
                self._wake_at(max(0.0, send_at - time.monotonic()))

    def never_sent(self, entry_id: bytes) -> None:
        """Record that the request of a lease will never be sent."""
        self.leases.never_sent.add(entry_id)
        self.sent(entry_id, None)

    def downloaded(self, entry_id: bytes) -> None:
        """Record that a lease no longer counts against its partition's limit; settling it implies this."""
        self.leases.downloaded(entry_id)
        if self.pace.starved:
            # Exchanges brought no leases, because there was no room for them, and so became rare. Now there
            # is room.
            self.pace.room_appeared()
            self.kick()

    def held_up(self, entry_id: bytes) -> None:
        """Record that a download waits in this process. Its lease no longer counts against the limit.

        But a lease with a time for sending counts until its request is sent, because the delay of the next
        lease begins when this request is sent.
        """
        if not self.leases.is_unsent(entry_id):
            self.downloaded(entry_id)

    def note(self, note: Note) -> None:
        """Send a note soon, because other workers wait for it (`Sent`) or must stop (`Block`)."""
        self.protocol.notes.append(note)
        self.pace.first_move()
        self.kick()

    def release_buffer(self) -> None:
        """Release all leases that were not taken, with an exchange that is due soon."""
        if self.leases.buffered:
            self.protocol.empty_buffer()
            self.pace.first_move()
            self.kick()

    def kick(self) -> None:
        """Recompute when the next exchange is due."""
        self._alarm.ring()

    def _wake_at(self, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if not self._timer.cancelled() and self._timer.when() <= loop.time() + pause_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(pause_s, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        self._listener.leases_arrived()

    # Exchanges.

    def begin(self) -> None:
        """Start exchanging, after the worker has joined."""
        name = f"scrapy-dq {self.protocol.id}"
        self._task = asyncio.create_task(self._exchange_until_closing(), name=name)

    async def stop_exchanging(self) -> None:
        """End the coroutine that makes exchanges. The caller may make further exchanges itself."""
        if self._timer is not None:
            self._timer.cancel()
        self._closing.set()
        self.kick()
        if self._task is not None:
            await self._task

    def end(self) -> None:
        """Drop all moves that were not stored."""
        self._auditor.cancel()
        self.protocol.outbox.clear()

    async def take_census(self, deadline: float) -> None:
        """Make an exchange to get its census."""
        if not self.done:
            await self.retry_until(deadline, self.exchange)

    async def retry_until(self, deadline: float, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await call()
            except FrontierUnavailable as error:
                self.outage.noted(error)
                self._count_error()
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(min(self.outage.delay_s(), max(0.0, deadline - time.monotonic())))
            else:
                self.outage.noted(None)
                return answer

    def _count_error(self) -> None:
        self.counting.failed()
        self._listener.counted(Count.ERROR, 1)

    def count_commands(self, count: int) -> None:
        """Record the number of commands that a heartbeat has seen. The next exchange brings the new ones."""
        if count != self.protocol.commands.count:
            self.pace.called()
            self.kick()

    async def _exchange_until_closing(self) -> None:
        while not (self._closing.is_set() or self.done):
            began = time.monotonic()
            try:
                try:
                    await self._until_due()
                    if self._closing.is_set():
                        break
                    if self._capacity() <= 0:
                        self.protocol.empty_buffer()
                    await self.exchange()
                except FrontierError as error:
                    await self._failed(error, began)
            except Exception:
                # This coroutine must not end, because without it the crawl would hang forever.
                self._logger.exception("Unexpected error in an exchange; trying again")
                await self._rest()

    async def _failed(self, error: FrontierError, began: float) -> None:
        """Record that an exchange, which *began* at a monotonic time, has failed; pause before the next."""
        # If a callback has blocked the loop, the answer may have arrived in time, although a timeout was
        # raised. So a timeout then is no sign of an outage.
        blocked = self._heartbeat.blocked_since(began)
        self.protocol.unanswered()
        if not blocked:
            self.outage.began(error)
        self._count_error()
        if not blocked:
            await self._rest()

    async def _rest(self) -> None:
        """Wait before the next try; closing ends the wait."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), self.outage.delay_s())

    async def _until_due(self) -> None:
        while not self._closing.is_set():
            notes, waiting = len(self.protocol.notes), self.protocol.census.waiting
            moves, full = self.protocol.sendable
            due = self.pace.due_at(self._wants(), moves + notes, full, waiting, notes)
            due = min(due, self.protocol.certain_at)
            pause = due - time.monotonic()
            if pause <= 0:
                return
            await self._alarm.wait(pause)

    def _wants(self) -> int:
        on_hold = self._closing.is_set() or self.protocol.on_hold
        capacity = 0 if on_hold else self._capacity()
        leases, appended = self.leases, self.protocol.outbox.appended
        return self.pace.want(capacity, leases.running, leases.buffered, leases.usable, appended)

    async def exchange(self) -> None:
        """Make one exchange, or the rejoin that is due.

        Raises:
            FrontierError: no usable answer.
        """
        pace, protocol = self.pace, self.protocol
        began, kept = time.monotonic(), len(protocol.outbox)
        want = self._wants()
        # `until` holds back moves that came after the engine had asked for a lease. If this exchange requests
        # no lease (on hold, closing), it sends all moves.
        until = pace.until if want else None
        demand = Demand(want, pace.ahead_s, pace.ahead, self._most + pace.ahead, until)
        wanted, granted = await exchange(self._frontier, protocol, self._identity, self._crawl, demand)
        now = time.monotonic()
        # Quiet: nothing can happen before the next entry is due. With `only_delayed`, no worker is seeding:
        # Redis counts the seeding workers whenever no entry waits. But if this worker listens, start
        # payloads may come at any time.
        quiet = protocol.census.only_delayed and not (
            protocol.seeding or protocol.listening or protocol.outbox
        )
        pace.expect(protocol.next_due_s, quiet=quiet)
        pace.answered(began, now)
        pace.granted(wanted, granted, protocol.outbox.confirmed)
        self.counting.answered(now - began, self.outage.ended(kept))
        if protocol.damage:
            self._auditor.observed(protocol.damage, protocol.epoch, protocol.run)
        self._exchanged()
        self._listener.counted(Count.EXCHANGE, 1)
        self._listener.counted(Count.SECONDS, now - began)
