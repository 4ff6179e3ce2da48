"""Ends of leases that wait for puts in other shards.

A confirmed put can be lost if its shard is rolled back and this worker, which has it in its log, is killed.
Within one shard a roll-back that takes a child takes the ack of its parent, too. Between shards only the
lease of the parent is left to find the child again: so it is kept until its puts elsewhere are retired.
docs/internals/shards.md has the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from scrapy_dq.frontier.model import Ending
from scrapy_dq.frontier.worker.protocol import WorkerProtocol


class _Deferred:
    """The end of a lease, and on how many shards it waits."""

    __slots__ = ("ending", "left", "shard")

    def __init__(self, shard: int, ending: Ending, left: int) -> None:
        self.shard, self.ending, self.left = shard, ending, left


class DeferredEnds:
    """Of one worker.

    Args:
        protocols: of its dialogues, by shard.
    """

    def __init__(self, protocols: Sequence[WorkerProtocol]) -> None:
        self._protocols = protocols
        self._needs: dict[bytes, dict[int, int]] = {}
        """By lease and other shard, the number of the last put there on which the lease depends."""
        self._deferred: dict[bytes, _Deferred] = {}
        """By lease."""
        self._waiting: list[list[tuple[int, int, _Deferred]]] = [[] for _ in protocols]
        """By shard, a heap of numbers of puts, each with a serial number and what waits for it."""
        self._serial = count()

    def __len__(self) -> int:
        return len(self._deferred)

    def depends(self, entry_id: bytes, shard: int) -> None:
        """Note that a lease depends on a put to another shard: the last one of its outbox, or one before."""
        self._needs.setdefault(entry_id, {})[shard] = self._protocols[shard].outbox.last_put

    def defers(self, shard: int, ending: Ending) -> bool:
        """Tell whether *ending* has to wait, and keep it until then; *shard*: of its lease."""
        needs = self._needs.pop(ending.entry_id, None)
        if not needs:
            return False
        waits = {other: n for other, n in needs.items() if self._protocols[other].retired < n}
        if not waits:
            return False
        deferred = self._deferred[ending.entry_id] = _Deferred(shard, ending, len(waits))
        for other, number in waits.items():
            heappush(self._waiting[other], (number, next(self._serial), deferred))
        return True

    def forget(self, entry_id: bytes) -> None:
        """Note that a lease was released: what it depends on does not matter any more."""
        self._needs.pop(entry_id, None)

    def due(self, shard: int) -> Iterator[tuple[int, Ending]]:
        """Remove and yield the ends that have waited for *shard* alone, and no longer, each with its own."""
        waiting = self._waiting[shard]
        while waiting and waiting[0][0] <= self._protocols[shard].retired:
            deferred = heappop(waiting)[2]
            deferred.left -= 1
            # Otherwise it was lost, and its lease may have been granted and deferred again.
            if not deferred.left and self._deferred.get(deferred.ending.entry_id) is deferred:
                del self._deferred[deferred.ending.entry_id]
                yield deferred.shard, deferred.ending

    def give_up(self) -> list[tuple[int, Ending]]:
        """Remove and return all that wait."""
        deferred, self._deferred = self._deferred, {}
        for waiting in self._waiting:
            waiting.clear()
        return [(each.shard, each.ending) for each in deferred.values()]
