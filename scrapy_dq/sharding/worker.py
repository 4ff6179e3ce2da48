"""One worker in all shards of a crawl: docs/internals/shards.md has the rules."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scrapy_dq.frontier.answers import Joined, Notices
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME, shard_of
from scrapy_dq.frontier.model import (
    Census,
    FrontierError,
    FrontierUnavailable,
    Gone,
    Hold,
    Identity,
    Lease,
    Seeding,
    Status,
)
from scrapy_dq.frontier.moves import Decline, Defer, Ending, Put, Release, Return
from scrapy_dq.frontier.worker.child_tokens import ChildTokens
from scrapy_dq.frontier.worker.dialogue import Dialogue
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.sharding import closing
from scrapy_dq.sharding.closing import Level, SimultaneousCheck, TerminationDetector
from scrapy_dq.sharding.deferred_ends import DeferredEnds
from scrapy_dq.sharding.joining import join_others, run_state_of, version_of
from scrapy_dq.sharding.pace import share, timing_of
from scrapy_dq.sharding.part import Part
from scrapy_dq.sharding.protocol import ShardProtocol, connect_protocols
from scrapy_dq.sharding.reach import Reach


class ShardedWorker(Worker):
    """A worker with a part in each shard. Methods inherited from `Worker` concern only the part at home."""

    protocol: ShardProtocol

    def __init__(
        self,
        frontiers: Sequence[Frontier],
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        connect: Callable[[int], Any],
        capacity: Callable[[], int],
        limit: Callable[[bytes], int],
        pace: Callable[[int], Pace],
    ) -> None:
        """For the arguments, see `worker_of`. There are at least two frontiers."""
        self._listener = listener
        self._capacity = capacity
        # Only home knows of start() methods, of runs with a name and of restarts.
        shard_crawl = replace(crawl, starts="", run_name="", restart_window_s=0.0)
        identity, self.heartbeat = own_identity(), Heartbeat(ttl_s=options.ttl_s)
        self._parts = [
            Part(
                self, shard, frontier, shard_crawl if shard else crawl, options, listener,
                connect=partial(connect, shard), limit=limit, pace=pace(shard), identity=identity,
                heartbeat=self.heartbeat,
            )
            for shard, frontier in enumerate(frontiers)
        ]  # fmt: skip
        home = self.home = self._parts[HOME]
        self.protocol, self.dialogue, self.membership = home.protocol, home.dialogue, home.membership
        protocols = self._protocols = [each.protocol for each in self._parts]
        connect_protocols(protocols)
        for each in self._parts:
            each.dialogue.pace.timing = timing_of(len(frontiers))
            each.tokens = ChildTokens(each.protocol, protocols)
        self._common = self.home.protocol.common
        self._turns = deque(range(len(frontiers)))
        """The shards, in the order in which their leases are taken."""
        self._simultaneous = SimultaneousCheck(protocols, self._common)
        """A `Queue` checks only `idle_at_once`, and a crawl only `only_over_budget`."""
        self._reported = (True, False)
        """`pending` and `over`, as the owner knows them."""
        self._ended_at = -1
        """Number of exchanges composed before home reported the end of the run; -1: it reported none."""
        self._ends = False
        """The run is over, and the worker has asked all shards again."""
        self._leased: dict[bytes, int] = {}
        """The shard of each lease that was taken and not settled."""
        self._waiting = [0] * len(frontiers)
        """How many entries wait in each shard."""
        self._waits = 0
        """The sum of `_waiting`."""
        self._leaving = False
        self.unstored_puts = 0
        self._reported_gone: dict[int, int] = {}
        """By shard, the number of lost requests reported to home under the present id; see `Gone`."""
        self._reported_as = ""
        self._deferred = DeferredEnds(protocols)
        self._common.give_up_deferred = self._deferred.give_up
        self._reach = Reach(self._parts, options.ttl_s, self._deferred, self._end, listener)
        self._level = Level(protocols, lambda: not self.home.outage)
        self._was_needed = False
        """Whether the level of seeding was needed after the last exchange."""
        self._termination = TerminationDetector(protocols, lambda shard: self.parts[shard].ask())

    @property
    def parts(self) -> Sequence[Part]:
        return self._parts

    @property
    def census(self) -> Census:
        """All counts, as of the last exchange with each shard."""
        return sum((each.census for each in self._protocols[1:]), self.home.census)

    @property
    def composed(self) -> int:
        return self._common.composed

    @property
    def applied(self) -> int:
        """Each shard has applied an exchange with this number or a higher one. Numbers begin with 1."""
        return min(each.applied for each in self._protocols)

    @property
    def answered(self) -> int:
        """As `applied`, but without the shards in an outage; if no shard is left, larger than any number."""
        return min((each.applied for each in self.parts if not each.outage), default=sys.maxsize)

    @property
    def unconfirmed_puts(self) -> int:
        return sum(each.outbox.puts for each in self._protocols)

    @property
    def outage(self) -> str:
        return next((each.outage for each in self.parts if each.outage), "")

    @property
    def leftover_puts(self) -> list[Put]:
        return [put for each in self._protocols for put in each.leftover_puts]

    @property
    def lost(self) -> bool:
        """The frontier, or a shard of it, is gone; the crawl cannot continue."""
        return self._common.lost

    @property
    def handed_in(self) -> bool:
        return self._leaving and any(each.membership.handed_in for each in self.parts)

    @property
    def idle(self) -> bool:
        return closing.idle(self._protocols)

    def idle_at_once(self) -> bool:
        return self._simultaneous.confirms(self.idle)

    def only_over_budget(self) -> bool:
        return self._simultaneous.confirms(
            all(each.census.only_over_budget for each in self._protocols)
            and any(each.census.waiting for each in self._protocols)
            and not closing.has_work(self._protocols)
        )

    @property
    def pending(self) -> bool:
        return closing.pending(self._protocols, self._ended_at)

    @property
    def ending(self) -> str:
        return closing.reason(self._protocols)

    # For the owner. None of these methods waits.

    def put(self, put: Put) -> bool:
        if self._reported[1] or self.home.protocol.over:
            return False
        self.home.protocol.finished = False
        self._reported = (True, False)
        put.message = b""  # no worker could acknowledge this message in another shard
        shard = self.part_of(put)
        self.parts[shard].append(put)
        put.reference = self._reference(shard)
        if put.parent is not None:
            self._depends(put.parent, shard, put.number)
        elif shard:
            self._level.put(shard, put.number)
            if not self.keeps_open:
                self.home.ask()
        return True

    def note_fed(self, put: Put) -> None:
        put.once = True
        if self.part_of(put) != HOME:
            self.forget_with_parent(put)

    def forget_with_parent(self, put: Put) -> None:
        if put.parent and (owner := self._leased.get(put.parent)) is not None:
            self.parts[owner].tokens.put(put.parent, self.part_of(put), put.entry_id)

    @property
    def last_references(self) -> Sequence[int]:
        """The reference of the last put to each shard."""
        return [self._reference(shard) for shard in range(len(self.parts))]

    def _reference(self, shard: int) -> int:
        """Return, as one number, a shard and the number of the last put there."""
        return self._protocols[shard].outbox.last_put * len(self.parts) + shard

    def depends(self, entry_ids: Iterable[bytes], reference: int) -> None:
        number, shard = divmod(reference, len(self.parts))
        for entry_id in entry_ids:
            self._depends(entry_id, shard, number)

    def take(self) -> Lease | None:
        if self._reported[1]:
            return None  # the run is over: the lease would be released, and leased again
        for _ in self.parts:
            shard = self._turns[0]
            self._turns.rotate(-1)
            lease = self.parts[shard].dialogue.take()
            if lease is not None:
                self._leased[lease.entry_id] = shard
                return lease
        for each in self.parts:
            each.dialogue.lease_missed()
        return None

    def _dialogue_of(self, entry_id: bytes) -> Dialogue | None:
        shard = self._leased.get(entry_id)
        return None if shard is None else self.parts[shard].dialogue

    def block(self, partition: bytes, seconds: float) -> None:
        self.parts[self._shard_of(partition, b"")].block(partition, seconds)

    def settle(self, move: Ending | Return) -> None:
        shard = self._leased.pop(move.entry_id, None)
        if shard is None:
            return
        part = self.parts[shard]
        if self._deferred.waits_for(move.entry_id, self._reach.lost):
            move = Release(move.entry_id)
        ending = part.dialogue.settled(move)
        if ending is None or isinstance(ending, (Release, Decline)):
            self._deferred.forget(move.entry_id)
            part.tokens.released(move.entry_id)
        elif self._deferred.defers(shard, ending):
            part.dialogue.append(Defer(move.entry_id))
            return
        if ending is not None:
            part.end(ending)

    async def notices(self) -> Notices | None:
        """Return the events of the run that no worker has reported, with the census of the last exchanges."""
        others = self.parts[1:]
        dead = sum(each.census.dead for each in others)
        outage_s = max(each.dialogue.counting.longest_outage_s for each in others)
        found = await self.home.frontier.notices(dead, outage_s)
        return found and found._replace(census=self.census)

    # Between the shards.

    @property
    def keeps_open(self) -> bool:
        """Home answers, and has confirmed the level of seeding, so no other worker finishes the run."""
        return self._level.is_raised()

    def part_of(self, put: Put) -> int:
        return self._shard_of(put.partition, put.token)

    def _shard_of(self, partition: bytes, token: bytes) -> int:
        return shard_of(partition, token, len(self.parts))

    def room_of(self, part: Part) -> int:
        """Return how many leases of a shard can run here at the same time: its share of the free slots."""
        # Requests of this worker may lead to a shard that it does not reach, so other workers run them.
        capacity = 0 if self.over or self._reach.lost else self._capacity()
        if capacity <= 0:
            return capacity
        free, running = capacity, 0
        if part.dialogue.pace.counts_all:
            free, running = max(0, capacity - len(self._leased)), part.leases.running
        return share(free, running, self._waiting[part.number] / max(1, self._waits))

    def exchanged(self, part: Part) -> None:
        """Act on the answer to an exchange with a shard."""
        shard, home = part.number, self.home.protocol
        waiting = part.census.waiting
        self._waits += waiting - self._waiting[shard]
        self._waiting[shard] = waiting
        self._relay(shard)
        needed, was_needed = self._level.needed(), self._was_needed
        self._was_needed = needed
        if was_needed and not needed:
            self.home.ask()  # so that home lowers the level
        elif needed and shard == HOME:
            self._continue_seeding()
        part.tokens.exchanged(time.monotonic())
        self._apply_due_ends(shard)
        if home.finished != (self._ended_at >= 0):
            self._ended_at = self.composed if home.finished else -1
            for other in self.parts[1:]:
                other.ask()
        if self.over and not self._ends:
            self._ends = True
            for each in self.parts:
                each.ask()
        quiet = home.seeding == Seeding.DONE and not (home.listening or self._level.needed())
        self._termination.step(shard, quiet)
        before, self._reported = self._reported, (self.pending, self.over)
        if self._reported != before and not self._reported[0]:
            self._listener.run_finished()

    def _continue_seeding(self) -> None:
        """Home has answered: send the moves that waited for it, or ask it again to confirm the level."""
        if self.home.protocol.raised_at is None:  # its exchange was composed before the level was needed
            self.home.ask()
            return
        for shard in self._level.shards:
            if self._protocols[shard].held_back:
                self.parts[shard].dialogue.kick()

    def _relay(self, shard: int) -> None:
        """Pass a pause from home to all shards, and report losses of all shards to home."""
        if self.home.protocol.commands.hold is Hold.PAUSED:  # only home gets this command
            for part in self.parts:
                part.dialogue.release_buffer()
        if shard == HOME and self.home.id != self._reported_as:
            # Home may have been rolled back, so report all losses again. A shard in another run is left out,
            # because its losses are losses of that run.
            self._reported_as, self._reported_gone = self.home.id, {}
        for each, protocol in enumerate(self._protocols):
            gone = max(int(protocol.rolled_back), protocol.census.gone if each != HOME else 0)
            if gone > self._reported_gone.get(each, 0) and protocol.run == self.run:
                self._reported_gone[each] = gone
                self.home.dialogue.note(Gone(each, gone))

    def _depends(self, entry_id: bytes, shard: int, number: int) -> None:
        owner = self._leased.get(entry_id)
        if owner is not None and owner != shard:
            self._deferred.depends(entry_id, shard, number)

    def _apply_due_ends(self, retired: int) -> None:
        for shard, ending in self._deferred.due(retired):
            self._end(shard, ending)

    def _end(self, shard: int, ending: Ending | Return) -> None:
        if self.over:
            ending = Release(ending.entry_id)
        # If `ends` is False, this worker has lost the lease.
        part = self.parts[shard]
        if part.leases.ends(ending.entry_id):
            part.end(ending)
            if not (self._leased or self._waits):
                part.ask()  # the run may end with this move

    # Joining and leaving.

    async def start(self, new_epoch: str) -> Joined:
        joined = await self.home.membership.join(new_epoch)
        if joined.status is Status.FINISHED:
            return joined
        try:
            joined = await join_others(self.parts, joined)
        except FrontierError:
            self._end_all()
            raise
        for part in self.parts:
            if part.epoch:
                part.dialogue.begin()  # otherwise `stop` would not leave the shard
        self._reach.begin()
        return joined

    async def stop(self, deadline_s: float, *, durable: bool | None = None, reason: str = "") -> None:
        deadline = time.monotonic() + deadline_s
        home, others = self.home.membership, [each.membership for each in self.parts[1:]]
        memberships, self._leaving = [home, *others], True
        await asyncio.gather(*(each.dialogue.stop_exchanging() for each in memberships))
        try:
            await self._reach.try_once()
            for _ in range(2):
                # Twice, because the answers may bring news, such as a level to raise or a later run.
                await asyncio.gather(*(each.attempt(each.hand_in, deadline) for each in memberships))
            if raised := self._level.needed():
                await home.attempt(self._raise_level, deadline)
            if durable is None:
                durable = bool(self._deferred) or any(each.log.parentless for each in self._protocols)
            if durable:
                await asyncio.gather(*(each.attempt(each.make_durable, deadline) for each in memberships))
                if raised and not self._level.needed():
                    # An exchange tells home that start() is complete.
                    await home.attempt(home.dialogue.take_census, deadline)
            for shard in range(len(memberships)):
                self._apply_due_ends(shard)
            for shard, entry_id in self._deferred.give_up():
                self._end(shard, Release(entry_id))
            # More ends may have become due while the worker waited for other shards.
            if any(each.outbox for each in self._protocols):
                await asyncio.gather(*(each.attempt(each.hand_in, deadline) for each in memberships))
            if self.home.protocol.finished:
                # The last answers of the other shards may be older than the end of the run, so ask them
                # again. Ask home last: a retry opens home first, so home's answer shows a retry in any shard.
                await asyncio.gather(*(each.attempt(each.dialogue.take_census, deadline) for each in others))
                await home.attempt(home.dialogue.take_census, deadline)
            # A part whose run is over no longer knows how many of its requests have failed, so keep the data.
            any_over = any(each.over for each in self._protocols)
            kept = any_over or self.census.failed + self.census.dead > 0
            now = await run_state_of(self.home) if self.home.protocol.finished else None
            leaves = [
                (each, partial(each.leave, version=version_of(protocol, now), kept=kept))
                for each, protocol in zip(others, self._protocols[1:], strict=True)
            ]
            # Home is last, because no other run begins while this worker is a member at home.
            await asyncio.gather(*(each.attempt(leave, deadline) for each, leave in leaves))
            await home.attempt(partial(home.leave, kept=kept, reason=reason), deadline)
        finally:
            self.unstored_puts = self.unconfirmed_puts
            self._end_all()

    async def _raise_level(self, deadline: float) -> None:
        """Ask home until the level is raised.

        It may not be: other workers may have fenced this worker and finished the run.
        """
        dialogue = self.home.dialogue
        await dialogue.take_census(deadline)
        # The loop ends at the latest when the puts are certain, because then the level is no longer needed.
        while self._level.needed() and not (self.keeps_open or dialogue.done):
            if time.monotonic() >= deadline:
                raise FrontierUnavailable("home does not confirm that this worker has put requests elsewhere")
            await dialogue.take_census(deadline)

    def _end_all(self) -> None:
        self._leaving = True
        self._reach.end()
        self.heartbeat.stop()
        for each in self.parts:
            each.membership.end()

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """Wait for the disks of all shards, and return the first doubt."""
        waits = (each.wait_until_durable(verify, deadline) for each in self.parts)
        doubts = []
        for each in await asyncio.gather(*waits, return_exceptions=True):
            if isinstance(each, BaseException):
                raise each  # now that all waits have ended, so that none continues without its caller
            doubts.append(each)
        return next(filter(None, doubts), "")
