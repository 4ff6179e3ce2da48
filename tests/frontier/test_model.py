"""The frontier and the reference, driven by the same random moves, agree in every answer and all state."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha1
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from scrapy_dq.frontier import Overview, Retried, frontier, keys, peek, records, retry
from scrapy_dq.frontier.admin import retry as retry_module
from scrapy_dq.frontier.admin.control import Word, steer
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.calls import Exchange, Rejoin
from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import (
    Admission,
    Block,
    Limits,
    Member,
    Order,
    Parentless,
    Receipt,
    Seeding,
    Seen,
    Sent,
    Status,
    Terms,
)
from scrapy_dq.frontier.moves import Ack, Again, Bury, Decline, Fail, Move, Put, Release, next_id
from scrapy_dq.frontier.wire import pack_moves, pack_terms
from support.compact import compacted
from support.live_frontier import LiveFrontier
from support.redis_server import RedisServer
from support.reference import ReferenceFrontier
from support.reference_partitions import UNIT_S, units
from support.stored import Dump, State, crawl_keys, reference_state

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "120"))
"""Of `make test`; `make check` has fewer."""
settings.register_profile(
    "frontier",
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    # To explain a failure takes longer than a test may run.
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=list(HealthCheck),
)
QUICK = settings.get_profile("frontier")
SOAK = settings(QUICK, max_examples=20 * EXAMPLES)

# No strategy depends on the state, and no rule has a precondition: whatever the servers' hashes do,
# the same choices stay possible, and an example replays.
WHICH = st.integers(0, 2**16)
PUTS = ("seen", "seed", "id")
SETTLE = ("ack", "release", "bury", "fail", "later", "decline", "decline")
FOREIGN = ("foreign ack", "foreign release", "foreign bury", "foreign later", "foreign decline")
KINDS = (*PUTS, *PUTS, "id", *SETTLE, "again", *FOREIGN)
LOST = st.sampled_from((False, False, True))
SEEDING = st.sampled_from((0, 0, 0, 0, 0, 1, 2, 3))
PARTITIONS = (b"a", b"b", b"c", b"d")
SLOT = st.integers(0, len(PARTITIONS) - 1)
WHEN = st.sampled_from(("", "", "", "", "", "", "due 1", "due 2", "not before 0", "not before 1", "never"))
# Delay in seconds, concurrency.
LIMITS = tuple(
    Limits(delay * UNIT_S, concurrency, own, budget, own_budgets=budgets)
    for delay, concurrency, own, budget, budgets in (
        (0, 0, {}, 0, {}),
        (1, 0, {"a": (2 * UNIT_S, None), "b": (0.0, 1)}, 0, {}),
        (0, 2, {}, 0, {}),
        (2, 3, {"c": (None, 0)}, 0, {}),
        (0, 0, {}, 6, {"a": 3, "b": 0}),
    )
)


def moves_of(kinds: tuple[str, ...], min_size: int, max_size: int) -> st.SearchStrategy[list[Any]]:
    recipe = st.tuples(st.sampled_from(kinds), WHICH, st.integers(-1, 1), st.booleans(), SLOT, WHEN)
    return st.lists(recipe, min_size=min_size, max_size=max_size)


HERE = st.dictionaries(st.sampled_from(PARTITIONS), st.tuples(st.integers(0, 3), st.integers(0, 3)))
NOTE = st.tuples(
    st.sampled_from(("sent", "sent", "never sent", "foreign sent", "block")), WHICH, SLOT, st.integers(0, 2)
)
TERMS = st.just((0, 1000, {}, [], None)) | st.tuples(
    st.integers(0, 2),
    st.sampled_from((1, 2, 1000)),
    HERE,
    st.lists(NOTE, max_size=3),
    st.sampled_from((None, None, None, None, None, 0, 8, 20)),
)
NO_TERMS = Terms()
STARTS = ("args", "", "args", "other args")
"""What the start() of workers is called with; some have none."""
TOKENS = 8
WORKERS = 4
HISTORY = 40


@dataclass
class Actor:
    """What one worker process knows."""

    worker_id: str
    epoch: str
    run: int
    crawl: Identity
    seq: int = 1
    held: list[bytes] = field(default_factory=list)
    unanswered: tuple[Any, ...] | None = None
    """Its exchange whose reply was lost; all that it may send is this again."""
    out_of_step: bool = False
    """It was answered RESYNC or, without its moves applied, FINISHED."""


class FrontierMachine(RuleBasedStateMachine):
    """Some workers, their faults, late copies of all they sent, and a Redis that forgets."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.made = 0
        self.puts: list[Put] = []
        self.slots: dict[bytes, bytes] = {}
        self.tokens_of: dict[bytes, bytes] = {}
        self.actors: list[Actor] = []
        self.history: list[tuple[str, tuple[Any, ...]]] = []

    @initialize(
        order=st.sampled_from(list(Order)),
        seen=st.sampled_from((Seen.EXACT, Seen.COMPACT)),
        limits=st.sampled_from(LIMITS),
        partitions=st.integers(1, len(PARTITIONS)),
        named=st.booleans(),
        moves=moves_of(PUTS, 6, 12),
    )
    def begin(
        self, order: Order, seen: Seen, limits: Limits, partitions: int, named: bool, moves: list[Any]
    ) -> None:
        """Two workers have joined, the first has found something and holds some of it."""
        self.live = LiveFrontier(self.url, f"model-{secrets.token_hex(8)}", order, seen)
        self.seen = seen
        self.live.ahead_ms = round(2 * UNIT_S * 1000)
        self.limits, self.partitions = limits, PARTITIONS[:partitions]
        self.wall_s = self.live.redis.time()[0]
        self.reference = ReferenceFrontier(order, self.wall_s)
        self.strangers = set(self.live.redis.keys("*"))
        self.snapshots: list[tuple[Dump, ReferenceFrontier]] = []
        self.join(named, keep_seen=False)
        self.take_snapshot()
        self.join(named, keep_seen=False)
        self.work(who=0, moves=moves, want=5, seeding=0, lost=False, terms=(0, 1000, {}, [], None))

    # What a worker does

    @rule(named=st.booleans(), keep_seen=st.booleans(), limits=st.sampled_from((None,) * 5 + LIMITS))
    def join(self, named: bool, keep_seen: bool, limits: Limits | None = None) -> None:
        """A process starts; past WORKERS of them, the oldest is killed and says no more."""
        worker_id = self.new_name("worker")
        self.limits = limits or self.limits
        crawl = Identity(
            "f", "s", f"args of {worker_id}", "job" if named else "", keep_seen, limits=self.limits,
            starts=self.pick(STARTS, self.made),
        )  # fmt: skip
        joined = self.both("join", worker_id, {"host": worker_id}, self.new_name("epoch"), crawl)
        if joined.status is Status.OK:
            actor = Actor(worker_id, joined.epoch, joined.run, crawl)
            self.actors = [*self.actors, actor][-WORKERS:]

    @rule(
        who=WHICH,
        moves=moves_of(KINDS, 0, 8),
        want=st.integers(0, 8),
        seeding=SEEDING,
        lost=LOST,
        terms=TERMS,
    )
    def work(self, who: int, moves: list[Any], want: int, seeding: int, lost: bool, terms: Any) -> None:
        """A worker makes its next exchange, or repeats the one whose reply was lost."""
        if actor := self.pick(self.actors, who):
            self.send(actor, self.made_from(moves, actor), want, seeding, lost, self.terms_from(terms, actor))

    @rule(
        who=WHICH,
        moves=moves_of((*PUTS, "again"), 4, 12),
        want=st.integers(2, 20),
        seeding=SEEDING,
        terms=TERMS,
    )
    def discover(self, who: int, moves: list[Any], want: int, seeding: int, terms: Any) -> None:
        """A worker finds many new requests, and takes many."""
        self.work(who, moves, want, seeding, lost=False, terms=terms)

    @rule(who=WHICH, moves=moves_of((*SETTLE, "ack"), 1, 6), want=st.integers(1, 20), terms=TERMS)
    def progress(self, who: int, moves: list[Any], want: int, terms: Any) -> None:
        """A worker settles some of what it holds, and takes more."""
        self.work(who, moves, want, 0, lost=False, terms=terms)

    @rule(
        seeding=st.sampled_from((0, 0, 1)),
        want=st.integers(0, 20),
        lost=LOST,
    )
    def settle(self, seeding: int, want: int, lost: bool) -> None:
        """Every worker acks all that it holds, and takes more."""
        for actor in list(self.actors):
            self.send(actor, [Ack(entry_id) for entry_id in actor.held], want, seeding, lost)

    @rule(
        who=WHICH,
        keep=WHICH,
        parentless=st.sampled_from(Parentless),
        keep_seen=st.booleans(),
        repeats=st.integers(0, 1),
    )
    def rejoin(self, who: int, keep: int, parentless: Parentless, keep_seen: bool, repeats: int) -> None:
        """A worker rejoins, whatever was answered, perhaps with fewer leases than it has."""
        if actor := self.pick(self.actors, who):
            actor.held = [entry_id for i, entry_id in enumerate(actor.held) if not keep >> i & 1]
            self.resync(actor, parentless, keep_seen, repeats)

    @rule(who=WHICH, keep_seen=st.booleans())
    def leave(self, who: int, keep_seen: bool) -> None:
        """A worker stops as it should."""
        if actor := self.pick(self.actors, who):
            self.both("leave", actor.worker_id, actor.epoch, actor.run, keep_seen)
            self.actors.remove(actor)

    @rule(who=WHICH)
    def beat(self, who: int) -> None:
        """A worker counts up its heartbeat."""
        if actor := self.pick(self.actors, who):
            self.both("beats", actor.worker_id, actor.epoch)

    # Time, and who looks after the crawl

    @rule(by=st.integers(1, 3))
    def advance(self, by: int) -> None:
        """Time passes."""
        if self.reference.epoch is not None:
            self.live.advance(by * UNIT_S)
            self.reference.clock += by

    @rule(
        slot=SLOT,
        delay=st.sampled_from((None, None, -1, 0, 1, 2)),
        concurrency=st.sampled_from((None, None, -1, 0, 1, 2)),
        block=st.sampled_from((None, None, None, 0, 1, 3)),
        budget=st.sampled_from((None, None, None, None, None, -1, 0, 4, 9)),
    )
    def limit(
        self, slot: int, delay: int | None, concurrency: int | None, block: int | None,
        budget: int | None = None,
    ) -> None:  # fmt: skip
        """Someone changes the limits of a partition by hand."""
        partition = PARTITIONS[slot]
        delay_s, block_s = (None if n is None else n * UNIT_S for n in (delay, block))
        answer = self.live.call("limit", partition, delay_s, concurrency, block_s, budget=budget)
        if self.reference.epoch is None:
            assert answer is None
            return
        assert answer is not None
        found = (answer[0] / UNIT_S, answer[1], round(answer[2] / UNIT_S), *answer[3:])
        assert found == self.reference.limit(partition, delay_s, concurrency, block_s, budget)

    @rule(word=st.sampled_from((*Word, Word.RESUME, Word.RESUME, Word.RESUME)))
    def steer(self, word: Word) -> None:
        """Someone tells all workers something."""
        assert steer(self.live.redis, self.live.crawl, word) == self.reference.steer(word)

    @rule(failed=WHICH, dead=WHICH)
    def retry(self, failed: int, dead: int) -> None:
        """Someone gives some of what went wrong for good another try."""
        reference = self.reference
        kept = [record[0] for record in reference.failed], sorted(reference.dead)
        # Once the last worker has cleared a run, a late put may store again what failed in it.
        stored = reference.elsewhere()
        chosen = [
            [entry_id for i, entry_id in enumerate(ids) if bits >> i & 1 and entry_id not in stored]
            for ids, bits in zip(kept, (failed, dead), strict=True)
        ]
        # Which of them go in one step, and in which order, is the frontier's choice: HSCAN goes by a hash
        # that is another one in each server. A step gives their turns to the partitions that it touches.
        steps: tuple[list[bytes], list[bytes]] = ([], [])

        def step(
            client: Any, shard: keys.Shard, at: Overview, failed: Any = (), dead: Any = (), by: str = ""
        ) -> tuple[int, int]:
            moved = retry_records(client, shard, at, failed, dead)
            ids = [records.failed(record).entry_id for record, _ in failed] or list(dead)
            steps[bool(dead)].extend(ids)
            reference.retry(ids)
            return moved

        with mock.patch.object(retry_module, "retry_records", step):
            found = retry(
                self.live.redis, self.live.crawl, peek(self.live.redis, self.live.crawl),
                failed=lambda record: record.entry_id in chosen[0],
                dead=lambda record: record.entry_id in chosen[1],
            )  # fmt: skip
        assert found == Retried(len(chosen[0]), len(chosen[1]))
        assert [sorted(ids) for ids in steps] == [sorted(ids) for ids in chosen]

    # What goes wrong

    @rule(
        who=WHICH,
        moves=moves_of(KINDS, 0, 4),
        want=st.integers(0, 8),
        wrong=st.sampled_from(("seq", "held", "epoch", "run", "worker_id")),
        by=st.sampled_from((-2, -1, 1, 2)),
    )
    def misfit(self, who: int, moves: list[Any], want: int, wrong: str, by: int) -> None:
        """An exchange arrives that is right but for one argument."""
        if actor := self.pick(self.actors, who):
            args = self.exchange_of(actor, self.made_from(moves, actor), want, 0, NO_TERMS)
            at = {"worker_id": 0, "epoch": 1, "run": 2, "seq": 3, "held": 6}[wrong]
            changed = f"{args[at]}{by}" if isinstance(args[at], str) else max(0, args[at] + by)
            self.both("exchange", *args[:at], changed, *args[at + 1 :])

    @rule(which=WHICH)
    def late_copy(self, which: int) -> None:
        """Something that was sent before, and answered or not, arrives once more."""
        if sent := self.pick(self.history, which):
            self.both(sent[0], *sent[1])

    @rule(who=WHICH, gone=st.booleans())
    def fence(self, who: int, gone: bool) -> None:
        """Someone is presumed dead, rightly or wrongly, or known to be gone."""
        if worker_id := self.pick(sorted(self.reference.members), who):
            self.both("fence", worker_id, self.reference.epoch, self.reference.run, gone)

    @rule(who=WHICH, limit=st.integers(1, 3), max_attempts=st.integers(1, 3))
    def drain(self, who: int, limit: int, max_attempts: int) -> None:
        """Someone drains a little of a member, fenced or not."""
        if worker_id := self.pick(sorted(self.reference.members), who):
            self.both("drain", worker_id, self.reference.epoch, self.reference.run, limit, max_attempts)

    @rule(who=WHICH, times=st.integers(1, 4), limit=st.integers(1, 20), max_attempts=st.integers(2, 3))
    def crash(self, who: int, times: int, limit: int, max_attempts: int) -> None:
        """A worker dies with all it holds; so do those that take its leases after it."""
        for _ in range(times):
            if actor := self.pick(self.actors, who):
                self.send(actor, [], 10, 0, lost=False)
                self.reclaim(actor.worker_id, limit, max_attempts)
            self.join(named=False, keep_seen=False)

    @rule()
    def finish(self) -> None:
        """The workers crawl on until nothing is left, and see that nobody else is there: nothing is stuck."""
        self.steer(Word.RESUME)
        for _ in range(10 + 2 * (len(self.reference.backlog) + len(self.reference.delayed))):
            for slot in range(len(PARTITIONS)):  # each time: a worker that rejoins sets the limits of its run
                self.limit(slot, None, None, None, budget=0)
            for worker_id in set(self.reference.members) - {actor.worker_id for actor in self.actors}:
                self.reclaim(worker_id, 20, 3)
            self.advance(4)
            self.settle(seeding=0, want=20, lost=False)
            if self.reference.phase == "finished":
                break
        stuck = self.reference.phase != "finished" and not self.reference.count_incomplete()
        # A worker of an earlier run takes no part in this one: it learns that its own is finished.
        assert not stuck or not [actor for actor in self.actors if actor.run == self.reference.run]

    @rule(spared=st.sampled_from((2, 1, 1, 0)))
    def flush(self, spared: int) -> None:
        """Someone starts afresh, and is refused while a worker is not declared dead."""
        dead = sorted(self.reference.members)[spared:]
        refused_for, expected = self.reference.flush(dead)
        refused_by, census, _, _ = self.live.call("flush", dead)
        assert census == expected
        assert refused_by in (refused_for or {""})

    @rule()
    def take_snapshot(self) -> None:
        """Redis writes to its disk."""
        self.snapshots = [*self.snapshots, (self.live.dump(), deepcopy(self.reference))][-3:]

    @rule(which=WHICH)
    def roll_back(self, which: int) -> None:
        """Redis is rolled back to a snapshot; the workers are not."""
        if snapshot := self.pick(self.snapshots, which):
            self.live.roll_back(snapshot[0])
            self.reference = deepcopy(snapshot[1])

    # What must hold

    @invariant()
    def the_state_is_the_same(self) -> None:
        """All that is stored is what the reference holds; nothing else was touched."""
        expected = self.not_past(reference_state(self.reference))
        if self.seen is Seen.COMPACT:
            tokens = expected["tokens"]
            expected["tokens"] = tokens | {Admission.SEEN: compacted(tokens[Admission.SEEN])}
        assert self.in_units(self.live.state()) == expected
        own = set(crawl_keys(self.live.redis, self.live.crawl))
        assert set(self.live.redis.keys("*")) - own == self.strangers

    @invariant()
    def the_overview_is_the_same(self) -> None:
        """A look from outside shows the reference's phase, counts and members."""
        reference, overview = self.reference, peek(self.live.redis, self.live.crawl)
        assert (overview.phase, overview.epoch, overview.run) == (
            reference.phase, reference.epoch or "", reference.run,
        )  # fmt: skip
        assert overview.hold == reference.words.hold
        assert overview.census == reference.census(reference.count_seeding(), reference.count_incomplete())
        assert [
            replace(member, since=self.wall_s if member.since >= self.wall_s else -1)
            for member in sorted(overview.members, key=lambda member: member.worker_id)
        ] == [
            Member(worker_id, w.identity, w.fenced, len(w.leases), w.beats, self.wall_s, w.done)
            for worker_id, w in sorted(reference.members.items())
        ]

    def teardown(self) -> None:
        if hasattr(self, "live"):
            try:
                self.live.call("flush", list(self.reference.members))
                assert self.live.dump() == {}
            finally:
                self.live.close()

    # How it is done

    def both(self, method: str, *args: Any) -> Any:
        """Call *method* of both frontiers, hold the answers against each other and return them."""
        self.history = [*self.history, (method, args)][-HISTORY:]
        if method == "drain":
            return self.both_drain(*args)
        if method == "exchange":
            members = self.live.redis.zrange(self.live.key("delayed"), 0, -1)
            self.reference.due_first = [member[:12] for member in members]
        sent = args
        if method == "exchange":
            *who, want, seeding, held, moves, terms = args
            sent = (
                Exchange(*who, want, Seeding(seeding), held, pack_moves(moves), pack_terms(terms)),
            )  # fmt: skip
        elif method == "rejoin":
            new_id, identity, *before, crawl = args
            sent = (Rejoin(new_id, *before), identity, crawl)
        answer = self.live.call(method, *sent)
        expected = getattr(self.reference, method)(*args)
        if isinstance(answer, Receipt):
            answer, expected = (
                replace(found, blocked=tuple(sorted(found.blocked))) for found in (answer, expected)
            )
            assert times(answer) == times(expected)
        assert answer == expected
        return answer

    def in_units(self, state: State) -> State:
        """Return the *state* that is stored, with times as the reference has them."""

        def unit(time_ms: float) -> int | None:
            return units(time_ms / 1000 - self.wall_s)

        limited, delay_ms, concurrency, own = state["limits"]
        own = {p: (ms and ms / 1000 / UNIT_S, *more) for p, (ms, *more) in own.items()}
        members = {
            worker_id: (*m[:6], tuple((i, at and unit(at)) for i, at in m[6]), *m[7:])
            for worker_id, m in state["members"].items()
        }
        times = {
            name: {p: unit(time) for p, time in state[name].items()}
            for name in ("resting", "earliest", "blocked")
        }
        return self.not_past(
            state
            | times
            | {
                "delayed": {i: (unit(due), *rest) for i, (due, *rest) in state["delayed"].items()},
                "members": members,
                "limits": (limited, delay_ms / 1000 / UNIT_S, concurrency, own),
                "offset": units(state["offset"] / 1000),
            }
        )

    def not_past(self, state: State) -> State:
        """Return *state* without the times that mean nothing any more: they are forgotten now or later."""
        past = {
            name: {p: time for p, time in state[name].items() if time > self.reference.clock}
            for name in ("earliest", "blocked")
        }
        return state | past

    def both_drain(
        self, worker_id: str, epoch: str, run: int, limit: int, max_attempts: int
    ) -> tuple[int, int, int]:
        """Drain; which leases go first is the frontier's choice, how many is not."""
        answer = self.live.call("drain", worker_id, epoch, run, limit, max_attempts)
        worker = self.reference.members.get(worker_id)
        before = set(worker.leases) if worker else set()
        entries = self.live.state()["entries"]
        chosen = sorted(i for i in before if i not in entries or entries[i][0] != worker_id)
        assert len(chosen) in (0, min(limit, len(before)))
        assert answer == self.reference.drain(worker_id, epoch, run, chosen, max_attempts)
        return answer

    def reclaim(self, worker_id: str, limit: int, max_attempts: int) -> None:
        """Fence and drain a worker; if a process is behind the id, it is dead."""
        self.actors = [actor for actor in self.actors if actor.worker_id != worker_id]
        args = (worker_id, self.reference.epoch or "", self.reference.run)
        self.both("fence", *args)
        while self.both("drain", *args, limit, max_attempts)[2]:
            pass

    def exchange_of(
        self, actor: Actor, moves: list[Move], want: int, seeding: int, terms: Terms
    ) -> tuple[Any, ...]:
        who = (actor.worker_id, actor.epoch, actor.run, actor.seq)
        return (*who, want, seeding, len(actor.held), moves, terms)

    def send(
        self, actor: Actor, moves: list[Move], want: int, seeding: int, lost: bool, terms: Terms = NO_TERMS
    ) -> None:
        if actor.out_of_step and not actor.unanswered:
            self.resync(actor)
            if actor not in self.actors:
                return
            # If the crawl was rolled back to an earlier run, this has dropped its tokens, and
            # a worker gives new ids to what it puts again (WorkerProtocol._renew_ids).
            moves = [
                each for each in moves if not (isinstance(each, Put) and self.reference.would_be_twice(each))
            ]
        sent = actor.unanswered or self.exchange_of(actor, moves, want, seeding, terms)
        receipt: Receipt = self.both("exchange", *sent)
        actor.unanswered = sent if lost else None
        if lost:
            return
        if receipt.applied:
            settled = {move.entry_id for move in sent[-2] if not isinstance(move, Put)}
            actor.held = [entry_id for entry_id in actor.held if entry_id not in settled]
            actor.held += [lease.entry_id for lease in receipt.leases]
            actor.seq += 1
        elif receipt.status is Status.LOST:
            self.actors.remove(actor)
        elif receipt.status is Status.FINISHED and not sent[-2]:
            actor.seq += 1
        else:
            actor.out_of_step = True

    def resync(
        self,
        actor: Actor,
        parentless: Parentless = Parentless.NONE,
        keep_seen: bool = False,
        repeats: int = 0,
    ) -> None:
        new_id = self.new_name("worker")
        old = (actor.worker_id, actor.epoch, actor.run, actor.held)
        args = (new_id, {"host": new_id}, *old, parentless, 1, replace(actor.crawl, keep_seen=keep_seen))
        for _ in range(repeats + 1):
            rejoined = self.both("rejoin", *args)
        if rejoined.status is Status.OK:
            actor.worker_id, actor.run, actor.seq = new_id, rejoined.run, 1
            actor.held = [entry_id for entry_id in actor.held if entry_id in rejoined.owned]
            actor.unanswered, actor.out_of_step = None, False
        elif actor in self.actors:
            self.actors.remove(actor)

    def made_from(self, recipes: list[Any], actor: Actor) -> list[Move]:
        """Turn what was drawn into moves that mean something here and now."""
        return [move for recipe in recipes if (move := self.move_from(actor, *recipe))]

    def terms_from(self, recipe: Any, actor: Actor) -> Terms:
        ahead, most, here, notes, max_pages = recipe
        told: list[Sent | Block] = []
        for kind, which, slot, age in notes:
            some = [put.entry_id for put in self.puts] if kind.startswith("foreign") else actor.held
            if kind == "block":
                told.append(Block(PARTITIONS[slot], (age + 1) * UNIT_S))
            elif entry_id := self.pick(some, which):
                at = None if kind == "never sent" else -age * UNIT_S
                told.append(Sent(self.slots[entry_id], entry_id, at))
        return Terms(ahead * UNIT_S, most, here, told, max_pages=max_pages)

    def move_from(
        self, actor: Actor, kind: str, which: int, priority: int, start: bool, slot: int, when: str
    ) -> Move | None:
        if kind in ("seen", "seed", "id"):
            new_id = sha1(self.new_name("entry").encode()).digest()[:12]
            admission = {"seen": Admission.SEEN, "seed": Admission.SEED, "id": Admission.ID}[kind]
            token = new_id if kind == "id" else b"token %d" % (which % TOKENS)
            partition = self.slots[new_id] = self.pick(self.partitions, slot)
            put = Put(new_id, admission, token, priority, start, new_id * (which % 3), partition=partition)
            if when == "never":
                put.reason = "not to be served"
            elif when.startswith("due"):
                put.due_at = int(when[-1]) * UNIT_S
            elif when:
                put.not_before_s = self.wall_s + int(when[-1]) * UNIT_S
            self.puts.append(put)
            if kind == "seen":
                self.tokens_of[new_id] = token
            return put
        if kind == "again":
            put = self.pick(self.puts, which)
            return None if put and self.reference.would_be_twice(put) else put
        foreign = [put.entry_id for put in self.puts]
        entry_id = self.pick(foreign if kind.startswith("foreign") else actor.held, which)
        if not entry_id:
            return None
        if kind.endswith("bury"):
            return Bury(entry_id, "no reason")
        if kind.endswith("decline"):
            return Decline(entry_id, "no code", self.tokens_of.get(entry_id, b""))
        if kind.endswith("later"):
            due_at = (2 if when == "due 2" else 1) * UNIT_S
            later = next_id(entry_id)
            self.slots[later] = self.slots[entry_id]
            return Again(entry_id, later, entry_id * (which % 3), priority, start, due_at, slot == 0)
        if kind == "fail":
            return Fail(entry_id, "failed", f"label {which}", never_sent=start)
        return Ack(entry_id, never_sent=start) if kind.endswith("ack") else Release(entry_id)

    def new_name(self, of: str) -> str:
        self.made += 1
        return f"{of}-{self.made}"

    @staticmethod
    def pick(some: list[Any], which: int) -> Any:
        return some[which % len(some)] if some else None


def times(receipt: Receipt) -> tuple[Any, ...]:
    """Return what a comparison of receipts leaves out, in units."""
    found = (receipt.next_due_s, *(lease.send_at for lease in receipt.leases))
    return tuple(units(seconds) for seconds in found)


@pytest.fixture
def _no_time_passes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers' clocks stand at 0: what is sent in advance of a moment is the same in each example."""
    monkeypatch.setattr(frontier, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.mark.usefixtures("_no_time_passes_by_itself")
def test_the_frontier_does_what_the_protocol_says(redis_server: RedisServer) -> None:
    """Under random moves and faults every answer and the whole stored state equal the reference's."""
    run_state_machine_as_test(lambda: FrontierMachine(redis_server.url), settings=QUICK)


@pytest.mark.soak
@pytest.mark.usefixtures("_no_time_passes_by_itself")
def test_the_frontier_does_what_the_protocol_says_for_long(redis_server: RedisServer) -> None:
    """The same, with 20 times as many examples."""
    run_state_machine_as_test(lambda: FrontierMachine(redis_server.url), settings=SOAK)


PUT = ("seen", 0, 0, False, 0, "")


@pytest.fixture
def machine(redis_server: RedisServer, _no_time_passes_by_itself: None) -> Iterator[FrontierMachine]:
    """Yield a machine whose rules a test calls in an order that Hypothesis has found."""
    made = FrontierMachine(redis_server.url)
    yield made
    made.teardown()


def test_dead_letters_that_come_back_are_served_as_the_reference_says(machine: FrontierMachine) -> None:
    """A retry counts as something new: what is put after it has a later place. (Hypothesis has found it.)"""
    unlimited = Limits(0.0, 0, {})
    order, seen = Order.PRIORITY_LIFO, Seen.EXACT
    machine.begin(order=order, seen=seen, limits=unlimited, partitions=1, named=False,
                  moves=[("seen", 0, 0, False, 0, "never"), *[PUT] * 5])  # fmt: skip
    machine.retry(dead=1, failed=0)
    machine.discover(who=0, moves=[("seen", 1, 0, False, 0, "never"), *[PUT] * 11], want=2, seeding=0,
                     terms=(0, 1000, {}, [], None))  # fmt: skip
    machine.retry(dead=1, failed=0)
    machine.the_state_is_the_same()


def test_what_budgets_have_spent_is_kept_beside_what_a_retry_needs(machine: FrontierMachine) -> None:
    """The last worker has left, and one was fenced: it may return. (Hypothesis has found it.)"""
    machine.begin(order=Order.FIFO, seen=Seen.EXACT, limits=Limits(0.0, 0, {}, 6, False), partitions=1,
                  named=False, moves=[PUT] * 6)  # fmt: skip
    for _ in range(3):
        machine.settle(seeding=0, want=20, lost=False)
    machine.fence(gone=False, who=0)
    machine.finish()
    spent = machine.reference.spent
    for _ in range(5):
        machine.leave(keep_seen=False, who=0)
    assert machine.reference.spent == spent != {}
    machine.the_state_is_the_same()


def test_a_retry_of_a_finished_run_ends_its_hold(machine: FrontierMachine) -> None:
    """Someone pauses a run that is finished, and retries a dead letter of it. (Hypothesis has found it.)"""
    order, seen = Order.PRIORITY_LIFO, Seen.EXACT
    machine.begin(order=order, seen=seen, limits=Limits(0.0, 0, {}), partitions=1, named=False,
                  moves=[("seen", 0, 0, False, 0, "never"), *[PUT] * 5])  # fmt: skip
    machine.finish()
    machine.steer(word=Word.PAUSE)
    machine.retry(dead=1, failed=0)
    machine.the_overview_is_the_same()
