"""One worker of a crawl: the interface for its owner, over its dialogues with the shards of the crawl."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import (
    MAX_LEASES,
    Ack,
    Block,
    Bury,
    Census,
    Fail,
    Joined,
    Lease,
    Put,
    Release,
    Seeding,
)
from scrapy_dq.frontier.worker.dialogue import Dialogue
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.pace import Pace


class Worker:
    """One worker of a crawl, on the running event loop. Only the coroutine methods wait."""

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        connect: Callable[[], Any],
        capacity: Callable[[], int],
        limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
        pace: Pace | None = None,
    ) -> None:
        """
        Args:
            connect: returns a blocking `redis` client for the heartbeat thread.
            capacity: how many leases can run here at once; 0 (paused, closing) releases the buffer.
            limit: how many of a partition may be downloading here at once, from `take` to `downloaded`.
            pace: when an exchange is due, and for how many leases; None: that of a crawl.
        """
        self.home = Dialogue(
            frontier, crawl, own_identity(), options, listener,
            connect=connect, capacity=capacity, limit=limit, pace=pace or Pace(),
        )  # fmt: skip

    @property
    def id(self) -> str:
        """The id under which this worker is registered now; a rejoin changes it."""
        return self.home.id

    @property
    def epoch(self) -> str:
        return self.home.protocol.epoch

    @property
    def run(self) -> int:
        return self.home.protocol.run

    @property
    def census(self) -> Census:
        """All counts, as of the last exchange."""
        return self.home.protocol.census

    @property
    def composed(self) -> int:
        """Number of composed exchanges; anything put, settled or noted now is sent in a later one."""
        return self.home.protocol.composed

    @property
    def applied(self) -> int:
        """The number, among composed exchanges from 1 on, of the last one that Redis has applied."""
        return self.home.protocol.applied

    @property
    def under_way(self) -> bool:
        """An exchange or a rejoin was composed and is not answered yet."""
        return self.home.protocol.under_way

    @property
    def unconfirmed_puts(self) -> int:
        """Number of puts that Redis has not confirmed; they are confirmed in order."""
        return self.home.protocol.outbox.puts

    @property
    def outage(self) -> str:
        """Why Redis gives no usable answer now, in a sentence without a full stop; empty: no outage."""
        return self.home.outage.reason

    @property
    def over(self) -> bool:
        """The run is finished for good: no more puts are accepted."""
        return self.home.protocol.over

    @property
    def left_over(self) -> list[Put]:
        """Puts without a parent that the run, now over, may not have completed."""
        return self.home.protocol.left_over

    @property
    def lost(self) -> bool:
        """The frontier is gone; the crawl cannot continue."""
        return self.home.protocol.lost

    @property
    def on_hold(self) -> bool:
        """The crawl is paused or draining: no worker gets a lease."""
        return self.home.protocol.on_hold

    @property
    def handed_in(self) -> bool:
        """It is leaving, and has stored what it had: what is put from now on would be lost."""
        return self.home.handed_in

    @property
    def idle(self) -> bool:
        """Nothing of the whole crawl is left, as far as this worker knows; start payloads may still come."""
        return self.home.protocol.idle

    @property
    def pending(self) -> bool:
        """Something of the whole crawl is not done yet, as far as this worker knows."""
        return self.home.protocol.pending

    @property
    def ending(self) -> str:
        """Why this worker closes when nothing is left to do: `finished`, unless something is missing."""
        return self.home.protocol.ending

    # For the owner; none of these waits.

    def put(self, put: Put) -> bool:
        """Add a new entry to the outbox; return False if it was dropped because the run is over for good."""
        home = self.home.protocol
        if home.over:
            return False
        home.finished = False
        self.home.append(put)
        return True

    def take(self) -> Lease | None:
        """Return the next lease to run; None if there is none at the moment."""
        return self.home.take()

    def sent(self, entry_id: bytes) -> None:
        """Note that the request of a lease was sent; leases without a time for sending are ignored.

        The delay starts at the first call for a lease; later calls are ignored. If the call is too early, the
        site sees a shorter delay.
        """
        self.home.sent(entry_id)

    def downloaded(self, entry_id: bytes) -> None:
        """Note that a lease no longer counts against its partition's limit; settling it implies this."""
        self.home.downloaded(entry_id)

    def held_up(self, entry_id: bytes) -> None:
        """Note that the download of a lease waits in this process: it does not count against the limit now.

        A lease with a time for sending keeps counting until it is sent: the next one is timed by that.
        """
        self.home.held_up(entry_id)

    def block(self, partition: bytes, seconds: float) -> None:
        """Block a partition for all workers for *seconds*, because its site asked for it."""
        self.home.block(Block(partition, time.monotonic() + seconds))

    def ack(self, entry_id: bytes) -> None:
        """Settle a lease: its work is done, and all its children were put."""
        self.home.settle(Ack(entry_id))

    def release(self, entry_id: bytes) -> None:
        """Return a lease to the backlog; no attempt is charged."""
        self.home.settle(Release(entry_id))

    def fail(self, entry_id: bytes, reason: str, label: str) -> None:
        """Settle a lease whose work has failed for good; *label*: see `Fail`."""
        self.home.settle(Fail(entry_id, reason, label))

    def bury(self, entry_id: bytes, reason: str) -> None:
        """Turn a lease into a dead letter."""
        self.home.settle(Bury(entry_id, reason))

    def seeded(self, *, failed: bool = False) -> None:
        """Note that `start()` is exhausted, or raised."""
        if self.home.protocol.seeding == Seeding.ACTIVE:
            self.home.protocol.seeding = Seeding.FAILED if failed else Seeding.DONE
            self.home.kick()

    def listen(self, on: bool) -> None:
        """Keep the run open for start payloads even if nothing is left (*on*), or stop doing so."""
        if self.home.protocol.listening != on:
            self.home.protocol.listening = on
            self.home.kick()

    def kick(self) -> None:
        """Recompute when the next exchange is due."""
        self.home.kick()

    # Joining and leaving.

    async def start(self, new_epoch: str) -> Joined:
        """Join the crawl, reclaim the leases of dead workers of this machine, and start exchanging.

        Raises:
            FrontierUnavailable, FrontierRefused: nothing was started.
        """
        return await self.home.start(new_epoch)

    async def stop(self, deadline_s: float, *, durable: bool | None = None) -> None:
        """Release the buffer, send the outbox, and leave; give up after *deadline_s* seconds.

        What could not be sent stays in flight under this worker's id, and is run again.

        Args:
            durable: do not leave an open run before all puts are on Redis's disk. None: wait if the replay
                log, which ends with this worker, has puts that no other worker could repeat.
        """
        await self.home.stop(deadline_s, durable=durable)

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """See `durability.py`."""
        return await self.home.wait_until_durable(verify, deadline)
