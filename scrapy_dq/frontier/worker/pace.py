"""Computes when the next exchange is due, and how many leases it requests."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import NamedTuple

from scrapy_dq.frontier.model import MAX_LEASES

LINGER_S = 0.015
"""How long a move waits for other moves, unless the engine needs a lease. Batches cost Redis less."""
MEMORY_S = 0.5
"""The time over which the rate of leases is averaged."""
IDLE_FIRST_S, IDLE_LONGEST_S = 0.02, 0.5
"""First and longest pause between exchanges that bring nothing."""
QUIET_LONGEST_S = 10.0
"""Longest pause if nothing can happen before the next entry is due."""
MIN_AHEAD_S, MAX_AHEAD_S = 0.05, 1.0
"""Bounds of `Pace.ahead_s`."""


class Timing(NamedTuple):
    """How long a worker waits in its dialogue with one frontier; see the constants."""

    linger_s: float
    idle_first_s: float
    idle_longest_s: float
    memory_s: float
    patience_s: float = 0.0
    """The longest time that moves wait for the moves of the frontier's next lease; 0: moves do not wait."""


class Pace:
    """Adapts batch sizes to the round trip time, because the outbox grows while a reply is pending."""

    counts_all = True
    """Whether the worker's capacity is the number of all slots for requests, not only of the free ones."""

    def __init__(self) -> None:
        self.timing = Timing(LINGER_S, IDLE_FIRST_S, IDLE_LONGEST_S, MEMORY_S)
        self.starved = True
        """Whether the engine has asked for a lease and got none."""
        self._empty_exchanges = 0
        self._oldest_move_at = 0.0
        self._answered_at = time.monotonic()
        self._round_trip_s = 0.0
        self._taken = 0
        self._rate = 0.0
        self._next_due_at = float("inf")
        self._quiet = False
        self._called_at: float | None = None

    @property
    def _patience_s(self) -> float:
        """How long moves wait for other moves, and how long a request for leases waits for moves."""
        next_s = min(1 / self._rate, self.timing.patience_s) if self._rate else 0.0
        return max(self.timing.linger_s, next_s)

    @property
    def ahead(self) -> int:
        """How many leases the engine takes during two round trips."""
        return int(2 * self._rate * (self._round_trip_s + self._patience_s)) + 1

    @property
    def ahead_s(self) -> float:
        """See `Terms.ahead_s`: the time of two round trips, within bounds."""
        return min(MAX_AHEAD_S, max(MIN_AHEAD_S, 2 * (self._round_trip_s + self.timing.linger_s)))

    @property
    def until(self) -> int | None:
        """Number of the last move that may be sent now; 1: the worker's first move; None: no limit."""
        return None

    def lease_missed(self, appended: int) -> bool:
        """Record that the engine has asked for a lease and got none; return whether that is a new state.

        Args:
            appended: see `Outbox.appended`.
        """
        new, self.starved = not self.starved, True
        return new

    def taken(self) -> None:
        """Record that the engine has taken a lease."""
        self._taken += 1

    def first_move(self) -> None:
        """Record that the outbox is no longer empty."""
        self._oldest_move_at = time.monotonic()
        self._empty_exchanges = 0

    def room_appeared(self) -> None:
        """Record that a partition has room again."""
        self._empty_exchanges = 0

    @property
    def is_called(self) -> bool:
        """Whether an exchange is due immediately."""
        return self._called_at is not None

    def called(self) -> None:
        """Record that a command or an entry waits in Redis. So a new exchange is due immediately."""
        self._called_at = time.monotonic()

    def answered(self, began: float, now: float) -> None:
        """Record a round trip from *began* to *now*; the remaining moves linger from *now* on."""
        if self._called_at is not None and self._called_at <= began:
            self._called_at = None  # otherwise the call came after this exchange had been composed
        trip_s = now - began
        self._round_trip_s = 0.8 * self._round_trip_s + 0.2 * trip_s if self._round_trip_s else trip_s
        passed = max(now - self._answered_at, 1e-3)
        weight = min(1.0, passed / self.timing.memory_s)
        self._rate = (1 - weight) * self._rate + weight * self._taken / passed
        self._taken = 0
        self._answered_at = self._oldest_move_at = now

    def granted(self, wanted: int, leases: int, confirmed: int = 0) -> None:
        """Record how many leases an exchange requested and got; *confirmed*: see `Outbox.confirmed`."""
        self._empty_exchanges = self._empty_exchanges + 1 if wanted and not leases else 0
        if leases:
            self.starved = False

    def expect(self, next_due_s: float | None, quiet: bool) -> None:
        """Record in how many seconds the next entry is due; *quiet*: nothing else can happen before that."""
        self._next_due_at = time.monotonic() + next_due_s if next_due_s else float("inf")
        self._quiet = quiet

    def want(self, capacity: int, running: int, buffered: int, usable: int, appended: int = 0) -> int:
        """Return how many leases to request: free slots, plus the leases that two round trips consume.

        Args:
            usable: how many buffered leases could run now. Other buffered leases do not reduce the result:
                leases of a site that was fast and is now silent must not keep the leases of other sites out.
            appended: see `Outbox.appended`.
        """
        if capacity <= 0:
            return 0
        free = min(max(0, capacity - running) + self.ahead, MAX_LEASES)
        return max(0, min(free - usable, MAX_LEASES - buffered))

    def due_at(self, want: int, moves: int, full: bool, waiting: int, notes: int = 0) -> float:
        """Return when the next exchange is due, by the monotonic clock; 0: it is due immediately.

        Args:
            notes: how many of *moves* are notes. Other workers may wait for a note, for example for the note
                that a request was sent.
        """
        starving = self.starved and want > 0 and not self._empty_exchanges
        if self.is_called or full or (starving and (moves or waiting)):
            return 0.0
        timing = self.timing
        pause = timing.idle_longest_s
        if want:
            first_s = self._patience_s if timing.patience_s else timing.idle_first_s
            pause = min(first_s * 2 ** min(self._empty_exchanges, 10), timing.idle_longest_s)
        if self._quiet:
            pause = QUIET_LONGEST_S
        due = self._answered_at + pause * random.uniform(0.8, 1.0)
        if want:
            # The exchange is never due immediately: if this worker is unable to lease the entry that is due,
            # one exchange would follow the other without a pause.
            due = min(due, max(self._next_due_at - self.ahead_s / 2, self._answered_at + timing.idle_first_s))
        if not moves:
            return due
        lingered = self._oldest_move_at + (timing.linger_s if notes else self._patience_s)
        # With several frontiers, the request for leases may wait for moves, because the engine has leases of
        # the other frontiers in the meantime.
        may_linger = timing.patience_s and self._next_due_at == float("inf")
        return lingered if may_linger else min(due, lingered)


class OneByOne(Pace):
    """Leases nothing ahead, so that the engine gets the best of all entries that were put before it asked."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: deque[int] = deque()
        """The values of `Outbox.appended` at the requests of the engine that are not answered yet."""
        self._last = 0
        """The value of `Outbox.appended` at the last request of the engine."""

    @property
    def ahead(self) -> int:
        """Always 0, so each lease costs a round trip to Redis."""
        return 0

    def lease_missed(self, appended: int) -> bool:
        self._drop_stale_requests(appended)
        # Another request without new moves would get the same answer.
        if appended > self._last or not self.starved:
            self._requests.append(appended)
        self._last = appended
        return super().lease_missed(appended) or len(self._requests) == 1

    @property
    def until(self) -> int | None:
        return self._requests[0] if self._requests else None

    def granted(self, wanted: int, leases: int, confirmed: int = 0) -> None:
        super().granted(wanted, leases)
        if leases:
            self._requests.clear()
        elif wanted and self._requests and confirmed >= self._requests[0]:
            self._requests.popleft()

    def want(self, capacity: int, running: int, buffered: int, usable: int, appended: int = 0) -> int:
        """Return 1 if the engine has asked and got no lease, else 0."""
        self._drop_stale_requests(appended)
        # If moves were added since the engine's last request, wait for its next request: with Scrapy's
        # scheduler, the engine asks between moves.
        due = bool(self._requests) or (self.starved and appended == self._last)
        return int(due and capacity > 0 and not usable and buffered < MAX_LEASES)

    def due_at(self, want: int, moves: int, full: bool, waiting: int, notes: int = 0) -> float:
        return 0.0 if want and self._requests else super().due_at(want, moves, full, waiting, notes)

    def _drop_stale_requests(self, appended: int) -> None:
        # If *appended* has become smaller, a rejoin has dropped moves, or the outbox was lost. Then the moves
        # that the requests wait for may never be confirmed, and exchanges would follow each other without a
        # pause.
        if appended < self._last:
            self._requests.clear()
            self._last = appended


class Alarm:
    """Wakes one waiting coroutine.

    There are several waits before each exchange. Up to Python 3.11, `asyncio.wait_for` would make a task for
    each of them.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the present wait; without a wait, do nothing."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next `ring`, at the latest after *timeout_s* seconds."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self.ring)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
