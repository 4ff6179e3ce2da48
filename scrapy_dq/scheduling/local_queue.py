"""Requests that stay in this worker: what cannot be stored, and what asks to (`dq_local`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from queuelib import PriorityQueue
from queuelib.queue import LifoMemoryQueue
from scrapy import Request


class LocalQueue:
    """Local requests, higher priority first, then newest; and the leases that must wait for them.

    A crash loses what is in here. So the ack of each lease that may be its parent waits until it is
    done: a crash then runs the parent again.
    """

    def __init__(self) -> None:
        self._queue = PriorityQueue(lambda _: LifoMemoryQueue())  # type: ignore[arg-type, return-value]
        self._later: list[tuple[float, int, Request]] = []
        self._numbers = count()
        self._parents: dict[Request, frozenset[bytes]] = {}
        self._taken: set[Request] = set()
        self._holds: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._queue) + len(self._later)

    def __contains__(self, request: Request) -> bool:
        return request in self._parents

    def push(self, request: Request, parents: Iterable[bytes], due_at: float = 0.0) -> None:
        """Take *request* in, and hold its *parents*.

        Args:
            due_at: not to be taken out before, in monotonic seconds.
        """
        if due_at:
            heappush(self._later, (due_at, next(self._numbers), request))
        else:
            self._push(request)
        self._parents[request] = frozenset(parents)
        self._holds.update(self._parents[request])

    @property
    def parentless(self) -> bool:
        """Tell whether one is among them, or at work, that no lease stands for: only this process has it."""
        return not all(self._parents.values())

    def pop(self) -> Request | None:
        """Take the next one; it holds its parents until `done`."""
        if not self._parents:
            return None
        while self._later and self._later[0][0] <= time.monotonic():
            self._push(heappop(self._later)[2])
        request: Request | None = self._queue.pop()
        if request is not None:
            self._taken.add(request)
        return request

    def _push(self, request: Request) -> None:
        priority = request.priority if isinstance(request.priority, int) else 0
        self._queue.push(request, -priority)

    def is_taken(self, request: Request) -> bool:
        """Tell whether it was taken out, and is not done; else the engine knows it by `engine.download()`."""
        return request in self._taken

    def parents(self, request: Request) -> frozenset[bytes]:
        """Return the leases that wait for *request*."""
        return self._parents[request]

    def holds(self, entry_id: bytes) -> bool:
        """Tell whether a local request keeps this lease from being acked."""
        return self._holds[entry_id] > 0

    def done(self, request: Request) -> list[bytes]:
        """Forget *request*; return the leases that wait for nothing any more."""
        self._taken.discard(request)
        free = []
        for entry_id in self._parents.pop(request):
            self._holds[entry_id] -= 1
            if not self._holds[entry_id]:
                del self._holds[entry_id]
                free.append(entry_id)
        return free
