"""The log of items that Redis has stored, in case Redis is rolled back."""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import Any

from scrapy_dq.frontier.keys import PREFIX

MARK_PREFIX = f"{PREFIX}items-mark:"
LOG_LIMIT_BYTES = 64 * 1024 * 1024
MARK_TTL_S = 3600
"""Seconds until a mark (see `ItemLog`) expires, because a killed process does not delete its mark. If the
mark of a live process has expired, this process takes Redis for rolled back, and writes the items in its log
(usually none) again."""
# After a rollback, the script leaves the old mark unchanged. If it replaced the mark, and the reply got lost,
# the process would not notice the rollback.
_MARK = """
local was = tonumber(redis.call('GET', KEYS[1]) or 0)
if was >= tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
return was
"""


class ItemLog:
    """Items that Redis has confirmed, and a mark in Redis: the number of the newest trip.

    A trip sends a batch of items, and reads the mark. If the mark is older than the last confirmed trip,
    Redis was rolled back, and the items of all trips after the mark are written again. The log drops an item
    once a trip that began *horizon_s* after the item's confirmation has found the mark.
    """

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self.key = f"{MARK_PREFIX}{secrets.token_hex(8)}"
        self._items: deque[tuple[float, int, str | bytes, bytes]] = deque()
        self._bytes = 0
        self._trip = self._marked = 0
        self.off = False
        """Redis refuses the mark, so the process cannot detect a rollback."""

    def place(self, tag: str) -> None:
        """Move the mark's key into the slot of *tag* in a Redis Cluster. Call it before the first trip."""
        self.key = f"{MARK_PREFIX}{tag}:{self.key.removeprefix(MARK_PREFIX)}"

    def __len__(self) -> int:
        return len(self._items)

    def begin(self, pipe: Any) -> None:
        """Add to *pipe*, after its items, the script that reads and sets the mark."""
        self._trip += 1
        self._began = time.monotonic()
        pipe.eval(_MARK, 1, self.key, self._marked, self._trip, MARK_TTL_S)

    def add(self, key: str | bytes, item: bytes) -> None:
        """Add an item that this trip has stored."""
        if self.off:
            return
        self._items.append((time.monotonic(), self._trip, key, item))
        self._bytes += len(item)
        while self._bytes > LOG_LIMIT_BYTES:
            self._drop()

    def found(self, mark: int) -> list[tuple[str | bytes, bytes]]:
        """Process the mark that this trip has found; return the items that Redis has lost, oldest first."""
        if mark >= self._marked:
            self._marked = self._trip
            while self._items and self._items[0][0] + self._horizon_s <= self._began:
                self._drop()
            return []
        self._marked = mark
        forgotten = [(key, item) for _, trip, key, item in self._items if mark < trip < self._trip]
        self._items = deque(each for each in self._items if not mark < each[1] < self._trip)
        self._bytes = sum(len(item) for *_, item in self._items)
        return forgotten

    def _drop(self) -> None:
        self._bytes -= len(self._items.popleft()[3])
