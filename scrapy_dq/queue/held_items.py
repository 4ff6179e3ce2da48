"""Which items each thread has got and not finished."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count


class HeldItems:
    """The items that this process works on, in the order in which they were got; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        # Not by thread id: the id of a thread that has ended may be used again.
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

    def remove_oldest(self) -> bytes | None:
        """Remove and return the oldest item of this thread; if it has none, the oldest of all threads."""
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
