"""What this worker holds: leases waiting in the buffer, at work, or settled in the outbox."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from scrapy_dq.frontier.model import Ack, Bury, Fail, Lease, Move, Release


class Leases:
    """The worker's book of leases; Redis has one of its own, and an exchange compares their sizes."""

    def __init__(self) -> None:
        self._buffer: deque[Lease] = deque()
        self._running: set[bytes] = set()
        # All that Redis has on our name, as far as we know: buffered, running, or settled in the outbox.
        self._owned: set[bytes] = set()
        self._settling: dict[bytes, type[Move]] = {}
        # At work when the outbox was lost: what they put until then may be gone.
        self._spoiled: set[bytes] = set()

    def __len__(self) -> int:
        """How many leases Redis should hold for this worker."""
        return len(self._owned)

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    @property
    def running(self) -> int:
        return len(self._running)

    def grant(self, lease: Lease) -> None:
        """Take in a lease that an exchange brought."""
        self._owned.add(lease.entry_id)
        # It may come back to us while its work goes on here: adopt it, do not start it twice.
        if lease.entry_id not in self._running and lease.entry_id not in self._settling:
            self._buffer.append(lease)

    def take(self) -> Lease | None:
        """Hand out the next lease in the buffer."""
        if not self._buffer:
            return None
        lease = self._buffer.popleft()
        self._running.add(lease.entry_id)
        return lease

    def settle(self, move: Ack | Release | Bury | Fail) -> bool:
        """Note the end of a lease; False if there is nothing to tell Redis.

        A lease that was reclaimed from us is somebody else's: their ack counts, not ours.
        """
        self._running.discard(move.entry_id)
        if move.entry_id not in self._owned or move.entry_id in self._settling:
            return False
        self._settling[move.entry_id] = type(move)
        return True

    def forfeit(self) -> None:
        """Own nothing any more; what runs has to run again, even if its lease comes back to us meanwhile."""
        self._spoiled |= self._running
        self.keep(())

    def take_spoiled(self, entry_id: bytes) -> bool:
        """Tell, once, whether this work may have lost children: then its lease can only be released."""
        spoiled = entry_id in self._spoiled
        self._spoiled.discard(entry_id)
        return spoiled

    def empty_buffer(self) -> list[bytes]:
        """Return the ids of all leases in the buffer, which is empty then."""
        ids = [lease.entry_id for lease in self._buffer]
        self._buffer.clear()
        return ids

    def confirmed(self, entry_id: bytes) -> None:
        """Redis has settled it."""
        self._owned.discard(entry_id)
        self._settling.pop(entry_id, None)

    def held(self) -> list[bytes]:
        """Return what a rejoin asks to keep: it gives back by itself what a queued release would."""
        return [i for i in sorted(self._owned) if self._settling.get(i) is not Release]

    def keep(self, owned: Collection[bytes]) -> None:
        """Keep only *owned*; what runs without being owned goes on, and is not settled later."""
        self._owned = set(owned)
        self._buffer = deque(lease for lease in self._buffer if lease.entry_id in self._owned)
        self._settling = {i: kind for i, kind in self._settling.items() if i in self._owned}
