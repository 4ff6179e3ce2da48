"""Ends of leases that wait for puts in other shards.

A confirmed put can be lost if its shard is rolled back and this worker, which has the put in its log, is
killed. If the parent's lease is in the same shard, the roll-back that undoes the put also undoes the ack of
the parent, which then runs again and puts its child again. If the lease is in another shard, its ack is not
undone. So the worker keeps the lease until its puts in other shards are retired. docs/internals/shards.md has
the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from scrapy_dq.frontier.moves import Ack, Ending
from scrapy_dq.sharding.protocol import ShardProtocol


class DeferredEnds:
    """The deferred ends of one worker.

    During a horizon (DQ_ROLLBACK_HORIZON), tens of thousands of ends may have to wait. They are stored as
    tuples of bytes and numbers, which Python's garbage collector visits only once. When they were objects,
    full collections stopped a process for a quarter of a second.

    Args:
        protocols: the protocols of the worker's parts, by shard.
    """

    def __init__(self, protocols: Sequence[ShardProtocol]) -> None:
        self._protocols = protocols
        self._needs: dict[bytes, dict[int, int]] = {}
        """By lease, then by other shard: the highest number of the puts there that the lease waits for."""
        self._deferred: dict[bytes, tuple[int, int, int]] = {}
        """By lease: the serial number of its end, its shard, and how many shards the end still waits for."""
        self._endings: dict[bytes, Ending] = {}
        """By lease: its end, unless this is an Ack."""
        self._waiting: list[list[tuple[int, int, bytes]]] = [[] for _ in protocols]
        """By shard: a heap of tuples. Each has the number of a put in this shard, and the serial number and
        the lease of an end that waits for this put."""
        self._serial = count()

    def __len__(self) -> int:
        return len(self._deferred)

    def depends(self, entry_id: bytes, shard: int, number: int) -> None:
        """Record that a lease depends on a put to another shard; *number*: `Put.number`."""
        if self._protocols[shard].retired < number:
            needs = self._needs.setdefault(entry_id, {})
            needs[shard] = max(number, needs.get(shard, 0))

    def defers(self, shard: int, ending: Ending) -> bool:
        """Tell whether *ending* has to wait, and keep it if so; *shard*: the shard of its lease."""
        needs = self._needs.pop(ending.entry_id, None)
        if not needs:
            return False
        waits = {other: n for other, n in needs.items() if self._protocols[other].retired < n}
        if not waits:
            return False
        entry_id, serial = ending.entry_id, next(self._serial)
        self._deferred[entry_id] = serial, shard, len(waits)
        if isinstance(ending, Ack):
            self._endings.pop(entry_id, None)
        else:
            self._endings[entry_id] = ending
        for other, number in waits.items():
            heappush(self._waiting[other], (number, serial, entry_id))
        return True

    def waits_for(self, entry_id: bytes, shards: frozenset[int]) -> bool:
        """Tell whether a lease depends on a put to one of these shards."""
        return not shards.isdisjoint(self._needs.get(entry_id, ()))

    def forget(self, entry_id: bytes) -> None:
        """Record that a lease was released and depends on no puts any more."""
        self._needs.pop(entry_id, None)

    def due(self, shard: int) -> Iterator[tuple[int, Ending]]:
        """Remove and yield the ends that waited only for *shard* and can now be sent, each with its shard."""
        waiting = self._waiting[shard]
        while waiting and waiting[0][0] <= self._protocols[shard].retired:
            _, serial, entry_id = heappop(waiting)
            current, own, left = self._deferred.get(entry_id, (-1, 0, 0))
            if current != serial:
                continue  # this end was given up, and the entry may have been leased and deferred again
            if left > 1:
                self._deferred[entry_id] = serial, own, left - 1
                continue
            del self._deferred[entry_id]
            ending = self._endings.pop(entry_id, None)
            yield own, Ack(entry_id) if ending is None else ending

    def give_up_on(self, shard: int) -> list[tuple[int, bytes]]:
        """Remove the ends that wait for *shard*, and return their leases, each with its own shard."""
        waiting, self._waiting[shard] = self._waiting[shard], []
        given_up = []
        for _, serial, entry_id in waiting:
            current, own, _ = self._deferred.get(entry_id, (-1, 0, 0))
            if current == serial:
                del self._deferred[entry_id]
                self._endings.pop(entry_id, None)
                given_up.append((own, entry_id))
        return given_up

    def give_up(self) -> list[tuple[int, bytes]]:
        """Remove all ends, and return their leases, each with its shard."""
        given_up = [(shard, entry_id) for entry_id, (_, shard, _) in self._deferred.items()]
        self._deferred.clear()
        self._endings.clear()
        for waiting in self._waiting:
            waiting.clear()
        return given_up
