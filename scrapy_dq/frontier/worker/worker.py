"""A worker: what its owner calls. Only `start` and `stop` wait; `speaker.py` speaks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import (
    MAX_LEASES,
    Ack,
    Block,
    Bury,
    Census,
    Fail,
    Joined,
    Lease,
    Move,
    Note,
    Put,
    Release,
    Sent,
)
from scrapy_dq.frontier.signing import NOT_SIGNED
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.speaker import Speaker, WorkerOptions

logger = logging.getLogger(__name__)


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
        self._listener = listener
        self._speaker = Speaker(
            frontier, crawl, options, listener, connect=connect, capacity=capacity, limit=limit,
            pace=pace or Pace(),
        )  # fmt: skip
        self._protocol = self._speaker.protocol
        self._leases = self._protocol.leases
        self._pace = self._speaker.pace
        self._timer: asyncio.TimerHandle | None = None
        self._told_of_forgery = False

    @property
    def id(self) -> str:
        """The id under which this worker is registered now; a rejoin changes it."""
        return self._protocol.id

    @property
    def epoch(self) -> str:
        return self._protocol.epoch

    @property
    def run(self) -> int:
        return self._protocol.run

    @property
    def census(self) -> Census:
        """All counts, as of the last exchange."""
        return self._protocol.census

    @property
    def composed(self) -> int:
        """How many exchanges were composed; what is told or asked now goes into a later one."""
        return self._protocol.composed

    @property
    def applied(self) -> int:
        """Which exchange, of those composed and counted from 1, was the last one that Redis applied."""
        return self._protocol.applied

    @property
    def under_way(self) -> bool:
        """An exchange was composed and is not answered."""
        return self._protocol.under_way

    @property
    def unconfirmed_puts(self) -> int:
        """Puts that Redis has not confirmed; they are confirmed in the order in which they were put."""
        return self._protocol.outbox.puts

    @property
    def outage(self) -> str:
        """Why Redis gives no usable answer now, in a sentence without a full stop; empty: it does."""
        return self._speaker.outage.reason

    @property
    def over(self) -> bool:
        """The run is finished for good: nothing is put any more."""
        return self._protocol.over

    @property
    def left_over(self) -> list[Put]:
        """Puts without a parent that the run, now over, has not done for certain."""
        return self._protocol.left_over

    @property
    def lost(self) -> bool:
        """The frontier is gone; the crawl cannot go on."""
        return self._protocol.lost

    @property
    def on_hold(self) -> bool:
        """No worker of the crawl gets a lease, because somebody said so."""
        return self._speaker.on_hold

    @property
    def idle(self) -> bool:
        """Nothing of the whole crawl is left, as far as this worker knows, but what may be fed."""
        return self._protocol.idle

    @property
    def pending(self) -> bool:
        """Something of the whole crawl is not done yet, as far as this worker knows."""
        return self._protocol.pending

    @property
    def ending(self) -> str:
        """Why this worker closes when nothing is left to do: `finished`, unless something is missing."""
        return self._protocol.ending

    # The owner's side: nothing here waits.

    def put(self, put: Put) -> bool:
        """Take a new entry into the outbox; False if the run is over for good and it was dropped."""
        if self._protocol.over:
            return False
        self._protocol.finished = False
        self._append(put)
        return True

    def take(self) -> Lease | None:
        """Hand out the next lease; None if there is none at the moment."""
        now = time.monotonic()
        while (lease := self._leases.take(now)) is not None and not lease.genuine:
            self._refuse(lease)
        if lease is not None:
            self._pace.taken()
            if not self._leases.has_buffered:
                self._speaker.kick()
            return lease
        send_at = self._leases.next_send_at(now)
        if send_at is not None:
            self._wake_at(send_at - now)
        if self._pace.asked(self._protocol.outbox.appended):
            self._speaker.kick()
        return None

    def sent(self, entry_id: bytes) -> None:
        """The request of a lease that has a time of sending has gone out; other leases are ignored.

        The delay counts from this call, of which only the first is heard: too early and the site sees less.
        """
        if not self._leases.has_unsent:
            return
        now = time.monotonic()
        partition = self._leases.sent(entry_id, now)
        if partition is not None:
            self._note(Sent(partition, entry_id, now))
            send_at = self._leases.send_at_of(partition)
            if send_at is not None:
                self._wake_at(max(0.0, send_at - now))

    def downloaded(self, entry_id: bytes) -> None:
        """A lease takes no room in its partition any more; at its end that goes without saying."""
        self._leases.downloaded(entry_id)
        if self._pace.hungry:
            # What was asked for in vain, for want of room, is backed off from: now there is some.
            self._pace.room_appeared()
            self._speaker.kick()

    def held_up(self, entry_id: bytes) -> None:
        """The download of a lease waits for something in this process: it takes no room meanwhile.

        One that has a time of sending keeps its room until it has gone out: the next one counts from that.
        """
        if not self._leases.is_unsent(entry_id):
            self.downloaded(entry_id)

    def block(self, partition: bytes, seconds: float) -> None:
        """Have all workers leave a partition alone: its site asked for it."""
        self._note(Block(partition, time.monotonic() + seconds))
        self._protocol.withdraw(partition)

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
        if self._protocol.seeding == 1:
            self._protocol.seeding = 2 if failed else 0
            self._speaker.kick()

    def listen(self, on: bool) -> None:
        """Keep the run open for what others may feed, though nothing of it is left; or not any more."""
        if self._protocol.listening != on:
            self._protocol.listening = on
            self._speaker.kick()

    def kick(self) -> None:
        """Ask the pace anew when the next exchange is due."""
        self._speaker.kick()

    def _refuse(self, lease: Lease) -> None:
        if not self._told_of_forgery:
            self._told_of_forgery = True
            logger.error("A stored entry becomes a dead letter: %s. No more of these are shown", NOT_SIGNED)
        self.bury(lease.entry_id, NOT_SIGNED)

    def _note(self, note: Note) -> None:
        # Only in here: while it is not told, other workers wait for it, or should.
        self._protocol.notes.append(note)
        self._pace.first_move()
        self._speaker.kick()

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
        outbox = self._protocol.outbox
        first = not outbox
        outbox.append(move)
        if first:
            self._pace.first_move()
        if first or self._pace.hungry or outbox.full:
            self._speaker.kick()

    # Joining and leaving.

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """See `durability.py`."""
        return await self._speaker.wait_until_durable(verify, deadline)

    async def start(self, new_epoch: str) -> Joined:
        """Join the crawl, take back what dead workers of this machine held, and begin to exchange.

        Raises:
            FrontierUnavailable, FrontierRefused: nothing was started.
        """
        return await self._speaker.start(new_epoch)

    async def stop(self, deadline_s: float, *, durable: bool | None = None) -> None:
        """Give the buffer back, hand in the outbox, and leave; give up after *deadline_s*.

        What could not be handed in stays in flight under this worker's id, and is run again.

        Args:
            durable: do not leave an open run before what was put is on Redis's disk. None: if the log, with
                which this worker goes, has puts that nobody else would bring back.
        """
        if self._timer is not None:
            self._timer.cancel()
        await self._speaker.stop(deadline_s, durable)
