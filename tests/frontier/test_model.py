"""The frontier and the reference, driven by the same random moves, agree in every answer and all state."""

from __future__ import annotations

import secrets
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from scrapy_dq.frontier import peek
from scrapy_dq.frontier.frontier import Identity, pack_moves
from scrapy_dq.frontier.model import (
    Ack,
    Admission,
    Bury,
    Fail,
    Member,
    Move,
    Order,
    Parentless,
    Put,
    Receipt,
    Release,
    Status,
)
from support.live_frontier import LiveFrontier
from support.redis_server import RedisServer
from support.reference import ReferenceFrontier
from support.stored import Dump, crawl_keys, reference_state

EXAMPLES = 250
settings.register_profile(
    "frontier",
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
QUICK = settings.get_profile("frontier")
SOAK = settings(QUICK, max_examples=10 * EXAMPLES)

# No strategy depends on the state, and no rule has a precondition: whatever the servers' hashes do,
# the same choices stay possible, and an example replays.
WHICH = st.integers(0, 2**16)
PUTS = ("seen", "seed", "id")
SETTLE = ("ack", "release", "bury", "fail")
KINDS = (*PUTS, *PUTS, "id", *SETTLE, "again", "foreign ack", "foreign release", "foreign bury")
LOST = st.sampled_from((False, False, True))
SEEDING = st.sampled_from((0, 0, 0, 0, 1, 2))


def moves_of(kinds: tuple[str, ...], min_size: int, max_size: int) -> st.SearchStrategy[list[Any]]:
    recipe = st.tuples(st.sampled_from(kinds), WHICH, st.integers(-1, 1), st.booleans())
    return st.lists(recipe, min_size=min_size, max_size=max_size)


TOKENS = 8
WORKERS = 4
HISTORY = 40


@dataclass
class Actor:
    """What one worker process knows."""

    worker_id: str
    epoch: str
    run: int
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
        self.actors: list[Actor] = []
        self.history: list[tuple[str, tuple[Any, ...]]] = []

    @initialize(order=st.sampled_from(list(Order)), named=st.booleans(), moves=moves_of(PUTS, 6, 12))
    def begin(self, order: Order, named: bool, moves: list[Any]) -> None:
        """Two workers have joined, the first has found something and holds some of it."""
        self.live = LiveFrontier(self.url, f"model-{secrets.token_hex(8)}", order)
        self.reference = ReferenceFrontier(order)
        self.strangers = set(self.live.redis.keys("*"))
        self.snapshots: list[tuple[Dump, ReferenceFrontier]] = []
        self.join(named, keep_seen=False)
        self.take_snapshot()
        self.join(named, keep_seen=False)
        self.work(who=0, moves=moves, want=5, seeding=0, lost=False)

    # What a worker does

    @rule(named=st.booleans(), keep_seen=st.booleans())
    def join(self, named: bool, keep_seen: bool) -> None:
        """A process starts; past WORKERS of them, the oldest is killed and says no more."""
        worker_id = self.new_name("worker")
        crawl = Identity("f", "s", f"args of {worker_id}", "job" if named else "", keep_seen)
        joined = self.both("join", worker_id, {"host": worker_id}, self.new_name("epoch"), crawl)
        if joined.status is Status.OK:
            self.actors = [*self.actors, Actor(worker_id, joined.epoch, joined.run)][-WORKERS:]

    @rule(
        who=WHICH,
        moves=moves_of(KINDS, 0, 8),
        want=st.integers(0, 8),
        seeding=SEEDING,
        lost=LOST,
    )
    def work(self, who: int, moves: list[Any], want: int, seeding: int, lost: bool) -> None:
        """A worker makes its next exchange, or repeats the one whose reply was lost."""
        if actor := self.pick(self.actors, who):
            self.send(actor, self.made_from(moves, actor), want, seeding, lost)

    @rule(who=WHICH, moves=moves_of((*PUTS, "again"), 4, 12), want=st.integers(2, 20), seeding=SEEDING)
    def discover(self, who: int, moves: list[Any], want: int, seeding: int) -> None:
        """A worker finds many new requests, and takes many."""
        self.work(who, moves, want, seeding, lost=False)

    @rule(who=WHICH, moves=moves_of((*SETTLE, "ack"), 1, 6), want=st.integers(1, 20))
    def progress(self, who: int, moves: list[Any], want: int) -> None:
        """A worker settles some of what it holds, and takes more."""
        self.work(who, moves, want, 0, lost=False)

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
            args = self.exchange_of(actor, self.made_from(moves, actor), want, 0)
            at = {"worker_id": 0, "epoch": 1, "run": 2, "seq": 3, "held": 6}[wrong]
            changed = f"{args[at]}{by}" if isinstance(args[at], str) else max(0, args[at] + by)
            self.both("exchange", *args[:at], changed, *args[at + 1 :])

    @rule(which=WHICH)
    def late_copy(self, which: int) -> None:
        """Something that was sent before, and answered or not, arrives once more."""
        if sent := self.pick(self.history, which):
            self.both(sent[0], *sent[1])

    @rule(who=WHICH)
    def fence(self, who: int) -> None:
        """Someone is presumed dead, rightly or wrongly."""
        if worker_id := self.pick(sorted(self.reference.members), who):
            self.both("fence", worker_id, self.reference.epoch, self.reference.run)

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
        """The workers crawl on until nothing is left, and see that nobody else is there."""
        for worker_id in set(self.reference.members) - {actor.worker_id for actor in self.actors}:
            self.reclaim(worker_id, 20, 3)
        for _ in range(8):
            self.settle(seeding=0, want=20, lost=False)

    @rule(spared=st.sampled_from((2, 1, 1, 0)))
    def flush(self, spared: int) -> None:
        """Someone starts afresh, and is refused while a worker is not declared dead."""
        dead = sorted(self.reference.members)[spared:]
        refused_for, expected = self.reference.flush(dead)
        refused_by, census = self.live.call("flush", dead)
        assert census == expected
        assert refused_by in (refused_for or {""})

    @rule()
    def take_snapshot(self) -> None:
        """Redis writes to its disk."""
        self.snapshots = [*self.snapshots, (self.live.dump(), deepcopy(self.reference))][-3:]

    @rule(which=WHICH)
    def roll_back(self, which: int) -> None:
        """Redis comes back as it was at a snapshot; the workers do not."""
        if snapshot := self.pick(self.snapshots, which):
            self.live.roll_back(snapshot[0])
            self.reference = deepcopy(snapshot[1])

    # What must hold

    @invariant()
    def the_state_is_the_same(self) -> None:
        """All that is stored is what the reference holds; nothing else was touched."""
        assert self.live.state() == reference_state(self.reference)
        own = set(crawl_keys(self.live.redis, self.live.crawl))
        assert set(self.live.redis.keys("*")) - own == self.strangers

    @invariant()
    def the_overview_is_the_same(self) -> None:
        """A look from outside shows the reference's phase, counts and members."""
        reference, overview = self.reference, peek(self.live.redis, self.live.crawl)
        assert (overview.phase, overview.epoch, overview.run) == (
            reference.phase, reference.epoch or "", reference.run,
        )  # fmt: skip
        assert overview.census == reference.census(reference.count_seeding())
        assert sorted(overview.members, key=lambda member: member.worker_id) == [
            Member(worker_id, worker.identity, worker.fenced, len(worker.leases), worker.beats)
            for worker_id, worker in sorted(reference.members.items())
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
        sent = (*args[:-1], pack_moves(args[-1])) if method == "exchange" else args
        answer = self.live.call(method, *sent)
        expected = getattr(self.reference, method)(*args)
        assert answer == expected
        return answer

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

    def exchange_of(self, actor: Actor, moves: list[Move], want: int, seeding: int) -> tuple[Any, ...]:
        return (actor.worker_id, actor.epoch, actor.run, actor.seq, want, seeding, len(actor.held), moves)

    def send(self, actor: Actor, moves: list[Move], want: int, seeding: int, lost: bool) -> None:
        if actor.out_of_step and not actor.unanswered:
            self.resync(actor)
            if actor not in self.actors:
                return
        sent = actor.unanswered or self.exchange_of(actor, moves, want, seeding)
        receipt: Receipt = self.both("exchange", *sent)
        actor.unanswered = sent if lost else None
        if lost:
            return
        if receipt.applied:
            settled = {move.entry_id for move in sent[-1] if not isinstance(move, Put)}
            actor.held = [entry_id for entry_id in actor.held if entry_id not in settled]
            actor.held += [lease.entry_id for lease in receipt.leases]
            actor.seq += 1
        elif receipt.status is Status.LOST:
            self.actors.remove(actor)
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
        args = (new_id, {"host": new_id}, *old, parentless, keep_seen)
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

    def move_from(self, actor: Actor, kind: str, which: int, priority: int, start: bool) -> Move | None:
        if kind in ("seen", "seed", "id"):
            new_id = sha1(self.new_name("entry").encode()).digest()[:12]
            admission = {"seen": Admission.SEEN, "seed": Admission.SEED, "id": Admission.ID}[kind]
            token = new_id if kind == "id" else b"token %d" % (which % TOKENS)
            self.puts.append(Put(new_id, admission, token, priority, start, new_id * (which % 3)))
            return self.puts[-1]
        if kind == "again":
            return self.pick(self.puts, which)
        foreign = [put.entry_id for put in self.puts]
        entry_id = self.pick(foreign if kind.startswith("foreign") else actor.held, which)
        if not entry_id:
            return None
        if kind.endswith("bury"):
            return Bury(entry_id, "no reason")
        if kind == "fail":
            return Fail(entry_id, "failed", f"label {which}")
        return Ack(entry_id) if kind.endswith("ack") else Release(entry_id)

    def new_name(self, of: str) -> str:
        self.made += 1
        return f"{of}-{self.made}"

    @staticmethod
    def pick(some: list[Any], which: int) -> Any:
        return some[which % len(some)] if some else None


def test_the_frontier_does_what_the_protocol_says(redis_server: RedisServer) -> None:
    """Under random moves and faults every answer and the whole stored state equal the reference's."""
    run_state_machine_as_test(lambda: FrontierMachine(redis_server.url), settings=QUICK)


@pytest.mark.soak
def test_the_frontier_does_what_the_protocol_says_for_long(redis_server: RedisServer) -> None:
    """The same, with ten times as many examples."""
    run_state_machine_as_test(lambda: FrontierMachine(redis_server.url), settings=SOAK)
