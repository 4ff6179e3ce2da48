"""The leases of this worker: each waits in the buffer, runs, or has ended, with its end in the outbox."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection
from itertools import chain
from math import ceil
from operator import attrgetter

from scrapy_dq.frontier.model import MAX_LEASES, Lease
from scrapy_dq.frontier.moves import Ending, Move, Release, Return

RECENT = 256
"""Number of recent leases from which a partition's share of the work is computed."""
_PLACE = attrgetter("place")


class Leases:
    """The worker's record of its leases. Redis has its own record, and an exchange compares the two sizes.

    Args:
        limit: returns how many leases of a partition may be downloading here at the same time.
    """

    def __init__(self, limit: Callable[[bytes], int]) -> None:
        self._limit = limit
        # The buffered leases of each partition, in the crawl's order. If they have times for sending (because
        # of a delay), they are in the order in which they were granted. No queue is empty.
        self._buffer: dict[bytes, deque[Lease]] = {}
        self._buffered: set[bytes] = set()
        self._running: set[bytes] = set()
        # By lease: its partition, for leases that were taken and are not downloaded yet. By partition: the
        # number of these leases.
        self._downloading: dict[bytes, bytes] = {}
        self._load: dict[bytes, int] = {}
        self._recent: Counter[bytes] = Counter()
        # By partition: the running lease that has a time for sending, and whose request was not sent yet. The
        # next lease of the partition cannot be taken before this request is sent.
        self._unsent: dict[bytes, Lease] = {}
        self.never_sent: set[bytes] = set()
        """Running leases whose requests were not sent, and will not be."""
        self.owned: set[bytes] = set()
        """The leases that Redis should have under our id: buffered, running, or ended in the outbox."""
        self._settling: dict[bytes, type[Move]] = {}
        self.suspect: bytes | None = None
        """The lease of a suspect whose work is not done yet; there is at most one."""
        self.forfeited: set[bytes] = set()
        """Leases that ran when the worker gave up all leases. Their puts may be lost, so they can only be
        released."""

    def __len__(self) -> int:
        """Return the number of leases that Redis should hold for this worker."""
        return len(self.owned)

    @property
    def buffered(self) -> int:
        return len(self._buffered)

    def is_unsent(self, entry_id: bytes) -> bool:
        """Tell whether a lease with a time for sending is running, and its request was not sent yet."""
        return any(lease.entry_id == entry_id for lease in self._unsent.values())

    @property
    def usable(self) -> int:
        """How many buffered leases could run now, within their partitions' limits."""
        return sum(min(len(queue), max(0, self._room(p))) for p, queue in self._buffer.items())

    @property
    def stuck(self) -> list[bytes]:
        """The partitions without room, if their leases fill more than half of the buffer; else empty."""
        full = [partition for partition in self._buffer if self._room(partition) <= 0]
        return full if sum(len(self._buffer[p]) for p in full) > MAX_LEASES // 2 else []

    def is_running(self, entry_id: bytes) -> bool:
        """Tell whether a lease was taken and is not settled."""
        return entry_id in self._running

    @property
    def running(self) -> int:
        return len(self._running)

    def grant(self, lease: Lease) -> None:
        """Add a lease that an exchange has granted."""
        self.owned.add(lease.entry_id)
        if lease.suspect:
            self.suspect = lease.entry_id
        # A lost lease may be granted to us again while its work still runs here: do not start the work twice.
        if lease.entry_id in self._running or lease.entry_id in self._settling:
            return
        # Redis may have the entry twice, because its token was forgotten and a replay log has put it again.
        # Both copies have the same id, and count as one lease (lua/lib/grants.lua).
        if lease.entry_id in self._buffered:
            return
        self._buffered.add(lease.entry_id)
        queue = self._buffer.setdefault(lease.partition, deque())
        last = queue[-1] if queue else lease
        if lease.place >= last.place or lease.send_at is not None or last.send_at is not None:
            queue.append(lease)
        else:
            insort(queue, lease, key=_PLACE)

    def take(self, now: float) -> Lease | None:
        """Remove and return the next buffered lease from the least loaded partition with room, or None."""
        best, least = None, 0
        for partition, queue in self._buffer.items():
            send_at = queue[0].send_at
            if send_at is not None and (send_at > now or partition in self._unsent):
                continue
            load = self._load.get(partition, 0)
            if load >= self._limit(partition):
                continue
            if best is None or load < least:
                best, least = partition, load
                if not load:
                    break
        if best is None:
            return None
        queue = self._buffer.pop(best)
        lease = queue.popleft()
        self._buffered.discard(lease.entry_id)
        if queue:
            self._buffer[best] = queue
        if lease.send_at is not None:
            self._unsent[best] = lease
        self._running.add(lease.entry_id)
        self._downloading[lease.entry_id] = best
        self._load[best] = least + 1
        self._recent[best] += 1
        return lease

    def sent(self, entry_id: bytes, at: float | None) -> bytes | None:
        """Record that a lease with a time for sending was sent, and return its partition.

        Calls for other leases, and repeated calls, return None.

        Args:
            at: when the request was sent; None: it will never be sent.
        """
        partition = self._downloading.get(entry_id)
        lease = self._unsent.get(partition) if partition is not None else None
        if lease is None or lease.entry_id != entry_id or partition is None:
            return None
        del self._unsent[partition]
        assert lease.send_at is not None
        shift = None if at is None else max(0.0, at - lease.send_at)
        for later in self._buffer.get(partition, ()):
            # If this request was sent late, the later leases are delayed as much. If it is never sent, the
            # next lease gets the time of this one.
            if later.send_at is not None:
                shift = lease.send_at - later.send_at if shift is None else shift
                later.send_at += shift
        return partition

    def next_send_at(self, now: float) -> float | None:
        """Return the earliest future time for sending among the buffered leases, or None."""
        times = (queue[0].send_at for queue in self._buffer.values())
        return min((at for at in times if at is not None and at > now), default=None)

    def send_at_of(self, partition: bytes) -> float | None:
        """Return when the next buffered lease of *partition* may be sent; None: at any time, or no lease."""
        queue = self._buffer.get(partition)
        return queue[0].send_at if queue else None

    def here(self, ahead: int) -> dict[bytes, tuple[int, int]]:
        """Return, by partition, how many leases are buffered or download here, and how many more fit.

        Args:
            ahead: number of leases of all partitions that the owner takes during two round trips to Redis.
        """
        recent = self._recent.total()
        if recent > RECENT:
            self._recent = Counter({p: n // 2 for p, n in self._recent.items() if n > 1})
        found = {}
        for partition in (*self._load, *(p for p in self._buffer if p not in self._load)):
            buffered = len(self._buffer.get(partition, ()))
            extra = ceil(ahead * self._recent[partition] / recent) if recent else 0
            room = self._room(partition) - buffered + extra
            found[partition] = (self._load.get(partition, 0) + buffered, max(0, room))
        return found

    def settle(self, move: Ending | Return) -> bool:
        """Record the end of a lease; return False if the move must not be sent to Redis.

        If the lease was reclaimed from us, it may belong to another worker now. Then that worker's ack
        counts, and not ours.
        """
        self._running.discard(move.entry_id)
        if move.entry_id in self._downloading:
            self.downloaded(move.entry_id)
        if move.entry_id not in self.owned or move.entry_id in self._settling:
            return False
        self._settling[move.entry_id] = type(move)
        return True

    def downloaded(self, entry_id: bytes) -> None:
        """Record that a lease no longer counts against the limit of its partition."""
        partition = self._downloading.pop(entry_id, None)
        if partition is None:
            return
        unsent = self._unsent.get(partition)
        if unsent is not None and unsent.entry_id == entry_id:
            del self._unsent[partition]
        if self._load[partition] > 1:
            self._load[partition] -= 1
        else:
            del self._load[partition]

    def _room(self, partition: bytes) -> int:
        return self._limit(partition) - self._load.get(partition, 0)

    def forfeit(self) -> None:
        """Give up all leases. The running leases have to end with a release, so that they run again.

        This holds even if Redis grants them to us again in the meantime.
        """
        self.forfeited |= self._running
        self.keep(())

    def ends(self, entry_id: bytes) -> bool:
        """Tell whether a lease was settled here, and Redis has not confirmed this."""
        return entry_id in self._settling

    def empty_buffer(self) -> list[bytes]:
        """Remove all leases from the buffer; return their ids."""
        return [entry_id for partition in list(self._buffer) for entry_id in self.withdraw(partition)]

    def withdraw(self, partition: bytes) -> list[bytes]:
        """Remove a partition's leases from the buffer; return their ids."""
        entry_ids = [lease.entry_id for lease in self._buffer.pop(partition, ())]
        self._buffered.difference_update(entry_ids)
        return entry_ids

    def confirmed(self, entry_id: bytes) -> None:
        """Record that Redis has settled a lease."""
        self.cleared(entry_id)
        self.owned.discard(entry_id)
        self._settling.pop(entry_id, None)

    def cleared(self, entry_id: bytes) -> None:
        """Record that the work of a lease is done, and that Redis knows this."""
        if self.suspect == entry_id:
            self.suspect = None

    def held(self) -> list[bytes]:
        """Return the ids of the leases that a rejoin keeps: all except those whose release is unconfirmed."""
        return [i for i in sorted(self.owned) if self._settling.get(i) is not Release]

    def keep(self, owned: Collection[bytes]) -> None:
        """Keep only the leases *owned*. Other running leases continue, but Redis does not get their ends."""
        self.owned = set(owned)
        if self.suspect not in self.owned:
            self.suspect = None
        in_buffer = chain.from_iterable(self._buffer.values())
        kept = [lease for lease in in_buffer if lease.entry_id in self.owned]
        self._buffer.clear()
        self._buffered = {lease.entry_id for lease in kept}
        for lease in kept:
            self._buffer.setdefault(lease.partition, deque()).append(lease)
        self._settling = {i: kind for i, kind in self._settling.items() if i in self.owned}
