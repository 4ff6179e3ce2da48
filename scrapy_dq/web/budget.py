"""How much of Redis's time looks may take: 2 % in the long run, shared equally by the crawls that need it."""

from __future__ import annotations

PAUSE = 49
"""What a look took of Redis is paid by so many times as much without one: 1 part of 50 is 2 %."""
MOST_PAUSE_S = 2.0
"""Of a pause for all. The rest is owed by the crawl alone: a costly one does not keep others waiting."""
_LEAST_S = 0.001
"""Less is not owed."""


class Budget:
    """Notes which crawls owe a pause; times are those of a monotonic clock, in seconds.

    Each second pays one of those that are owed, in equal parts. So a crawl whose looks take little pays at
    once, however much another one owes. Beyond 2 %, there was at most one look at each crawl that owes. A
    debt stays when nobody asks for its crawl any more.
    """

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}
        self._paid_at = 0.0

    def charge(self, crawl: str, took_s: float, now: float) -> float:
        """Note that a look took so long of Redis; return how long there is none at any crawl."""
        self._pay(now)
        pause_s = PAUSE * took_s
        self._owed[crawl] = self._owed.get(crawl, 0.0) + pause_s
        return min(pause_s, MOST_PAUSE_S)

    def left_s(self, crawl: str, now: float) -> float:
        """Return how long it takes until *crawl* owes nothing, if nothing more is charged."""
        self._pay(now)
        own = self._owed.get(crawl, 0.0)
        return sum(min(owed, own) for owed in self._owed.values())

    def _pay(self, now: float) -> None:
        passed_s, self._paid_at = now - self._paid_at, now
        while self._owed and passed_s > 0:
            least = min(self._owed.values())
            part = min(least, passed_s / len(self._owed))
            passed_s = passed_s - part * len(self._owed) if part == least else 0.0
            self._owed = {crawl: owed - part for crawl, owed in self._owed.items() if owed - part > _LEAST_S}
