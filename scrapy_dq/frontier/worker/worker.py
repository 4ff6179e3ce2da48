"""One worker of a crawl: the interface for its owner."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from scrapy_dq.frontier.answers import Joined, Notices
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import (
    MAX_LEASES,
    Block,
    Census,
    FrontierRefused,
    Identity,
    Lease,
    Seeding,
    Status,
)
from scrapy_dq.frontier.moves import Decline, Ending, Put, Release, Return
from scrapy_dq.frontier.worker.child_tokens import ChildTokens
from scrapy_dq.frontier.worker.dialogue import Dialogue
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.identity import new_worker_id, own_identity
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.membership import Membership
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.protocol import WorkerProtocol
from scrapy_dq.frontier.worker.settling import Settling


class Worker(Settling):
    """One worker of a crawl, on the running event loop. Only the coroutine methods wait.

    `sharding.worker.ShardedWorker` has the same interface. It has one worker for each frontier, in `parts`.
    """

    protocol_class: type[WorkerProtocol] = WorkerProtocol
    membership_class: type[Membership] = Membership

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
        identity: dict[str, Any] | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """
        Args:
            connect: returns a client of `redis.asyncio` for the heartbeat; called in the heartbeat's thread.
            capacity: returns how many leases can run here. While it returns 0, because the owner is paused or
                closing, the worker releases its buffer.
            limit: returns how many leases of a partition may download here at the same time; each counts from
                `take` to `downloaded`.
            pace: decides when an exchange is due, and how many leases it requests.
            identity: the identity of this process; see `identity.py`.
            heartbeat: the heartbeat of this process.
        """
        self._listener = listener
        self._capacity = capacity
        identity = identity or own_identity()
        self.frontier = frontier
        self.heartbeat = heartbeat or Heartbeat(ttl_s=options.ttl_s)
        self.protocol = self.protocol_class(
            frontier.name.crawl, listener, Outbox(options.spill_dir), options.rollback_horizon_s,
            new_id=partial(new_worker_id, identity), random_bytes=os.urandom, limit=limit,
            start_keys=frontier.start_keys, label=frontier.name.label, is_home=frontier.name.is_home,
        )  # fmt: skip
        self.protocol.max_pages = options.max_pages
        self.dialogue = Dialogue(
            frontier, self.protocol, identity, crawl, options, listener, heartbeat=self.heartbeat,
            capacity=self._room, pace=pace or Pace(), exchanged=self._exchanged,
        )  # fmt: skip
        self.membership = self.membership_class(
            frontier, self.dialogue, identity, crawl, options, listener, heartbeat=self.heartbeat,
            connect=connect,
        )  # fmt: skip
        self.leases = self.protocol.leases
        self.tokens = ChildTokens(self.protocol, (self.protocol,))
        self._reported = (True, False)
        """The values of `pending` and `over` that the owner knows."""
        self._leaving = False
        self.unstored_puts = 0
        """Number of puts that `stop` could not store."""

    @property
    def id(self) -> str:
        """The id under which this worker is registered now; a rejoin changes it."""
        return self.protocol.id

    @property
    def epoch(self) -> str:
        return self.protocol.epoch

    @property
    def run(self) -> int:
        return self.protocol.run

    @property
    def census(self) -> Census:
        """All counts, as of the last exchange."""
        return self.protocol.census

    @property
    def composed(self) -> int:
        """Number of composed exchanges. Only a later exchange sends what the owner puts or settles now."""
        return self.protocol.composed

    @property
    def applied(self) -> int:
        """The number of the last applied exchange; composed exchanges are numbered from 1 on."""
        return self.protocol.applied

    @property
    def answered(self) -> int:
        """The value of `applied`; in an outage, a value larger than the number of any exchange."""
        return sys.maxsize if self.outage else self.applied

    @property
    def unconfirmed_puts(self) -> int:
        """Number of puts that Redis has not confirmed."""
        return self.protocol.outbox.puts

    @property
    def outage(self) -> str:
        """Why Redis gives no usable answer now, in a sentence without a full stop; empty: no outage."""
        return self.dialogue.outage.reason

    @property
    def over(self) -> bool:
        """Whether the run has ended for this worker, so that it accepts no more puts."""
        return self.protocol.drops_puts

    @property
    def leftover_puts(self) -> list[Put]:
        """Puts without a parent lease, whose requests may not have been completed when the run ended."""
        return self.protocol.leftover_puts

    @property
    def lost(self) -> bool:
        """Whether the frontier is gone, so that the crawl cannot continue."""
        return self.protocol.lost

    @property
    def on_hold(self) -> bool:
        """Whether the crawl is paused or draining, so that no worker gets a lease."""
        return self.protocol.on_hold

    @property
    def handed_in(self) -> bool:
        """Whether the worker is leaving and has stored all its moves, so that later puts would be lost."""
        return self._leaving and self.membership.handed_in

    @property
    def idle(self) -> bool:
        """Whether the crawl has no work left, as far as this worker knows. Start payloads may still come."""
        return self.protocol.seeding != Seeding.ACTIVE and self.protocol.census.empty and not self._has_work

    def idle_at_once(self) -> bool:
        """Tell whether there was a moment at which the whole crawl had no work left."""
        return self.idle

    def only_over_budget(self) -> bool:
        """Tell whether there was a moment at which all remaining requests were over budgets."""
        census = self.protocol.census
        return bool(census.only_over_budget and census.waiting and not self._has_work)

    @property
    def _has_work(self) -> bool:
        """Whether this worker itself has leases, or moves to send."""
        return bool(self.protocol.outbox or self.leases)

    @property
    def pending(self) -> bool:
        """Whether some work of the whole crawl is not done yet, as far as this worker knows."""
        protocol = self.protocol
        if protocol.over:
            return False
        if protocol.start_broken and not self._has_work:
            return not protocol.census.empty
        return not protocol.finished or protocol.seeding == Seeding.ACTIVE or bool(protocol.outbox)

    @property
    def max_pages_reached(self) -> bool:
        """Whether as many requests were sent as WorkerOptions.max_pages allows, and some work is left."""
        most = self.protocol.max_pages
        return most is not None and self.census.pages >= most and self.pending

    @property
    def ending(self) -> str:
        """Why this worker closes when no work is left; `finished` if nothing is missing."""
        if self.protocol.left_behind:
            return "run_over"
        return reason_of(self.protocol.census)

    # For the owner. None of these methods waits.

    def put(self, put: Put) -> bool:
        """Add a new entry to the outbox. Return False if the run is over, so that the entry was dropped."""
        if self._reported[1] or self.protocol.over:
            return False
        self._reported = (True, False)
        self.append(put)
        return True

    def append(self, put: Put) -> None:
        """Add a new entry to the outbox, in a run that is not over."""
        self.protocol.finished = False
        self.dialogue.append(put)

    def note_fed(self, put: Put) -> None:
        """Record that *put*, which was just put, was made from the start payload of its parent's lease.

        The owner calls this after all puts from that start payload, and before it ends the lease; see
        `Put.once`.
        """
        put.once = True

    def forget_with_parent(self, put: Put) -> None:
        """Let Redis forget the token of *put* as soon as no worker can get its parent's lease again."""
        if put.parent and self.leases.is_running(put.parent):
            self.tokens.put(put.parent, 0, put.entry_id)

    @property
    def last_references(self) -> Sequence[int]:
        """The references of the last puts; see `depends`."""
        return ()

    def depends(self, entry_ids: Iterable[bytes], reference: int) -> None:
        """Record that these leases must not end before an earlier put is certain (retired).

        The pages of these leases may have yielded the request of this put again, which was dropped as a
        duplicate. Or the put has no parent lease, and these leases may have led to it. With one frontier,
        the order of the moves is sufficient, so this method does nothing.

        Args:
            reference: see `Put.reference`.
        """

    def take(self) -> Lease | None:
        """Return the next lease to run; None if no lease can run at the moment."""
        if self._reported[1]:
            return None  # the run is over: the lease would be released, and leased again
        lease = self.dialogue.take()
        if lease is None:
            self.dialogue.lease_missed()
        return lease

    def sent(self, entry_id: bytes) -> None:
        """Record that the request of a lease was sent; leases without a time for sending are ignored.

        The delay starts at the first call for a lease; later calls are ignored. If the owner calls this too
        early, the site sees a shorter delay.
        """
        if (dialogue := self._dialogue_of(entry_id)) is not None:
            dialogue.sent(entry_id, time.monotonic())

    def never_sent(self, entry_id: bytes) -> None:
        """Record that the request of a lease will never be sent, although its work is done as usual.

        The lease counts neither against a budget nor as a page. The next request of its partition may be sent
        immediately.
        """
        if (dialogue := self._dialogue_of(entry_id)) is not None:
            dialogue.never_sent(entry_id)

    def downloaded(self, entry_id: bytes) -> None:
        """Record that a lease no longer counts against its partition's limit; settling it implies this."""
        if (dialogue := self._dialogue_of(entry_id)) is not None:
            dialogue.downloaded(entry_id)

    def held_up(self, entry_id: bytes) -> None:
        """Record that a download waits in this process. Its lease no longer counts against the limit.

        But a lease with a time for sending counts until its request is sent, because the delay of the next
        lease begins when this request is sent.
        """
        if (dialogue := self._dialogue_of(entry_id)) is not None:
            dialogue.held_up(entry_id)

    def _dialogue_of(self, entry_id: bytes) -> Dialogue | None:
        """Return the dialogue of a lease; None if the lease was not taken, or is settled."""
        return self.dialogue if self.leases.is_running(entry_id) else None

    def block(self, partition: bytes, seconds: float) -> None:
        """Block a partition for all workers for *seconds*, because its site asked for it."""
        self.dialogue.note(Block(partition, time.monotonic() + seconds))
        self.protocol.withdraw(partition)

    def settle(self, move: Ending | Return) -> None:
        if not self.leases.is_running(move.entry_id):
            return
        ending = self.dialogue.settled(move)
        if ending is None or isinstance(ending, (Release, Decline)):
            self.tokens.released(move.entry_id)
        if ending is not None:
            self.end(ending)

    def end(self, ending: Ending | Return) -> None:
        """Add the end of a lease to the outbox, without waiting for puts in other shards."""
        self.dialogue.append(ending)
        self.tokens.ends(ending.entry_id)

    def seeded(self, *, failed: bool = False) -> None:
        """Record that `start()` is exhausted or, if *failed*, has raised an error."""
        if self.protocol.seeding == Seeding.ACTIVE:
            self.protocol.seeding = Seeding.FAILED if failed else Seeding.DONE
            self.dialogue.kick()

    def listen(self, on: bool) -> None:
        """Keep the run open for start payloads even if no work is left (*on*), or stop doing so."""
        if self.protocol.listening != on:
            self.protocol.listening = on
            self.dialogue.kick()

    async def notices(self) -> Notices | None:
        """Return the events of the run that no worker has reported yet; see `Frontier.notices`."""
        return await self.frontier.notices()

    # For an owner that has to know where each put is.

    @property
    def parts(self) -> Sequence[Worker]:
        """The workers, one for each frontier of the crawl, home first."""
        return (self,)

    def part_of(self, put: Put) -> int:
        """Return the index of the one of `parts` that stores a put."""
        return 0

    @property
    def puts_outage(self) -> str:
        """Why this part accepts no puts without a parent now; see `outage`."""
        return self.outage

    @property
    def refusal(self) -> FrontierRefused | None:
        """Why Redis refuses this worker now, so that another try does not help; None: there is no refusal."""
        error = self.dialogue.outage.error
        return error if isinstance(error, FrontierRefused) else None

    @property
    def accepts_at_once(self) -> bool:
        """Whether the next exchange would send a put without a parent that is made now."""
        return not (self.protocol.under_way or self.puts_outage)

    @property
    def full(self) -> bool:
        """Whether the waiting moves fill an exchange, so that an owner that can wait should wait."""
        return self.protocol.outbox.full

    def confirmed(self, put: Put) -> bool:
        """Tell whether Redis has confirmed a put, and no roll-back was detected since."""
        outbox = self.protocol.outbox
        return put.number <= outbox.last_put - outbox.puts

    def has_all(self, since: int) -> bool:
        """Tell whether Redis has confirmed all puts, and has applied an exchange composed after *since*."""
        protocol = self.protocol
        if protocol.outbox or protocol.is_rejoining:
            return False
        if protocol.finished and protocol.composed > since and not protocol.under_way:
            return True  # other workers have finished the run, which applies no exchange without moves
        return protocol.applied > since

    def ask(self) -> None:
        """Make the next exchange due immediately."""
        self.dialogue.pace.called()
        self.dialogue.kick()

    def ask_if_idle(self) -> None:
        """Make the next exchange due now, unless an exchange is under way, whose answer may be enough."""
        if not self.protocol.under_way:
            self.ask()

    def _room(self) -> int:
        """Return how many leases can run here at the same time."""
        return 0 if self.over else self._capacity()

    def _exchanged(self) -> None:
        self.membership.beat()
        self.tokens.exchanged(time.monotonic())
        before, self._reported = self._reported, (self.pending, self.over)
        if self._reported != before and not self._reported[0]:
            self._listener.run_finished()

    # Joining and leaving.

    async def start(self, new_epoch: str) -> Joined:
        """Join the crawl, reclaim the leases of dead workers of this machine, and start exchanging.

        Returns:
            the answer. If its status is FINISHED, this worker does not take part, and the caller has to call
            `stop`. The run may have ended while the worker joined it.
        Raises:
            FrontierUnavailable, FrontierRefused: nothing was started. This call has tried to undo the joins
                that were answered.
        """
        joined = await self.membership.join(new_epoch)
        if joined.status is not Status.FINISHED:
            self.dialogue.begin()
        return joined

    async def stop(self, deadline_s: float, *, durable: bool | None = None, reason: str = "") -> None:
        """Release the buffer, send the outbox, and leave; give up after *deadline_s* seconds.

        Leases whose end could not be sent stay in flight under this worker's id, and run again.

        Args:
            durable: True: do not leave an open run before all puts are on Redis's disk. None: wait for the
                disk only if the replay log, which is lost when this worker ends, has puts that no other
                worker could repeat, or puts for which leases wait.
            reason: the owner's reason for closing, for the journal.
        """
        # In a separate task: before Python 3.12, redis-py may swallow a cancellation of the caller.
        await asyncio.gather(self._stop(time.monotonic() + deadline_s, durable, reason))

    async def _stop(self, deadline: float, durable: bool | None, reason: str) -> None:
        membership, self._leaving = self.membership, True
        await self.dialogue.stop_exchanging()
        try:
            await membership.attempt(membership.hand_in, deadline)
            if self.protocol.log.parentless if durable is None else durable:
                await membership.attempt(membership.make_durable, deadline)
            # A late answer to the last exchange may have brought leases.
            if self.protocol.outbox or self.leases.buffered:
                await membership.attempt(membership.hand_in, deadline)
            await membership.attempt(partial(membership.leave, reason=reason), deadline)
        finally:
            self.unstored_puts = self.unconfirmed_puts
            self.heartbeat.stop()
            membership.end()

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """Wait for the disk of Redis; see `durability.py`."""
        (doubt,) = await asyncio.gather(self.membership.wait_until_durable(verify, deadline))  # as in `stop`
        return doubt


def reason_of(census: Census) -> str:
    """Return why a worker closes when no work is left; `finished` if nothing is missing."""
    if census.gone:
        return "frontier_damaged"
    if census.incomplete:
        return "start_incomplete"
    return "unserved" if census.unserved else "finished"
