"""The frontier and a reference in Python get the same random calls, and agree in all answers and state."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from scrapy_dq.frontier import Overview, Retried, frontier, keys, peek, records, retry
from scrapy_dq.frontier.admin import retry as retry_module
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.answers import Member
from scrapy_dq.frontier.model import Admission, Identity, Limits, Order, Parentless, Seen, Status
from scrapy_dq.frontier.moves import Ack
from support.both_frontiers import NO_TERMS, PARTITIONS, Actor, BothFrontiers
from support.compact import compacted
from support.drawn_moves import KINDS, LIMITS, LOST, PUTS, SEEDING, SETTLE, SLOT, TERMS, WHICH, moves_of
from support.live_frontier import LiveFrontier
from support.redis_server import RedisServer
from support.reference import ReferenceFrontier
from support.reference_partitions import UNIT_S
from support.stored import Dump, crawl_keys, reference_state

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "50"))
"""The number of examples in `make test`. `make check` runs fewer."""
settings.register_profile(
    "frontier",
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    # Explaining a failure takes longer than a test may run.
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=list(HealthCheck),
)
QUICK = settings.get_profile("frontier")
SOAK = settings(QUICK, max_examples=50 * EXAMPLES)
STARTS = ("args", "", "args", "other args")
"""Names of the workers' start() methods. An empty name means that the worker has none."""
WORKERS = 4


class FrontierMachine(BothFrontiers):
    """Some workers, their faults, late copies of their calls, and a Redis that is rolled back."""

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
        """Let two workers join. The first worker has found requests and holds some of them."""
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

    # Calls of a worker

    @rule(named=st.booleans(), keep_seen=st.booleans(), limits=st.sampled_from((None,) * 5 + LIMITS))
    def join(self, named: bool, keep_seen: bool, limits: Limits | None = None) -> None:
        """A process starts. If there are more than WORKERS processes, the oldest one is killed."""
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
        """A worker settles some of its leases and takes more."""
        self.work(who, moves, want, 0, lost=False, terms=terms)

    @rule(
        seeding=st.sampled_from((0, 0, 1)),
        want=st.integers(0, 20),
        lost=LOST,
    )
    def settle(self, seeding: int, want: int, lost: bool) -> None:
        """Every worker acks all its leases and takes more."""
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
        """A worker rejoins after any answer, perhaps with fewer leases than it has."""
        if actor := self.pick(self.actors, who):
            actor.held = [entry_id for i, entry_id in enumerate(actor.held) if not keep >> i & 1]
            self.resync(actor, parentless, keep_seen, repeats)

    @rule(who=WHICH, keep_seen=st.booleans())
    def leave(self, who: int, keep_seen: bool) -> None:
        """A worker stops and leaves."""
        if actor := self.pick(self.actors, who):
            self.both("leave", actor.worker_id, actor.epoch, actor.run, keep_seen)
            self.actors.remove(actor)

    @rule(who=WHICH)
    def beat(self, who: int) -> None:
        """A worker increments its heartbeat."""
        if actor := self.pick(self.actors, who):
            self.both("beats", actor.worker_id, actor.epoch)

    # Time and the user

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
        """The user changes the limits of a partition by hand."""
        partition = PARTITIONS[slot]
        delay_s, block_s = (None if n is None else n * UNIT_S for n in (delay, block))
        answer = self.live.call("limit", partition, delay_s, concurrency, block_s, budget=budget)
        if self.reference.epoch is None:
            assert answer is None
            return
        assert answer is not None
        found = (answer[0] / UNIT_S, answer[1], round(answer[2] / UNIT_S), *answer[3:])
        assert found == self.reference.limit(partition, delay_s, concurrency, block_s, budget)

    @rule(action=st.sampled_from((*Command, Command.RESUME, Command.RESUME, Command.RESUME)))
    def steer(self, action: Command) -> None:
        """The user gives all workers a command."""
        assert steer(self.live.redis, self.live.crawl, action) == self.reference.steer(action)

    @rule(failed=WHICH, dead=WHICH)
    def retry(self, failed: int, dead: int) -> None:
        """The user retries some failed requests and dead letters."""
        reference = self.reference
        kept = [record[0] for record in reference.failed], sorted(reference.dead)
        # After a run's keys were deleted, a late put may store an entry again that had failed in the run.
        stored = reference.unfinished()
        chosen = [
            [entry_id for i, entry_id in enumerate(ids) if bits >> i & 1 and entry_id not in stored]
            for ids, bits in zip(kept, (failed, dead), strict=True)
        ]
        # The frontier chooses the entries of a step and their order, because the order of HSCAN differs in
        # each server. Each step changes the turns of its partitions. So the reference repeats the same steps.
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

    # Faults

    @rule(
        who=WHICH,
        moves=moves_of(KINDS, 0, 4),
        want=st.integers(0, 8),
        wrong=st.sampled_from(("seq", "held", "epoch", "run", "worker_id")),
        by=st.sampled_from((-2, -1, 1, 2)),
    )
    def misfit(self, who: int, moves: list[Any], want: int, wrong: str, by: int) -> None:
        """An exchange arrives with one wrong argument."""
        if actor := self.pick(self.actors, who):
            args = self.exchange_of(actor, self.made_from(moves, actor), want, 0, NO_TERMS)
            at = {"worker_id": 0, "epoch": 1, "run": 2, "seq": 3, "held": 6}[wrong]
            changed = f"{args[at]}{by}" if isinstance(args[at], str) else max(0, args[at] + by)
            self.both("exchange", *args[:at], changed, *args[at + 1 :])

    @rule(which=WHICH)
    def late_copy(self, which: int) -> None:
        """A late copy of an earlier call arrives, whether that call was answered or not."""
        if sent := self.pick(self.history, which):
            self.both(sent[0], *sent[1])

    @rule(who=WHICH, gone=st.booleans())
    def fence(self, who: int, gone: bool) -> None:
        """A member is presumed dead, rightly or wrongly, or is known to be gone."""
        if worker_id := self.pick(sorted(self.reference.members), who):
            self.both("fence", worker_id, self.reference.epoch, self.reference.run, gone)

    @rule(who=WHICH, limit=st.integers(1, 3), max_attempts=st.integers(1, 3))
    def drain(self, who: int, limit: int, max_attempts: int) -> None:
        """A worker drains a few leases of a member, fenced or not."""
        if worker_id := self.pick(sorted(self.reference.members), who):
            self.both("drain", worker_id, self.reference.epoch, self.reference.run, limit, max_attempts)

    @rule(who=WHICH, times=st.integers(1, 4), limit=st.integers(1, 20), max_attempts=st.integers(2, 3))
    def crash(self, who: int, times: int, limit: int, max_attempts: int) -> None:
        """A worker dies with all its leases. The next workers that take these leases also die."""
        for _ in range(times):
            if actor := self.pick(self.actors, who):
                self.send(actor, [], 10, 0, lost=False)
                self.reclaim(actor.worker_id, limit, max_attempts)
            self.join(named=False, keep_seen=False)

    @rule()
    def finish(self) -> None:
        """Workers reclaim all other members and crawl until nothing is left. Check that no entry is stuck."""
        self.steer(Command.RESUME)
        for _ in range(10 + 2 * (len(self.reference.backlog) + len(self.reference.delayed))):
            for slot in range(len(PARTITIONS)):  # in each round, because a rejoin sets the limits of its run
                self.limit(slot, None, None, None, budget=0)
            for worker_id in set(self.reference.members) - {actor.worker_id for actor in self.actors}:
                self.reclaim(worker_id, 20, 3)
            self.advance(4)
            self.settle(seeding=0, want=20, lost=False)
            if self.reference.phase == "finished":
                break
        stuck = self.reference.phase != "finished" and not self.reference.count_incomplete()
        # A worker of an earlier run takes no part in this one, because its own run is finished.
        assert not stuck or not [actor for actor in self.actors if actor.run == self.reference.run]

    @rule(spared=st.sampled_from((2, 1, 1, 0)))
    def flush(self, spared: int) -> None:
        """The user flushes the crawl. Redis refuses this unless all members are known to be dead."""
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
        """Redis is rolled back to a snapshot, but the workers keep their state."""
        if snapshot := self.pick(self.snapshots, which):
            self.live.roll_back(snapshot[0])
            self.reference = deepcopy(snapshot[1])

    # Invariants

    @invariant()
    def the_state_is_the_same(self) -> None:
        """The stored state equals the reference's state. No other key has changed."""
        expected = self.not_past(reference_state(self.reference))
        if self.seen is Seen.COMPACT:
            tokens = expected["tokens"]
            expected["tokens"] = tokens | {Admission.SEEN: compacted(tokens[Admission.SEEN])}
        assert self.in_units(self.live.state()) == expected
        own = set(crawl_keys(self.live.redis, self.live.crawl))
        assert set(self.live.redis.keys("*")) - own == self.strangers

    @invariant()
    def the_overview_is_the_same(self) -> None:
        """The overview shows the reference's phase, counts and members."""
        reference, overview = self.reference, peek(self.live.redis, self.live.crawl)
        assert (overview.phase, overview.epoch, overview.run) == (
            reference.phase, reference.epoch or "", reference.run,
        )  # fmt: skip
        assert overview.hold == reference.commands.hold
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


@pytest.fixture
def _no_time_passes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the workers' clocks at 0, so that each example sends the same times."""
    monkeypatch.setattr(frontier, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.mark.usefixtures("_no_time_passes_by_itself")
def test_the_frontier_does_what_the_reference_does(redis_server: RedisServer) -> None:
    """With random moves and faults, every answer and the whole stored state equal the reference."""
    run_state_machine_as_test(lambda: FrontierMachine(redis_server.url), settings=QUICK)


@pytest.mark.soak
@pytest.mark.usefixtures("_no_time_passes_by_itself")
def test_the_frontier_does_what_the_reference_does_in_many_examples(redis_server: RedisServer) -> None:
    """The previous test with 50 times as many examples."""
    run_state_machine_as_test(lambda: FrontierMachine(redis_server.url), settings=SOAK)


PUT = ("seen", 0, 0, False, 0, "")


@pytest.fixture
def machine(redis_server: RedisServer, _no_time_passes_by_itself: None) -> Iterator[FrontierMachine]:
    """Yield a machine whose rules a test calls in an order that Hypothesis has found."""
    made = FrontierMachine(redis_server.url)
    yield made
    made.teardown()


def test_retried_dead_letters_are_served_as_in_the_reference(machine: FrontierMachine) -> None:
    """A retried dead letter returns to its place. Later puts have later places. (Hypothesis found this.)"""
    unlimited = Limits(0.0, 0, {})
    order, seen = Order.PRIORITY_LIFO, Seen.EXACT
    machine.begin(order=order, seen=seen, limits=unlimited, partitions=1, named=False,
                  moves=[("seen", 0, 0, False, 0, "never"), *[PUT] * 5])  # fmt: skip
    machine.retry(dead=1, failed=0)
    machine.discover(who=0, moves=[("seen", 1, 0, False, 0, "never"), *[PUT] * 11], want=2, seeding=0,
                     terms=(0, 1000, {}, [], None))  # fmt: skip
    machine.retry(dead=1, failed=0)
    machine.the_state_is_the_same()


def test_budget_counts_are_kept_with_the_records_that_a_retry_needs(machine: FrontierMachine) -> None:
    """All workers have left, but a fenced worker may return. (Hypothesis found this.)"""
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
    """A user pauses a finished run, and a retry of a dead letter resumes it. (Hypothesis found this.)"""
    order, seen = Order.PRIORITY_LIFO, Seen.EXACT
    machine.begin(order=order, seen=seen, limits=Limits(0.0, 0, {}), partitions=1, named=False,
                  moves=[("seen", 0, 0, False, 0, "never"), *[PUT] * 5])  # fmt: skip
    machine.finish()
    machine.steer(action=Command.PAUSE)
    machine.retry(dead=1, failed=0)
    machine.the_overview_is_the_same()
