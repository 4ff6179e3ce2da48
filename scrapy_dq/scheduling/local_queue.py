"""Requests that stay in this worker, because they cannot be stored or have meta["dq_local"]."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count

from scrapy import Request


class LocalQueue:
    """Local requests by partition, highest priority first, then newest; and the leases that wait for them.

    A crash loses local requests. So a lease that may be the parent of a local request is acked only after
    that request is done. After a crash, the parent runs again, and yields the request again.
    """

    def __init__(self) -> None:
        self._queues: dict[bytes, list[tuple[int, int, Request]]] = {}
        """No queue is empty; the queue that was served longest ago comes first."""
        self._later: list[tuple[float, int, Request, bytes]] = []
        self._numbers = count()
        self._parents: dict[Request, frozenset[bytes]] = {}
        self._parentless = 0
        self._taken: set[Request] = set()
        self._holds: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._parents) - len(self._taken)

    def __contains__(self, request: Request) -> bool:
        return request in self._parents

    def push(self, request: Request, partition: bytes, parents: Iterable[bytes], due_at: float = 0.0) -> None:
        """Add *request*; its *parents* are leases that must not be acked before *request* is done.

        Args:
            due_at: monotonic time before which `pop` does not return it; 0: it is due.
        """
        if due_at:
            heappush(self._later, (due_at, next(self._numbers), request, partition))
        else:
            self._push(request, partition)
        self._parents[request] = frozenset(parents)
        self._parentless += not self._parents[request]
        self._holds.update(self._parents[request])

    @property
    def parentless(self) -> bool:
        """Return whether a waiting or taken request has no parent that would yield it again after a crash."""
        return self._parentless > 0

    def pop(self, choose: Callable[[Iterable[bytes]], bytes | None]) -> tuple[Request, bytes] | None:
        """Take the next request and its partition; None: no request can run now.

        Args:
            choose: returns which of the partitions is served; None: none of them.
        """
        while self._later and self._later[0][0] <= time.monotonic():
            self._push(*heappop(self._later)[2:])
        partition = choose(self._queues) if self._queues else None
        if partition is None:
            return None
        queue = self._queues.pop(partition)
        request = heappop(queue)[2]
        if queue:
            self._queues[partition] = queue
        self._taken.add(request)
        return request, partition

    def _push(self, request: Request, partition: bytes) -> None:
        priority = request.priority if isinstance(request.priority, int) else 0
        heappush(self._queues.setdefault(partition, []), (-priority, -next(self._numbers), request))

    def move(self, request: Request, to: Request) -> None:
        """Record that the engine gets *to*, a copy, instead of *request*, which `pop` returned."""
        self._parents[to] = self._parents.pop(request)
        self._taken.discard(request)
        self._taken.add(to)

    def is_taken(self, request: Request) -> bool:
        """Return whether `pop` has returned *request*, and *request* is not done.

        False: it still waits here. Nevertheless, a callback may download it with `engine.download()`.
        """
        return request in self._taken

    def parents(self, request: Request) -> frozenset[bytes]:
        """Return the leases that wait for *request*."""
        return self._parents[request]

    def holds(self, entry_id: bytes) -> bool:
        """Return whether this lease has to wait for a local request."""
        return entry_id in self._holds

    def done(self, request: Request) -> list[bytes]:
        """Remove *request*; return the leases that no longer wait for any local request."""
        self._taken.discard(request)
        parents = self._parents.pop(request)
        self._parentless -= not parents
        self._holds.subtract(parents)
        free = [entry_id for entry_id in parents if not self._holds[entry_id]]
        for entry_id in free:
            del self._holds[entry_id]
        return free
