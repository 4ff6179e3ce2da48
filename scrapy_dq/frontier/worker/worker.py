"""One worker of a crawl: the interface for its owner, over its dialogues with the shards of the crawl."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scrapy_dq.frontier.frontier import Frontier, Home, Identity, Standing
from scrapy_dq.frontier.keys import HOME, shard_of
from scrapy_dq.frontier.model import (
    MAX_LEASES,
    Block,
    Census,
    FrontierError,
    FrontierRefused,
    FrontierUnavailable,
    Gone,
    Hold,
    Joined,
    Lease,
    RunOver,
    Seeding,
    Status,
)
from scrapy_dq.frontier.moves import (
    Ack,
    Again,
    Bury,
    Decline,
    Defer,
    Ending,
    Fail,
    Put,
    Release,
    Return,
    next_id,
)
from scrapy_dq.frontier.worker import closing
from scrapy_dq.frontier.worker.child_tokens import ChildTokens
from scrapy_dq.frontier.worker.closing import Level, TerminationDetector, spread
from scrapy_dq.frontier.worker.deferred_ends import DeferredEnds
from scrapy_dq.frontier.worker.dialogue import Dialogue
from scrapy_dq.frontier.worker.durability import first_doubt
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.protocol import WorkerProtocol


class Worker:
    """One worker of a crawl, on the running event loop. Only the coroutine methods wait."""

    def __init__(
        self,
        frontiers: Sequence[Frontier],
        crawl: Identity,
        options: WorkerOptions,
        listener: Listener,
        *,
        connect: Callable[[int], Any],
        capacity: Callable[[], int],
        limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
        pace: Callable[[int], Pace] = lambda shard: Pace(),
    ) -> None:
        """
        Args:
            frontiers: of all shards; the first one is home.
            connect: returns a client of `redis.asyncio` for the heartbeat in a shard; called in its thread.
            capacity: how many leases can run here at once; 0 (paused, closing) releases the buffer.
            limit: how many of a partition may be downloading here at once, from `take` to `downloaded`.
            pace: returns what says when an exchange with a shard is due, and for how many leases.
        """
        self._frontier = frontiers[HOME]
        self._listener = listener
        self._capacity = capacity
        # Only home knows of start() methods, of runs with a name and of restarts.
        elsewhere = replace(crawl, starts="", run_name="", restart_window_s=0.0)
        identity = own_identity()
        self._heartbeat = Heartbeat(ttl_s=options.ttl_s)
        self.dialogues = [
            Dialogue(
                frontier, elsewhere if shard else crawl, identity, options, listener,
                heartbeat=self._heartbeat, connect=partial(connect, shard),
                capacity=partial(self._share, shard), limit=limit, pace=pace(shard),
                exchanged=partial(self._exchanged, shard),
            )
            for shard, frontier in enumerate(frontiers)
        ]  # fmt: skip
        for each in self.dialogues:
            each.pace.spread(len(frontiers))
        self.home = self.dialogues[HOME]
        protocols = self._protocols = [each.protocol for each in self.dialogues]
        self._turns = deque(range(len(frontiers)))
        """Whose lease is taken next."""
        self._witness: tuple[int, list[int]] | None = None
        """When the last answers said so (`_at_once`), and the versions of all shards then."""
        self._outlook = (True, False)
        """`pending` and `over`, as the owner knows them."""
        self._ended_at = -1
        """Number of exchanges that were composed when home said that the run is finished; -1: it has not."""
        self._ends = False
        """The run is over, and all shards were asked once more."""
        self._leased: dict[bytes, int] = {}
        """The shard of each lease that was taken and not settled."""
        self._waiting = [0] * len(frontiers)
        """How many entries wait in each shard."""
        self._waits = 0
        """Their sum."""
        self._leaving = False
        self.unstored_puts = 0
        """Number of puts that `stop` could not store."""
        self._told_gone: dict[int, int] = {}
        """What home was told under its present id, by shard; see `Gone`."""
        self._told_as = ""
        spread(protocols)
        self._deferred = DeferredEnds(protocols)
        self.home.protocol.together.give_up_deferred = self._deferred.give_up
        self._tokens = [ChildTokens(protocols, shard) for shard in range(len(protocols))]
        self._level = Level(protocols, lambda: not self.home.outage.reason)
        self._was_needed = False
        """The level of seeding, after the last exchange."""
        self._termination = TerminationDetector(protocols, self.ask) if len(protocols) > 1 else None

    @property
    def id(self) -> str:
        """The id under which this worker is registered now, at home; a rejoin changes it."""
        return self.home.id

    @property
    def epoch(self) -> str:
        return self.home.protocol.epoch

    @property
    def run(self) -> int:
        return self.home.protocol.run

    @property
    def census(self) -> Census:
        """All counts, as of the last exchange with each shard."""
        return sum((each.census for each in self._protocols[1:]), self.home.protocol.census)

    @property
    def elsewhere(self) -> tuple[int, float]:
        """What home cannot know: the dead letters in other shards, and their longest outage in seconds."""
        dead = sum(each.protocol.census.dead for each in self.dialogues[1:])
        return dead, max((each.counting.longest_outage_s for each in self.dialogues[1:]), default=0.0)

    @property
    def composed(self) -> int:
        """Number of composed exchanges; anything put, settled or noted now is sent in a later one."""
        return self.home.protocol.together.composed

    @property
    def applied(self) -> int:
        """The number, among composed exchanges from 1 on, up to which each shard has applied one."""
        return min(each.applied for each in self._protocols)

    @property
    def answered(self) -> int:
        """As `applied`, of the shards that are not in an outage; larger than any number if all are."""
        answering = (each.protocol.applied for each in self.dialogues if not each.outage.reason)
        return min(answering, default=sys.maxsize)

    def accepts_at_once(self, shard: int) -> bool:
        """Tell whether the next exchange with a shard carries what is put there now, without a parent."""
        return not (self._protocols[shard].under_way or self.outage_of(shard))

    def confirmed(self, shard: int, put: Put) -> bool:
        """Tell whether a shard has confirmed a put, and was not found to be rolled back since."""
        outbox = self._protocols[shard].outbox
        return put.number <= outbox.last_put - outbox.puts

    @property
    def unconfirmed_puts(self) -> int:
        """Number of puts that Redis has not confirmed."""
        return sum(each.outbox.puts for each in self._protocols)

    @property
    def full(self) -> bool:
        """What waits for a shard fills an exchange: an owner that can wait should."""
        return any(each.outbox.full for each in self._protocols)

    def has_all(self, shard: int, since: int) -> bool:
        """Tell whether a shard has confirmed all that was put there, in an exchange composed after *since*.

        Puts without a parent in other shards keep the run open only if home has confirmed that, too.
        """
        of = self._protocols[shard]
        if of.outbox or of.rejoins:
            return False
        if of.finished and of.composed > since and not of.under_way:
            return True  # other workers have finished the run: it applies no exchange without moves
        return of.applied > since and (shard != HOME or self._level.is_raised())

    @property
    def outage(self) -> str:
        """Why Redis gives no usable answer now, in a sentence without a full stop; empty: no outage."""
        return next((each.outage.reason for each in self.dialogues if each.outage.reason), "")

    @property
    def refusal(self) -> FrontierRefused | None:
        """Why Redis refuses this worker now: to try again does not help; None: it does not."""
        errors = (each.outage.error for each in self.dialogues)
        return next((each for each in errors if isinstance(each, FrontierRefused)), None)

    def outage_of(self, shard: int) -> str:
        """Return why a shard takes no puts without a parent now: an outage of it, or of home, as `outage`."""
        return self.dialogues[shard].outage.reason or self.home.outage.reason

    @property
    def over(self) -> bool:
        """The run is finished for good: no more puts are accepted."""
        return self.home.protocol.together.over

    @property
    def left_over(self) -> list[Put]:
        """Puts without a parent that the run, now over, may not have completed."""
        return [put for each in self._protocols for put in each.left_over]

    @property
    def lost(self) -> bool:
        """The frontier, or a shard of it, is gone; the crawl cannot continue."""
        return self.home.protocol.together.lost

    @property
    def on_hold(self) -> bool:
        """The crawl is paused or draining: no worker gets a lease."""
        return self.home.protocol.on_hold

    @property
    def handed_in(self) -> bool:
        """It is leaving, and has stored what it had: what is put from now on would be lost."""
        return self._leaving and any(each.handed_in for each in self.dialogues)

    @property
    def idle(self) -> bool:
        """Nothing of the whole crawl is left, as far as this worker knows; start payloads may still come."""
        return closing.idle(self._protocols)

    def idle_at_once(self) -> bool:
        """Tell whether at some moment nothing of the whole crawl was left: `idle` is of one shard each."""
        return self._at_once(self.idle)

    def only_over_budget(self) -> bool:
        """Tell whether at some moment all that was left of the run was over the budgets of its partitions."""
        return self._at_once(
            all(each.census.only_over_budget for each in self._protocols)
            and any(each.census.waiting for each in self._protocols)
            and not closing.works(self._protocols)
        )

    def _at_once(self, each_says_so: bool) -> bool:
        """Tell whether all shards would have said at one moment what the last answers of each say.

        With several shards it takes two answers of each, nothing new between (see `TerminationDetector`).
        An owner asks about one thing only.
        """
        if not each_says_so:
            self._witness = None
            return False
        versions = [each.census.version for each in self._protocols]
        if len(versions) == 1 or (self._witness and self._witness[0] < self.applied):
            was, self._witness = self._witness, None
            if was is None or was[1] == versions:
                return True
        self._witness = self._witness or (self.composed, versions)
        return False

    @property
    def pending(self) -> bool:
        """Something of the whole crawl is not done yet, as far as this worker knows."""
        return closing.pending(self._protocols, self._ended_at)

    @property
    def max_pages_reached(self) -> bool:
        """As many requests were sent as WorkerOptions.max_pages allows, and something is left."""
        most = self.home.protocol.max_pages
        if most is None:
            return False
        return self.census.pages >= most and self.pending

    @property
    def ending(self) -> str:
        """Why this worker closes when nothing is left to do: `finished`, unless something is missing."""
        return closing.reason(self._protocols)

    # For the owner; none of these waits.

    def put(self, put: Put) -> bool:
        """Add a new entry to the outbox; return False if it was dropped because the run is over for good."""
        if self._outlook[1] or self.home.protocol.over:
            return False
        self.home.protocol.finished = False
        self._outlook = (True, False)
        shard = self.shard_of(put.partition, put.token)
        dialogue = self.dialogues[shard]
        dialogue.protocol.finished = False
        dialogue.append(put)
        if put.parent is not None:
            self._depends(put.parent, shard, put.number)
        elif shard:
            self._level.put(shard, put.number)
            if not self._level.is_raised():
                self.ask(HOME)
        return True

    def note_fed(self, put: Put) -> None:
        """Note that *put*, which was just put, was made from the start payload of its parent's lease.

        All puts of that lease were made, so that its end, which follows, is the end of `Put.once` for them.
        """
        put.once = True
        if self.shard_of(put.partition, put.token) != HOME:
            self.forget_with_parent(put)

    def forget_with_parent(self, put: Put) -> None:
        """Have the token of *put*, just put, forgotten when nobody can get the lease of its parent again."""
        if put.parent and (of := self._leased.get(put.parent)) is not None:
            self._tokens[of].put(put.parent, self.shard_of(put.partition, put.token), put.entry_id)

    @property
    def shards(self) -> int:
        """How many shards the crawl has."""
        return len(self.dialogues)

    def shard_of(self, partition: bytes, token: bytes) -> int:
        """Return the shard of an entry: that of its partition; without one, of its token (fingerprint)."""
        return shard_of(partition, token, len(self.dialogues))

    def reference(self, put: Put) -> int:
        """Return what `depends` takes for *put*, which was just put: shard and number in one int."""
        return self._reference(self.shard_of(put.partition, put.token), put.number)

    @property
    def last_references(self) -> list[int]:
        """Of the last put to each shard."""
        return [self._reference(shard, each.outbox.last_put) for shard, each in enumerate(self._protocols)]

    def _reference(self, shard: int, number: int) -> int:
        return number * self.shards + shard if self.shards > 1 else 0

    def depends(self, entry_ids: Iterable[bytes], reference: int) -> None:
        """Note that what these leases have brought was put before, or without a parent; see `reference`."""
        number, shard = divmod(reference, self.shards)
        for entry_id in entry_ids:
            self._depends(entry_id, shard, number)

    def take(self) -> Lease | None:
        """Return the next lease to run; None if there is none at the moment."""
        if self._outlook[1]:
            return None  # the run is over: it would be released, and leased again
        for _ in self.dialogues:
            shard = self._turns[0]
            self._turns.rotate(-1)
            lease = self.dialogues[shard].take()
            if lease is not None:
                self._leased[lease.entry_id] = shard
                return lease
        for each in self.dialogues:
            each.starves()
        return None

    def sent(self, entry_id: bytes) -> None:
        """Note that the request of a lease was sent; leases without a time for sending are ignored.

        The delay starts at the first call for a lease; later calls are ignored. If the call is too early, the
        site sees a shorter delay.
        """
        if (shard := self._leased.get(entry_id)) is not None:
            self.dialogues[shard].sent(entry_id, time.monotonic())

    def never_sent(self, entry_id: bytes) -> None:
        """Note that the request of a lease was not sent, and will not be, although its work is done as usual.

        The next one of its partition may be sent at once. Its end counts against no budget, nor as a page.
        """
        if (shard := self._leased.get(entry_id)) is not None:
            self.dialogues[shard].never_sent(entry_id)

    def downloaded(self, entry_id: bytes) -> None:
        """Note that a lease no longer counts against its partition's limit; settling it implies this."""
        if (shard := self._leased.get(entry_id)) is not None:
            self.dialogues[shard].downloaded(entry_id)

    def held_up(self, entry_id: bytes) -> None:
        """Note that the download of a lease waits in this process: it does not count against the limit now.

        A lease with a time for sending keeps counting until it is sent: the next one is timed by that.
        """
        if (shard := self._leased.get(entry_id)) is not None:
            self.dialogues[shard].held_up(entry_id)

    def block(self, partition: bytes, seconds: float) -> None:
        """Block a partition for all workers for *seconds*, because its site asked for it."""
        dialogue = self.dialogues[self.shard_of(partition, b"")]
        dialogue.note(Block(partition, time.monotonic() + seconds))
        dialogue.protocol.withdraw(partition)

    def ack(self, entry_id: bytes) -> None:
        """Settle a lease: its work is done, and all its children were put."""
        self._settle(Ack(entry_id))

    def again(self, entry_id: bytes, payload: bytes, priority: int, start: int, wait_s: float) -> None:
        """Settle a lease whose work is done, and is to be done again after *wait_s* seconds; see `Again`."""
        due_at = time.monotonic() + wait_s
        self._settle(Again(entry_id, next_id(entry_id), payload, priority, start, due_at))

    def release(self, entry_id: bytes) -> None:
        """Return a lease to the backlog; no attempt is charged."""
        self._settle(Release(entry_id))

    def fail(self, entry_id: bytes, reason: str, label: str) -> None:
        """Settle a lease whose work has failed for good; *label*: see `Fail`."""
        self._settle(Fail(entry_id, reason, label))

    def bury(self, entry_id: bytes, reason: str) -> None:
        """Turn a lease into a dead letter."""
        self._settle(Bury(entry_id, reason))

    def decline(self, entry_id: bytes, reason: str, fingerprint: bytes = b"") -> None:
        """Return a lease that the code of this worker cannot serve: it never gets it again; see `Decline`."""
        self._settle(Decline(entry_id, reason, fingerprint))

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

    def ask(self, shard: int) -> None:
        """Make the next exchange with a shard due at once."""
        self.dialogues[shard].pace.called()
        self.dialogues[shard].kick()

    def ask_if_idle(self, shard: int) -> None:
        """As `ask`, unless an exchange is under way: its answer may be enough."""
        if not self._protocols[shard].under_way:
            self.ask(shard)

    def _depends(self, entry_id: bytes, shard: int, number: int) -> None:
        of = self._leased.get(entry_id)
        if of is not None and of != shard:
            self._deferred.depends(entry_id, shard, number)

    def _settle(self, move: Ending | Return) -> None:
        shard = self._leased.pop(move.entry_id, None)
        if shard is None:
            return
        ending = self.dialogues[shard].settled(move)
        if ending is None or isinstance(ending, (Release, Decline)):
            self._deferred.forget(move.entry_id)
            self._tokens[shard].released(move.entry_id)
        elif self._deferred.defers(shard, ending):
            self.dialogues[shard].append(Defer(move.entry_id))
            return
        if ending is not None:
            self._append(shard, ending)

    def _append(self, shard: int, ending: Ending | Return) -> None:
        self.dialogues[shard].append(ending)
        self._tokens[shard].ends(ending.entry_id)

    def _share(self, shard: int) -> int:
        """Return how many leases of a shard can run here at once: a part of what is free, by what waits."""
        capacity = 0 if self.over else self._capacity()
        if capacity <= 0 or len(self._protocols) == 1:
            return capacity
        part = self._waiting[shard] / max(1, self._waits)
        running = self._protocols[shard].leases.running
        return self.dialogues[shard].pace.share(capacity, len(self._leased), running, part)

    def _exchanged(self, shard: int) -> None:
        waiting = self._protocols[shard].census.waiting
        self._waits += waiting - self._waiting[shard]
        self._waiting[shard] = waiting
        if len(self._protocols) > 1:
            self._look_beyond(shard)
        needed, was_needed = self._level.needed(), self._was_needed
        self._was_needed = needed
        if was_needed and not needed:
            self.ask(HOME)  # to lower it
        elif needed and shard == HOME:
            self._go_on_seeding()
        self._tokens[shard].exchanged(time.monotonic())
        self._let_pass(shard)
        if self._termination is not None:
            home = self.home.protocol
            if home.finished != (self._ended_at >= 0):
                self._ended_at = self.composed if home.finished else -1
                for other in range(1, len(self._protocols)):
                    self.ask(other)
            if self.over and not self._ends:
                self._ends = True
                for each in range(len(self._protocols)):
                    self.ask(each)
            quiet = home.seeding == Seeding.DONE and not (home.listening or self._level.needed())
            self._termination.step(shard, quiet)
        before, self._outlook = self._outlook, (self.pending, self.over)
        if self._outlook != before and not self._outlook[0]:
            self._listener.run_finished()

    def _go_on_seeding(self) -> None:
        """Home has answered: send what waited for that, or ask it once more to confirm the level."""
        if self.home.protocol.raised_at is None:  # that exchange was composed before the level was needed
            self.ask(HOME)
            return
        for shard in self._level.shards:
            if self._protocols[shard].held_back:
                self.dialogues[shard].kick()

    def _look_beyond(self, shard: int) -> None:
        """Pass on between the shards what concerns the whole crawl."""
        if self.home.protocol.words.hold is Hold.PAUSED:  # only home hears of it
            for dialogue in self.dialogues:
                dialogue.release_buffer()
        if shard == HOME and self.home.id != self._told_as:
            # It may have been rolled back. A shard that is in another run by now tells of that one.
            self._told_as, self._told_gone = self.home.id, {}
        for each, of in enumerate(self._protocols):
            gone = max(int(of.rolled_back), of.census.gone if each != HOME else 0)
            if gone > self._told_gone.get(each, 0) and of.run == self.run:
                self._told_gone[each] = gone
                self.home.note(Gone(each, gone))

    def _let_pass(self, retired: int) -> None:
        for shard, ending in self._deferred.due(retired):
            self._end(shard, ending)

    def _end(self, shard: int, ending: Ending | Return) -> None:
        if self.home.protocol.together.over:
            ending = Release(ending.entry_id)
        # Otherwise the lease was lost since.
        if self.dialogues[shard].leases.ends(ending.entry_id):
            self._append(shard, ending)
            if not (self._leased or self._waits):
                self.ask(shard)  # the run may end with it

    # Joining and leaving.

    async def start(self, new_epoch: str) -> Joined:
        """Join the crawl, reclaim the leases of dead workers of this machine, and start exchanging.

        Returns:
            FINISHED: this worker does not take part; call `stop`. Its run may have ended while it joined.
        Raises:
            FrontierUnavailable, FrontierRefused: nothing was started. Where it was registered, it has left.
        """
        joined = await self.home.join(new_epoch)
        if joined.status is Status.FINISHED:
            return joined
        others = self.dialogues[1:]
        try:
            home = Home(joined.epoch, joined.run, joined.shards_exist, self._frontier.standing)
            joins = await asyncio.gather(*(each.join("", home) for each in others), return_exceptions=True)
            for answer in joins:
                if isinstance(answer, BaseException):
                    raise answer
            if others and not joined.shards_exist:
                await self.home.note_shards()
        except RunOver:
            joined = replace(joined, status=Status.FINISHED)
            self.home.protocol.joined(joined, time.monotonic())
        except FrontierError:
            await asyncio.gather(*(each.undo_join() for each in others))
            await self.home.undo_join()
            self._end_all()
            raise
        for each in self.dialogues:
            if each.protocol.epoch:
                each.begin()  # `stop` leaves it
        return joined

    async def stop(self, deadline_s: float, *, durable: bool | None = None, why: str = "") -> None:
        """Release the buffer, send the outbox, and leave; give up after *deadline_s* seconds.

        What could not be sent stays in flight under this worker's id, and is run again.

        Args:
            durable: do not leave an open run before all puts are on Redis's disk. None: wait if the replay
                log, which ends with this worker, has puts that no other worker could repeat, or that leases
                wait for.
            why: the reason for which the owner closes, for the journal.
        """
        deadline = time.monotonic() + deadline_s
        everywhere, self._leaving = self.dialogues, True
        await asyncio.gather(*(each.cease() for each in everywhere))
        try:
            for _ in range(2):
                # The second time for what one has learned in the first: a level to raise, a later run.
                await asyncio.gather(*(each.attempt(each.hand_in, deadline) for each in everywhere))
            if raised := self._level.needed():
                await self.home.attempt(self._raise_level, deadline)
            if durable is None:
                durable = bool(self._deferred) or any(each.log.parentless for each in self._protocols)
            if durable:
                await asyncio.gather(*(each.attempt(each.make_durable, deadline) for each in everywhere))
                if raised and not self._level.needed():
                    # Its start() is complete: an exchange says so to home.
                    await self.home.attempt(self.home.look, deadline)
            for shard in range(len(everywhere)):
                self._let_pass(shard)
            for shard, entry_id in self._deferred.give_up():
                self._end(shard, Release(entry_id))
            # Also what became certain while another shard was waited for.
            if any(each.outbox for each in self._protocols):
                await asyncio.gather(*(each.attempt(each.hand_in, deadline) for each in everywhere))
            others = everywhere[1:]
            if others and self.home.protocol.finished:
                # What it knows of them may be older than the end. Home after them: a retry opens it first.
                await asyncio.gather(*(each.attempt(each.look, deadline) for each in others))
                await self.home.attempt(self.home.look, deadline)
            # One that is over at home knows no longer what has failed.
            blind = any(each.protocol.over for each in everywhere)
            kept = bool(others) and (blind or self.census.failed + self.census.dead > 0)
            now = await self._standing() if others and self.home.protocol.finished else None
            leaves = [
                (each, partial(each.leave, version=_version_of(each.protocol, now), kept=kept))
                for each in others
            ]
            # Home last: while this worker is a member there, no other run begins.
            await asyncio.gather(*(each.attempt(leave, deadline) for each, leave in leaves))
            await self.home.attempt(partial(self.home.leave, kept=kept, why=why), deadline)
        finally:
            self.unstored_puts = self.unconfirmed_puts
            self._end_all()

    async def _raise_level(self, deadline: float) -> None:
        """Ask home, which may have taken this worker for dead, and be finished, until the level is raised."""
        await self.home.look(deadline)
        # Not for ever: as soon as the puts are certain, an exchange lowers it.
        while self._level.needed() and not (self._level.is_raised() or self.home.done):
            if time.monotonic() >= deadline:
                raise FrontierUnavailable("home does not confirm that this worker has put requests elsewhere")
            await self.home.look(deadline)

    async def _standing(self) -> Standing | None:
        """Return where home stands, also for a worker whose exchanges it answers no more; None: unknown."""
        try:
            return await self._frontier.standing()
        except FrontierError:
            return None

    def _end_all(self) -> None:
        self._leaving = True
        self._heartbeat.stop()
        for each in self.dialogues:
            each.end()

    async def wait_until_durable(self, verify: Callable[[], Awaitable[object]], deadline: float) -> str:
        """Wait for the disks of all shards; see `durability.py`."""
        return await first_doubt(each.wait_until_durable(verify, deadline) for each in self.dialogues)


def _version_of(shard: WorkerProtocol, home: Standing | None) -> int:
    """Return the version with which its last worker clears a shard; -1: not, its run is not known to be over.

    RACE: the shard was rolled back, and another worker has taken it into the next run with this one. Or a
    retry has opened the run again since home said that it is finished.
    """
    if home is None or home.epoch != shard.epoch:
        return -1
    over = home.run > shard.run or (home.run == shard.run and not home.open)
    return shard.census.version if over else -1
