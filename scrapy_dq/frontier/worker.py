"""A worker: what its owner calls, and the coroutine that speaks with the frontier at the right pace.

The owner's side (put, take, ack, ...) never waits; all network I/O happens in `_speak_on` and in the
heartbeat's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from scrapy_dq.frontier.dialogue import Dialogue, Listener
from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.heartbeat import Heartbeat
from scrapy_dq.frontier.identity import own_identity
from scrapy_dq.frontier.model import (
    MAX_LEASES,
    Ack,
    Block,
    Bury,
    Census,
    Fail,
    FrontierError,
    FrontierUnavailable,
    Hold,
    Joined,
    Lease,
    Move,
    Note,
    Put,
    Release,
    Sent,
    Status,
)
from scrapy_dq.frontier.outage import Outage
from scrapy_dq.frontier.pace import Pace
from scrapy_dq.frontier.reclaim import Reclaimer

logger = logging.getLogger(__name__)
T = TypeVar("T")
OUTGOING_S = 0.02
"""From telling a request to go out until it is out: the event loop may have other work before that."""
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


class Worker:
    """One worker of a crawl, on the running event loop."""

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        connect: Callable[[], Any],
        capacity: Callable[[], int],
        limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
        pace: Pace | None = None,
    ) -> None:
        """
        Args:
            connect: makes a blocking `redis` client for the heartbeat thread.
            capacity: how many leases could run here at once; 0 (paused, closing) gives the buffer back.
            limit: how many of a partition may be downloading here at once, from `take` to `downloaded`.
            pace: when to speak, and for how many leases; None: as a crawl does.
        """
        identity = own_identity()
        self._listener = listener
        self._capacity = capacity
        self._dialogue = Dialogue(
            frontier, crawl, identity, listener, options.rollback_horizon_s, options.spill_dir, limit
        )
        self._leases = self._dialogue.leases
        self._most = options.most_of_a_partition
        self._pace = pace or Pace()
        self._outage = Outage()
        self._kick = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reclaimer = Reclaimer(
            frontier, identity, options.max_attempts, lambda n: listener.counted("reclaim", n)
        )
        self._heartbeat = Heartbeat(
            frontier,
            connect,
            ttl_s=options.ttl_s,
            stall_timeout_s=options.stall_timeout_s,
            observed=lambda silent, dead: self._reclaimer.observed(
                self.id, self.epoch, self.run, silent, dead
            ),
            told=self._told,
        )

    @property
    def id(self) -> str:
        """The id under which this worker is registered now; a rejoin changes it."""
        return self._dialogue.id

    @property
    def epoch(self) -> str:
        return self._dialogue.epoch

    @property
    def run(self) -> int:
        return self._dialogue.run

    @property
    def census(self) -> Census:
        """All counts, as of the last exchange."""
        return self._dialogue.census

    @property
    def composed(self) -> int:
        """How many exchanges were composed; what is told or asked now goes into a later one."""
        return self._dialogue.composed

    @property
    def applied(self) -> int:
        """Which exchange, of those composed and counted from 1, was the last one that Redis applied."""
        return self._dialogue.applied

    @property
    def under_way(self) -> bool:
        """An exchange was composed and is not answered."""
        return self._dialogue.under_way

    @property
    def unconfirmed_puts(self) -> int:
        """Puts that Redis has not confirmed; they are confirmed in the order in which they were put."""
        return self._dialogue.outbox.puts

    @property
    def outage(self) -> str:
        """Why Redis gives no usable answer now, in a sentence without a full stop; empty: it does."""
        return self._outage.reason

    @property
    def over(self) -> bool:
        """The run is finished for good: nothing is put any more."""
        return self._dialogue.over

    @property
    def lost(self) -> bool:
        """The frontier is gone; the crawl cannot go on."""
        return self._dialogue.lost

    @property
    def on_hold(self) -> bool:
        """No worker of the crawl gets a lease, because somebody said so."""
        return self._dialogue.words.hold is not Hold.NONE

    @property
    def idle(self) -> bool:
        """Nothing of the whole crawl is left, as far as this worker knows, but what may be fed."""
        return self._dialogue.idle

    @property
    def pending(self) -> bool:
        """Something of the whole crawl is not done yet, as far as this worker knows."""
        return self._dialogue.pending

    # The owner's side: nothing here waits.

    def put(self, put: Put) -> bool:
        """Take a new entry into the outbox; False if the run is over for good and it was dropped."""
        if self._dialogue.over:
            return False
        self._dialogue.finished = False
        self._append(put)
        return True

    def take(self) -> Lease | None:
        """Hand out the next lease; None if there is none at the moment."""
        now = time.monotonic()
        lease = self._leases.take(now)
        if lease is not None:
            self._pace.taken()
            if not self._leases.has_buffered:
                self._kick.set()
            return lease
        send_at = self._leases.next_send_at(now)
        if send_at is not None:
            self._wake_at(send_at - now)
        if not self._pace.hungry:
            self._pace.hungry = True
            self._kick.set()
        return None

    def sent(self, entry_id: bytes) -> None:
        """The request of a lease that has a time of sending goes out now; others are ignored."""
        now = time.monotonic()
        partition = self._leases.sent(entry_id, now)
        if partition is not None:
            self._note(Sent(partition, entry_id, now + OUTGOING_S))
            send_at = self._leases.send_at_of(partition)
            if send_at is not None:
                self._wake_at(max(0.0, send_at - now))

    def downloaded(self, entry_id: bytes) -> None:
        """A lease takes no room in its partition any more; at its end that goes without saying."""
        self._leases.downloaded(entry_id)
        if self._pace.hungry:
            # What was asked for in vain, for want of room, is backed off from: now there is some.
            self._pace.room_appeared()
            self._kick.set()

    def block(self, partition: bytes, seconds: float) -> None:
        """Have all workers leave a partition alone: its site asked for it."""
        self._note(Block(partition, time.monotonic() + seconds))
        self._dialogue.withdraw(partition)

    def ack(self, entry_id: bytes) -> None:
        """The work on a lease is done, and all its children were put."""
        self._settle(Ack(entry_id))

    def release(self, entry_id: bytes) -> None:
        """Give a lease back unspent."""
        self._settle(Release(entry_id))

    def fail(self, entry_id: bytes, reason: str, label: str) -> None:
        """The work on a lease ended without success for good; *label* says what it was."""
        self._settle(Fail(entry_id, reason, label))

    def bury(self, entry_id: bytes, reason: str) -> None:
        """Set a lease aside as a dead letter."""
        self._settle(Bury(entry_id, reason))

    def seeded(self, *, failed: bool = False) -> None:
        """Note that `start()` is exhausted, or raised."""
        if self._dialogue.seeding == 1:
            self._dialogue.seeding = 2 if failed else 0
            self._kick.set()

    def listen(self, on: bool) -> None:
        """Keep the run open for what others may feed, though nothing of it is left; or not any more."""
        if self._dialogue.listening != on:
            self._dialogue.listening = on
            self._kick.set()

    def kick(self) -> None:
        """Ask the pace anew when the next exchange is due."""
        self._kick.set()

    def _told(self, words: int) -> None:
        # The heartbeat's call. An exchange brings what it was; one that looks in often has it already.
        if words != self._dialogue.words.count:
            self._pace.called()
            self._kick.set()

    def _note(self, note: Note) -> None:
        # Only in here: while it is not told, other workers wait for it, or should.
        self._dialogue.notes.append(note)
        self._pace.first_move()
        self._kick.set()

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

    def _settle(self, move: Ack | Release | Bury | Fail) -> None:
        if self._leases.take_spoiled(move.entry_id):
            move = Release(move.entry_id)
        if self._leases.settle(move):
            self._append(move)

    def _append(self, move: Move) -> None:
        outbox = self._dialogue.outbox
        first = not outbox
        outbox.append(move)
        if first:
            self._pace.first_move()
        if first or self._pace.hungry or outbox.full:
            self._kick.set()

    # Joining and leaving.

    async def start(self, new_epoch: str) -> Joined:
        """Join the crawl, take back what dead workers of this machine held, and begin to exchange.

        Raises:
            FrontierUnavailable, FrontierRefused: nothing was started.
        """
        # Idempotent by its id: a reply that a busy Redis is late with is no reason to refuse.
        deadline = time.monotonic() + JOIN_PATIENCE_S
        joined = await self._until(deadline, lambda: self._dialogue.join(new_epoch))
        if joined.status is Status.FINISHED:
            return joined
        with suppress(FrontierError):  # the heartbeat does it again; to raise would leave a ghost behind
            await self._reclaimer.reclaim_local(self.epoch, self.run)
        self._heartbeat.start(self.id, self.epoch)
        self._task = asyncio.create_task(self._speak_on(), name=f"scrapy-dq {self.id}")
        return joined

    async def stop(self, deadline_s: float) -> None:
        """Give the buffer back, hand in the outbox, and leave; give up after *deadline_s*.

        What could not be handed in stays in flight under this worker's id, and is run again.
        """
        deadline = time.monotonic() + deadline_s
        self._closing.set()
        self._kick.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None:
            return
        await self._task
        dialogue = self._dialogue
        try:
            self._release_buffer()
            while dialogue.unsaid and not (dialogue.lost or dialogue.over):
                await self._until(deadline, self._speak)
                if dialogue.unsaid and time.monotonic() >= deadline:
                    raise FrontierUnavailable("Redis takes too long for what this worker has found")
            if not (dialogue.lost or dialogue.over):
                dialogue.retire_log()
                applied = -1
                while dialogue.forgets and dialogue.applied > applied and time.monotonic() < deadline:
                    applied = dialogue.applied
                    await self._until(deadline, self._speak)
            if not dialogue.lost:
                await self._until(deadline, dialogue.leave)
        except FrontierError as error:
            logger.error(
                "%s, for the %.0f s that closing may take: %d moves were not stored. Nothing is lost of what "
                "came from pages: they are in flight under worker %s and will be run again. %d requests came "
                "from start() or engine.crawl(): the next crawl's start() has to bring them back",
                error,
                deadline_s,
                len(dialogue.outbox),
                self.id,
                dialogue.outbox.parentless,
            )
        finally:
            self._heartbeat.stop()
            self._reclaimer.cancel()
            dialogue.outbox.clear()

    async def _until(self, deadline: float, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await call()
            except FrontierUnavailable as error:
                self._outage.noted(error)
                self._listener.counted("error", 1)
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(min(self._outage.delay_s(), max(0.0, deadline - time.monotonic())))
            else:
                self._outage.noted(None)
                return answer

    def _release_buffer(self) -> None:
        for entry_id in self._leases.empty_buffer():
            self.release(entry_id)

    # Speaking.

    async def _speak_on(self) -> None:
        while not (self._closing.is_set() or self._dialogue.lost or self._dialogue.over):
            began = time.monotonic()
            try:
                await self._until_due()
                if self._closing.is_set():
                    break
                if self._capacity() <= 0:
                    self._release_buffer()
                await self._speak()
            except FrontierError as error:
                # A callback that blocks the loop makes every timeout late: the answer may have been there.
                blocked = self._heartbeat.blocked_since(began)
                if not blocked:
                    self._outage.began(error)
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
            await asyncio.wait_for(self._closing.wait(), self._outage.delay_s())

    async def _until_due(self) -> None:
        outbox = self._dialogue.outbox
        while not self._closing.is_set():
            moves = len(outbox) + len(self._dialogue.notes)
            due = self._pace.due_at(self._wants(), moves, outbox.full, self.census.waiting)
            pause = due - time.monotonic()
            if pause <= 0:
                return
            self._kick.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._kick.wait(), pause)

    def _wants(self) -> int:
        capacity = 0 if self._closing.is_set() or self.on_hold else self._capacity()
        leases = self._leases
        return self._pace.want(capacity, leases.running, leases.buffered, leases.usable)

    async def _speak(self) -> None:
        began, registered, kept = time.monotonic(), self.id, len(self._dialogue.outbox)
        pace, dialogue = self._pace, self._dialogue
        most = self._most + pace.ahead
        wanted, granted = await dialogue.speak(self._wants(), pace.ahead_s, pace.ahead, most)
        now = time.monotonic()
        # Others that seed are counted only while nothing waits; what is fed comes without a word.
        quiet = dialogue.census.only_delayed and not (
            dialogue.seeding or dialogue.listening or dialogue.outbox
        )
        pace.expect(dialogue.next_due_s, quiet=quiet)
        self._pace.answered(began, now)
        self._pace.granted(wanted, granted)
        self._outage.ended(kept)
        self._listener.counted("exchange", 1)
        self._listener.counted("seconds", now - began)
        if self.id != registered:
            self._heartbeat.start(self.id, self.epoch)
