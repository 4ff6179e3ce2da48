"""When the next exchange is due, and how many leases it asks for."""

from __future__ import annotations

import random
import time

from scrapy_dq.frontier.model import MAX_LEASES

LINGER_S = 0.015
"""How long a move waits for company, unless the engine is starving: keeps Redis's cost per request low."""
IDLE_FIRST_S, IDLE_LONGEST_S = 0.02, 0.5
"""First and longest pause between exchanges that bring nothing."""


class Pace:
    """Sizes batches to the distance: while a reply is under way the outbox grows."""

    def __init__(self) -> None:
        self.hungry = True
        """The engine asked for a lease and got none."""
        self._fruitless = 0
        self._oldest_move_at = 0.0
        self._answered_at = time.monotonic()
        self._round_trip_s = 0.0
        self._taken = 0
        self._rate = 0.0

    def taken(self) -> None:
        """Note that the engine took a lease."""
        self._taken += 1

    def first_move(self) -> None:
        """Note that the outbox was empty and is not any more."""
        self._oldest_move_at = time.monotonic()
        self._fruitless = 0

    def answered(self, began: float, now: float) -> None:
        """Note a round trip, from *began* to *now*; moves that stay behind linger from here."""
        trip_s = now - began
        self._round_trip_s = 0.8 * self._round_trip_s + 0.2 * trip_s if self._round_trip_s else trip_s
        passed = max(now - self._answered_at, 1e-3)
        weight = min(1.0, passed / 0.5)
        self._rate = (1 - weight) * self._rate + weight * self._taken / passed
        self._taken = 0
        self._answered_at = self._oldest_move_at = now

    def granted(self, wanted: int, leases: int) -> None:
        """Note what an exchange brought."""
        self._fruitless = self._fruitless + 1 if wanted and not leases else 0
        if leases:
            self.hungry = False

    def want(self, capacity: int, running: int, buffered: int) -> int:
        """Return how many leases to ask for: free slots, and what two round trips consume."""
        if capacity <= 0:
            return 0
        ahead = int(2 * self._rate * (self._round_trip_s + LINGER_S)) + 1
        return max(0, min(max(0, capacity - running) + ahead, MAX_LEASES) - buffered)

    def due_at(self, want: int, moves: int, full: bool, waiting: int) -> float:
        """Return when the next exchange is due, in monotonic seconds; 0 for at once."""
        starving = self.hungry and want > 0 and not self._fruitless
        if full or (starving and (moves or waiting)):
            return 0.0
        pause = IDLE_LONGEST_S
        if want:
            pause = min(IDLE_FIRST_S * 2 ** min(self._fruitless, 10), IDLE_LONGEST_S)
        due = self._answered_at + pause * random.uniform(0.8, 1.0)
        return min(due, self._oldest_move_at + LINGER_S) if moves else due
