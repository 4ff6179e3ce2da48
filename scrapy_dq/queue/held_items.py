"""Which items are in the hands of which thread: got, and not done."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count


class HeldItems:
    """The items that this process works at, in the order in which they were got; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        # Not by the thread's number: that of a thread which ended may be given to another one.
        self._local = threading.local()
        self._held: dict[int, deque[tuple[int, bytes]]] = {}

    def take(self, entry_id: bytes) -> None:
        """Note that this thread got an item."""
        with self._lock:
            mine: deque[tuple[int, bytes]] | None = getattr(self._local, "held", None)
            if mine is None:
                mine = self._local.held = deque()
            self._held[id(mine)] = mine
            mine.append((next(self._numbers), entry_id))

    def put_down(self) -> bytes | None:
        """Return the oldest item of this thread, which is done; if it has none, the oldest of all threads."""
        with self._lock:
            held: deque[tuple[int, bytes]] | None = getattr(self._local, "held", None)
            if not held:
                held = min(self._held.values(), key=lambda each: each[0], default=None)
            if not held:
                return None
            _, entry_id = held.popleft()
            if not held:
                del self._held[id(held)]
            return entry_id
