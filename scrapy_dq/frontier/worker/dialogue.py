"""A worker's side of one shard of its crawl: moves and leases, and the coroutine that exchanges them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from scrapy_dq.frontier.calls import Asks, Rejoin
from scrapy_dq.frontier.frontier import Frontier, Home, Identity
from scrapy_dq.frontier.model import (
    FrontierError,
    FrontierRefused,
    FrontierUnavailable,
    Joined,
    Lease,
    Note,
    Sent,
    Status,
)
from scrapy_dq.frontier.moves import Bury, Ending, Move, Release, Return
from scrapy_dq.frontier.worker import durability
from scrapy_dq.frontier.worker.audit import Auditor
from scrapy_dq.frontier.worker.counting import Counting
from scrapy_dq.frontier.worker.heartbeat import Heartbeat, Pulse
from scrapy_dq.frontier.worker.identity import new_worker_id
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.log import ShardLog, label_of
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.outage import Outage
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.pace import IDLE_FIRST_S, Alarm, Pace
from scrapy_dq.frontier.worker.protocol import WorkerProtocol
from scrapy_dq.frontier.worker.reclaim import Reclaimer

logger = logging.getLogger(__name__)
T = TypeVar("T")
JOIN_PATIENCE_S = 5.0
"""How long `start` repeats a join without an answer before it raises."""


async def exchange(
    frontier: Frontier, protocol: WorkerProtocol, identity: dict[str, Any], crawl: Identity, asks: Asks
) -> tuple[int, int]:
    """Make one exchange, or the rejoin that is due; return the numbers of requested and granted leases.

    Raises:
        FrontierUnavailable: no answer; the next call sends the same bytes again.
    """
    call = protocol.compose(time.monotonic(), asks)
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
    """One worker in one shard of a crawl, on the running event loop. Only the coroutine methods wait.

    All its network I/O is in exchanges, joining and leaving, the heartbeat thread, reclaims and audits.
    """

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        identity: dict[str, Any],
        options: WorkerOptions,
        listener: Listener,
        *,
        heartbeat: Heartbeat,
        connect: Callable[[], Any],
        capacity: Callable[[], int],
        limit: Callable[[bytes], int],
        pace: Pace,
        exchanged: Callable[[], None],
    ) -> None:
        """
        Args:
            identity: of this process; see `identity.py`.
            heartbeat: of this worker, in all shards.
            capacity: how many leases of this shard can run here at once; 0 (paused, closing) releases the
                buffer.
            exchanged: called after each exchange, or rejoin, that was answered.

        The others are those of `Worker`.
        """
        self._frontier = frontier
        self._listener = listener
        self._capacity = capacity
        self._exchanged = exchanged
        self.protocol = WorkerProtocol(
            frontier.name, listener, Outbox(options.spill_dir), options.rollback_horizon_s,
            new_id=lambda: new_worker_id(identity), random_bytes=os.urandom, limit=limit,
            start_keys=frontier.start_keys,
        )  # fmt: skip
        self.protocol.max_pages = options.max_pages
        self._crawl, self._identity = crawl, identity
        self.leases = self.protocol.leases
        self.pace = pace
        self._logger = ShardLog(logger, frontier.name)
        self.outage = Outage(options.meanwhile, label=label_of(frontier.name))
        heartbeat.outages.append(self.outage)
        self.counting = Counting()
        self._most = options.most_of_a_partition
        self._alarm = Alarm()
        self._closing = asyncio.Event()
        self.handed_in = False
        """It is leaving, and has stored what it had: what is put from now on would be lost."""
        self._gave_up = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reclaimer = Reclaimer(
            frontier, identity, options.max_attempts, lambda n: listener.counted(Count.RECLAIM, n)
        )
        self._auditor = Auditor(frontier)
        self._heartbeat = heartbeat
        self._pulse = Pulse(
            heartbeat,
            frontier,
            connect,
            observed=lambda silent, dead: self._reclaimer.observed(
                self.id, self.protocol.epoch, self.protocol.run, silent, dead
            ),
            told=self._told,
            counting=self.counting,
        )

    @property
    def id(self) -> str:
        """The id under which this worker is registered now; a rejoin changes it."""
        return self.protocol.id

    @property
    def done(self) -> bool:
        """No more exchanges are made: the run is finished for good, or the frontier is gone."""
        return self.protocol.over or self.protocol.lost

    # Moves and leases; none of these waits.

    def append(self, move: Move) -> None:
        """Add a move to the outbox."""
        outbox = self.protocol.outbox
        first = not outbox
        outbox.append(move)
        if first:
            self.pace.first_move()
        if first or self.pace.hungry or outbox.full:
            self.kick()

    def settled(self, move: Ending | Return) -> Ending | Return | None:
        """Note that a lease ends; return the move to append, now or later; None: it is not ours any more."""
        leases, entry_id = self.leases, move.entry_id
        if entry_id in leases.spoiled or self.protocol.together.over:
            move = Release(entry_id)
        elif entry_id in leases.never_sent and not isinstance(move, Bury | Return):
            move.never_sent = True
        leases.spoiled.discard(entry_id)
        leases.never_sent.discard(entry_id)
        return move if self.leases.settle(move) else None

    def take(self) -> Lease | None:
        """Return the next lease of this shard to run; None if there is none at the moment."""
        if self.leases.buffered:  # of many shards, most have nothing
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

    def starves(self) -> None:
        """Note that the owner has asked for a lease, and no shard had one."""
        if self.pace.asked(self.protocol.outbox.appended):
            self.kick()

    def sent(self, entry_id: bytes, at: float | None) -> None:
        """Note when the request of a lease with a time for sending was sent; None: it will never be."""
        partition = self.leases.sent(entry_id, at)
        if partition is not None:
            self.note(Sent(partition, entry_id, at))
            send_at = self.leases.send_at_of(partition)
            if send_at is not None:
                self._wake_at(max(0.0, send_at - time.monotonic()))

    def never_sent(self, entry_id: bytes) -> None:
        """Note that the request of a lease was not sent, and will not be."""
        self.leases.never_sent.add(entry_id)
        self.sent(entry_id, None)

    def downloaded(self, entry_id: bytes) -> None:
        """Note that a lease no longer counts against its partition's limit; settling it implies this."""
        self.leases.downloaded(entry_id)
        if self.pace.hungry:
            # Exchanges that brought nothing for lack of room have backed off: now there is room.
            self.pace.room_appeared()
            self.kick()

    def held_up(self, entry_id: bytes) -> None:
        """Note that the download of a lease waits in this process: it does not count against the limit now.

        A lease with a time for sending keeps counting until it is sent: the next one is timed by that.
        """
        if not self.leases.is_unsent(entry_id):
            self.downloaded(entry_id)

    def note(self, note: Note) -> None:
        """Send a note soon: other workers wait for it (sent), or must stop (block)."""
        self.protocol.notes.append(note)
        self.pace.first_move()
        self.kick()

    def release_buffer(self) -> None:
        """Give back, soon, what is not taken."""
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

    # Joining and leaving.

    async def join(self, new_epoch: str, of: Home | None = None) -> Joined:
        """Join this shard, reclaim the leases of dead workers of this machine, and start the heartbeat.

        Args:
            of: the place of home in its crawl; None: this is home.
        Raises:
            FrontierUnavailable, FrontierRefused: it may be a member, which the others will take for dead.
        """
        # Join is idempotent by the worker's id: repeat it if a busy Redis replies late.
        deadline = time.monotonic() + JOIN_PATIENCE_S
        joined = await self._until(deadline, lambda: self._join(new_epoch, of))
        if joined.status is Status.OK:
            with suppress(FrontierError):  # the heartbeat repeats it; raising would leave a member behind
                await self._reclaimer.reclaim_local(self.protocol.epoch, self.protocol.run, by=self.id)
            self._pulse.start(self.id, self.protocol.epoch)
        return joined

    async def _join(self, new_epoch: str, of: Home | None) -> Joined:
        joined = await self._frontier.join(self.id, self._identity, new_epoch, self._crawl, of)
        self.protocol.joined(joined, time.monotonic())
        return joined

    async def _leave(self, version: int = -1, kept: bool = False, began: bool = True, why: str = "") -> None:
        of, keep_seen = self.protocol, self._crawl.keep_seen
        released, last = await self._frontier.leave(
            of.id, of.epoch, of.run, keep_seen, version, kept, began, why
        )
        self._logger.debug("Worker %s left: %d leases released, last worker: %s", of.id, released, last)

    async def undo_join(self) -> None:
        """Unregister, if `join` was answered; another shard could not be joined."""
        if self.protocol.epoch:
            with suppress(FrontierError):  # the others take it for dead
                await self._leave(began=False)

    async def note_shards(self) -> None:
        """Note, at home, that all other shards exist."""
        deadline = time.monotonic() + JOIN_PATIENCE_S
        of = self.protocol.epoch, self.protocol.run
        await self._until(deadline, lambda: self._frontier.note_shards(*of))

    def begin(self) -> None:
        """Start exchanging, after `join`."""
        self._task = asyncio.create_task(self._exchange_until_closing(), name=f"scrapy-dq {self.id}")

    async def cease(self) -> None:
        """Make no more exchanges but those of the methods below."""
        if self._timer is not None:
            self._timer.cancel()
        self._closing.set()
        self.kick()
        if self._task is not None:
            await self._task

    async def attempt(self, step: Callable[[float], Awaitable[None]], deadline: float) -> None:
        """Take a step of leaving: one of the methods below; after a failure, none."""
        if self._task is None or self._gave_up:
            return
        try:
            await step(deadline)
        except FrontierError as error:
            self._gave_up = True
            outbox = self.protocol.outbox
            self._logger.error(
                "%s, for as long as closing may take: %d moves were not stored. Requests from pages are not "
                "lost: the pages are in flight under worker %s and will be crawled again. %d requests came "
                "from no page: start(), or whoever has put them, has to put them again",
                error, len(outbox), self.id, outbox.parentless,
            )  # fmt: skip

    async def hand_in(self, deadline: float) -> None:
        """Release the buffer, and send the outbox."""
        protocol = self.protocol
        protocol.empty_buffer()
        while protocol.unsaid and not self.done:
            await self._until(deadline, self._exchange)
            if protocol.waits_to_seed and protocol.home.over and not protocol.under_way:
                protocol.outbox.drop_parentless()  # home has counted them
            elif protocol.waits_to_seed:  # for the dialogue with home
                await asyncio.sleep(IDLE_FIRST_S)
            if protocol.unsaid and time.monotonic() >= deadline:
                raise FrontierUnavailable("Redis takes too long to store what this worker has found")
        self.handed_in = True

    async def make_durable(self, deadline: float) -> None:
        """Wait, in an open run, until all puts are on Redis's disk: then they are retired."""

        async def verify() -> None:
            await self._until(deadline, self._exchange)
            await self.hand_in(deadline)

        if self.protocol.finished or self.done:
            return
        doubt = await self.wait_until_durable(verify, deadline)
        if doubt:
            self._logger.warning("%s", doubt)
        else:
            self.protocol.log.retire_all()
            self.protocol.raise_retired = self.protocol.raised_at is not None

    async def look(self, deadline: float) -> None:
        """Make an exchange for its census."""
        if not self.done:
            await self._until(deadline, self._exchange)

    async def leave(self, deadline: float, *, version: int = -1, kept: bool = False, why: str = "") -> None:
        """Unregister; what is still leased goes back. *version*, *kept*, *why*: see Frontier.leave."""
        protocol = self.protocol
        if not self.done:
            protocol.log.retire_all()
            applied = -1
            while protocol.log.forgettable and protocol.applied > applied and time.monotonic() < deadline:
                applied = protocol.applied
                await self._until(deadline, self._exchange)
        if not protocol.lost:
            await self._until(deadline, lambda: self._leave(version, kept, why=why))

    def end(self) -> None:
        """Drop what was not stored; the owner stops the heartbeat."""
        self.handed_in = True
        self._reclaimer.cancel()
        self._auditor.cancel()
        self.protocol.outbox.clear()

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """See `durability.py`."""
        return await durability.wait_until_durable(self._frontier, self.protocol, verify, deadline)

    async def _until(self, deadline: float, call: Callable[[], Awaitable[T]]) -> T:
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

    # Exchanges.

    def _count_error(self) -> None:
        self.counting.failed()
        self._listener.counted(Count.ERROR, 1)

    def _told(self, words: int) -> None:
        # Called by the heartbeat. The next exchange brings the words, unless a recent one has brought them.
        if words != self.protocol.words.count:
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
                    await self._exchange()
                except FrontierError as error:
                    await self._failed(error, began)
            except Exception:
                # Never end silently: without this coroutine the crawl would hang forever.
                self._logger.exception("Unexpected error in an exchange; trying again")
                await self._rest()

    async def _failed(self, error: FrontierError, began: float) -> None:
        """Note that an exchange has failed, which began at a monotonic time; wait before the next try."""
        # A callback that blocks the loop delays every timeout: the answer may have arrived.
        blocked = self._heartbeat.blocked_since(began)
        # Those of other shards need not wait: a suspect that has not arrived does not run.
        self.protocol.asks_for_suspects = False
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
        outbox = self.protocol.outbox
        while not self._closing.is_set():
            notes, waiting = len(self.protocol.notes), self.protocol.census.waiting
            # What waits for home is not sent sooner if this shard is asked more often.
            held_back = self.protocol.held_back and self.protocol.waits_to_seed
            moves, full = (0, False) if held_back else (len(outbox), outbox.full)
            due = self.pace.due_at(self._wants(), moves + notes, full, waiting, notes)
            due = min(due, self.protocol.certain_at)
            pause = due - time.monotonic()
            if pause <= 0:
                return
            await self._alarm.wait(pause)

    def _wants(self) -> int:
        on_hold = self._closing.is_set() or self.protocol.home.on_hold
        capacity = 0 if on_hold else self._capacity()
        leases, appended = self.leases, self.protocol.outbox.appended
        return self.pace.want(capacity, leases.running, leases.buffered, leases.usable, appended)

    async def _exchange(self) -> None:
        pace, protocol = self.pace, self.protocol
        began, registered, kept = time.monotonic(), self.id, len(protocol.outbox)
        want = self._wants()
        # Without a lease to come (on hold, closing), no move has to wait for one.
        until = pace.until if want else None
        asks = Asks(want, pace.ahead_s, pace.ahead, self._most + pace.ahead, until)
        wanted, granted = await exchange(self._frontier, protocol, self._identity, self._crawl, asks)
        now = time.monotonic()
        # Other seeding workers are counted only while nothing waits; start payloads come without notice.
        quiet = protocol.census.only_delayed and not (
            protocol.seeding or protocol.listening or protocol.outbox
        )
        pace.expect(protocol.next_due_s, quiet=quiet)
        pace.answered(began, now)
        pace.granted(wanted, granted, protocol.outbox.confirmed)
        self.counting.answered(now - began, self.outage.ended(kept))
        if protocol.damage:
            self._auditor.observed(protocol.damage, protocol.epoch, protocol.run)
        if self.id != registered:
            self._pulse.start(self.id, self.protocol.epoch)
        self._exchanged()
        self._listener.counted(Count.EXCHANGE, 1)
        self._listener.counted(Count.SECONDS, now - began)
