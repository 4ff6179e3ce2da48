"""The ways in which a worker ends a lease."""

from __future__ import annotations

import time

from scrapy_dq.frontier.moves import Ack, Again, Bury, Decline, Ending, Fail, Release, Return, next_id


class Settling:
    """The methods that end a lease."""

    def settle(self, move: Ending | Return) -> None:
        """Settle a lease; do nothing if the lease was not taken, or is settled."""
        raise NotImplementedError

    def ack(self, entry_id: bytes) -> None:
        """Settle a lease whose work is done, and whose children were all put."""
        self.settle(Ack(entry_id))

    def again(self, entry_id: bytes, payload: bytes, priority: int, start: int, wait_s: float) -> None:
        """Settle a lease whose work is done, and will be repeated after *wait_s* seconds; see `Again`."""
        due_at = time.monotonic() + wait_s
        self.settle(Again(entry_id, next_id(entry_id), payload, priority, start, due_at))

    def release(self, entry_id: bytes) -> None:
        """Return a lease to the backlog; no attempt is charged."""
        self.settle(Release(entry_id))

    def fail(self, entry_id: bytes, reason: str, label: str) -> None:
        """Settle a lease whose work has failed, and is not tried again; *label*: see `Fail`."""
        self.settle(Fail(entry_id, reason, label))

    def bury(self, entry_id: bytes, reason: str) -> None:
        """Turn a lease into a dead letter."""
        self.settle(Bury(entry_id, reason))

    def decline(self, entry_id: bytes, reason: str, fingerprint: bytes = b"") -> None:
        """Return a lease that this worker's code cannot serve, and does not get again; see `Decline`."""
        self.settle(Decline(entry_id, reason, fingerprint))
