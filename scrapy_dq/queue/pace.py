"""The pace of a Queue's worker, which makes an exchange when a caller waits for its answer."""

from __future__ import annotations

import random
from collections.abc import Callable

from scrapy_dq.frontier.model import MAX_LEASES
from scrapy_dq.frontier.worker.pace import IDLE_FIRST_S, IDLE_LONGEST_S, LINGER_S, Pace


class OnDemand(Pace):
    """Takes a lease only if a caller waits for an item, because another process may need the item.

    A waiting call makes an exchange due at once; puts of several threads share an exchange. Settlements are
    delayed and sent together. While callers wait for other workers, the pauses between exchanges grow.
    """

    counts_all = False  # the capacity is the number of waiting callers

    def __init__(self, urgent: Callable[[], bool], waits: Callable[[], bool]) -> None:
        """
        Args:
            urgent: returns whether a caller waits for an exchange that is still to be composed and sent.
            waits: returns whether a caller waits for actions of other workers.
        """
        super().__init__()
        self._urgent = urgent
        self._waits = waits
        self._surplus = False
        self._leaseless_exchanges = 0

    def called(self) -> None:
        super().called()
        self._leaseless_exchanges = 0  # the answer may come soon

    def granted(self, wanted: int, leases: int, confirmed: int = 0) -> None:
        super().granted(wanted, leases)
        self._leaseless_exchanges = 0 if leases else self._leaseless_exchanges + 1

    def want(self, capacity: int, running: int, buffered: int, usable: int, appended: int = 0) -> int:
        """Return how many more leases are needed; *capacity*: number of waiting callers."""
        # Leases whose callers were interrupted are given back with the next exchange.
        self._surplus = buffered > 0 and capacity <= 0
        return max(0, min(capacity, MAX_LEASES) - buffered)

    def due_at(self, want: int, moves: int, full: bool, waiting: int, notes: int = 0) -> float:
        if self.is_called or self._urgent() or full or self._surplus:
            return 0.0
        pause = IDLE_LONGEST_S
        if self._waits():
            pause = min(IDLE_FIRST_S * 2 ** min(self._leaseless_exchanges, 10), IDLE_LONGEST_S)
        due = self._answered_at + pause * random.uniform(0.8, 1.0)
        if want:
            due = min(due, max(self._next_due_at - self.ahead_s / 2, self._answered_at + IDLE_FIRST_S))
        return min(due, self._oldest_move_at + LINGER_S) if moves else due
