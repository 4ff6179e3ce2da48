"""Workers join, rejoin, are fenced and drained, and leave. Their leases go to the right place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.answers import Member, Rejoined
from scrapy_dq.frontier.calls import Rejoin
from scrapy_dq.frontier.model import Admission, Census, Lease, Parentless, Seeding, Seen, Status, Terms
from scrapy_dq.frontier.moves import Put
from support.live_frontier import (
    IDENTITY,
    PROGRAM,
    HandWorker,
    LiveFrontier,
    ack,
    bury,
    entry_id,
    fail,
    limited,
    numbers,
    partition_of,
    put,
)

pytestmark = pytest.mark.parametrize("partitioning", ["none", "own"], indirect=True)

ALL = range(1, 6)


def puts_of_one_partition() -> list[Put]:
    """Return puts of all entries into one partition, which serves them by number, even after a release."""
    return [put(n, partition=partition_of(0)) for n in ALL]


def places(live: LiveFrontier) -> dict[int, str]:
    """Return which worker holds each entry, or "backlog"."""
    return {int(i): where for i, (where, *_) in live.state()["entries"].items()}


# join


def test_keys_that_lost_their_meta_are_cleared(live: LiveFrontier, worker: HandWorker) -> None:
    """If a user deletes only `meta`, the next join deletes the other keys of the old crawl."""
    worker.exchange(put(1), put(2), want=1)
    live.redis.delete(keys.meta(live.crawl))
    joined = live.call("join", "b", {"host": "h"}, "epoch-2", IDENTITY)
    assert (joined.epoch, joined.census) == ("epoch-2", Census(workers=1))
    assert live.key_names() == {"meta", "members", "beats", "worker:b"}


def but_beats(live: LiveFrontier) -> dict[bytes, bytes]:
    """Return all keys except the heartbeats, which a repeated join or rejoin increments."""
    return {name: value for name, value in live.dump().items() if not name.endswith(b":beats")}


def test_a_repeated_join_does_not_start_a_run(live: LiveFrontier, worker: HandWorker) -> None:
    """A copy of a member's join arrives after the run has finished. The run stays finished."""
    worker.exchange()
    before = but_beats(live)
    assert live.call("join", "worker", {"host": "worker"}, "epoch-2", IDENTITY).run == worker.run
    assert but_beats(live) == before


# rejoin


def test_rejoin_keeps_the_leases_of_the_worker_and_releases_the_rest(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Leases that the worker knows continue under its new id. The others return. No attempt is charged."""
    worker.exchange(*puts_of_one_partition())
    assert other.take(1) == [1]
    assert worker.take(3) == [2, 3, 4]
    assert worker.rejoin("worker-2", held=[1, 3, 4, 99]).owned == {entry_id(3), entry_id(4)}
    assert places(live) == {1: "other", 2: "backlog", 3: "worker-2", 4: "worker-2", 5: "backlog"}
    assert live.members() == {"worker-2", "other"}
    receipt = other.exchange(want=1)
    assert receipt.leases == (Lease(entry_id(2), 0, b"payload", partition_of(0)),)


@pytest.mark.parametrize("fenced", [False, True])
def test_a_repeated_rejoin_of_a_worker_declared_dead_in_between_works(
    live: LiveFrontier, worker: HandWorker, other: HandWorker, fenced: bool
) -> None:
    """Each answer has the number of the worker's last stored exchange. So the worker assumes no roll-back."""
    worker.exchange(put(1))
    worker.exchange(put(2))
    if fenced:
        other.fence("worker")
        other.drain("worker")
    args = Rejoin("worker-2", "worker", worker.epoch, 0, [], Parentless.NONE, Seeding.ACTIVE), {}, IDENTITY
    assert live.call("rejoin", *args).last_seq == 2
    other.fence("worker-2")
    other.drain("worker-2")
    assert live.call("rejoin", *args).last_seq == 2
    assert live.call("rejoin", *args).last_seq == 2
    assert live.state()["absent"] == {}


def test_the_last_exchange_of_one_id_is_not_taken_for_that_of_another(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """A worker rejoins under a new id, which is declared dead before its first exchange.

    A repeat of this rejoin returns the last exchange of the former id; a later rejoin, of the new id.
    """
    worker.exchange(put(1))
    worker.exchange(put(2))

    def rejoin(new_id: str, *old_ids: str) -> int | None:
        call = Rejoin(
            new_id, old_ids[0], worker.epoch, 0, [], Parentless.NONE, Seeding.ACTIVE, former_ids=old_ids[1:]
        )
        last_seq: int | None = live.call("rejoin", call, {}, IDENTITY).last_seq
        other.fence(new_id)
        other.drain(new_id)
        return last_seq

    assert rejoin("second", "unknown", "worker") == -2 - 2
    assert rejoin("second", "unknown", "worker") == -2 - 2
    assert rejoin("third", "unknown", "second") == -2
    assert rejoin("fourth", "third") == 0


@pytest.mark.parametrize("epoch", ["", "another"])
def test_rejoin_of_another_frontier_is_lost(live: LiveFrontier, worker: HandWorker, epoch: str) -> None:
    """A worker never enters a frontier with another epoch."""
    worker.epoch = epoch
    before = live.dump()
    assert worker.rejoin("worker-2") == Rejoined(Status.LOST)
    assert live.dump() == before


def test_rejoin_with_waiting_parentless_puts_is_accepted_in_a_finished_run(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """A put of `engine.crawl()` has no parent that repeats it, so it may open the finished run again."""
    worker.exchange(put(1), want=1)
    worker.exchange(ack(1))
    assert worker.rejoin("worker-2", parentless=Parentless.WAITING).status is Status.OK
    assert live.state()["phase"] == "finished"
    assert numbers(worker.exchange(put(2), want=1)) == [2]
    assert live.state()["phase"] == "open"


def test_rejoin_with_logged_puts_needs_a_run_that_is_not_cleared(live: LiveFrontier) -> None:
    """Redis may have forgotten the puts. Without the run's keys, the puts would begin the crawl again."""
    worker, other = HandWorker(live, "worker"), HandWorker(live, "other")
    worker.exchange()
    other.exchange()
    worker.leave()
    assert worker.rejoin("worker-2", parentless=Parentless.LOGGED).status is Status.OK
    assert live.state()["phase"] == "finished"
    worker.exchange()
    other.leave()
    worker.leave()
    before = live.dump()
    assert worker.rejoin("worker-3", parentless=Parentless.LOGGED) == Rejoined(Status.FINISHED)
    assert live.dump() == before


def test_rejoin_of_an_older_run_answers_that_it_is_over(live: LiveFrontier, worker: HandWorker) -> None:
    """A worker whose run is over does not enter the next run, even with puts that have no parent."""
    worker.exchange()
    HandWorker(live, "other")
    before = live.dump()
    assert worker.rejoin("worker-2", parentless=Parentless.WAITING) == Rejoined(
        Status.FINISHED, last_seq=2**52
    )
    assert live.dump() == before


def test_rejoin_when_redis_forgot_the_start_of_the_run(live: LiveFrontier, worker: HandWorker) -> None:
    """Redis is rolled back to the end of the previous run. The rejoin begins the worker's own run."""
    worker.exchange(put(1, admission=Admission.SEEN), want=1)
    worker.exchange(ack(1))
    assert worker.rejoin("worker-2", run=1) == Rejoined(Status.OK, 1, frozenset())
    state = live.state()
    assert (state["run"], state["phase"], set(state["members"])) == (1, "open", {"worker-2"})
    assert worker.exchange(put(1, admission=Admission.SEEN)).dropped == ()


def test_rejoin_when_redis_forgot_the_end_of_an_earlier_run(live: LiveFrontier, worker: HandWorker) -> None:
    """Redis is rolled back to an open earlier run, whose `seen` must not filter requests of the later run.

    A worker that joined the earlier run after the roll-back continues in the later run. No entry is lost.
    """
    since = HandWorker(live, "since")
    since.exchange(*(put(n, admission=Admission.SEEN) for n in (1, 2, 3)), want=1)
    since.exchange(put(4, admission=Admission.SEED), ack(1), want=1)
    for name in ("worker", "another"):
        worker.worker_id = f"{name} of run 3"
        assert worker.rejoin(f"{name}-2", run=3) == Rejoined(Status.OK, 3, frozenset())
    state = live.state()
    assert (state["run"], state["phase"]) == (3, "open")
    receipt = worker.exchange(put(11, admission=Admission.SEEN), put(1, admission=Admission.SEEN))
    assert (receipt.dropped, receipt.census.waiting, receipt.census.in_flight) == ((), 4, 1)
    assert since.exchange(want=9).status is Status.RESYNC
    assert since.rejoin("since-2") == Rejoined(Status.OK, 3, frozenset(map(entry_id, [2])), last_seq=2)
    assert {n for _ in range(4) for n in numbers(since.exchange(want=9))} == {3, 4, 11, 1}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("leaves", [True, False])
def test_the_first_worker_of_a_run_learns_how_many_failed_requests_stay_seen(
    live: LiveFrontier, keeps: bool, leaves: bool
) -> None:
    """The next run deletes the failed requests. If it keeps `seen`, no worker crawls their pages again."""
    crawl = replace(IDENTITY, keep_seen=keeps)
    first = HandWorker(live, "first", crawl)
    first.exchange(*(put(n, admission=Admission.SEEN, partition=b"") for n in (1, 2, 3)), want=3)
    assert first.exchange(ack(1), fail(2), bury(3)).status is Status.FINISHED
    if leaves:
        first.leave(keep_seen=keeps)
    assert HandWorker(live, "second", crawl).joined.forgotten == (2 if keeps else 0)
    assert HandWorker(live, "third", crawl).joined.forgotten == 0


@pytest.mark.parametrize("phase", ["open", "finished"])
@pytest.mark.parametrize(
    ("kept_then", "keeps", "kept"), [(False, True, 0), (True, False, 0), (True, True, 1)]
)
def test_after_a_roll_back_an_earlier_run_becomes_the_later_one(
    live: LiveFrontier, phase: str, kept_then: bool, keeps: bool, kept: int
) -> None:
    """The earlier run gets the later run's name, arguments and limits. `seen` stays if both runs keep it."""
    earlier = HandWorker(live, "earlier", replace(IDENTITY, run_name="one", keep_seen=kept_then))
    earlier.exchange(put(1, admission=Admission.SEEN), want=1)
    live.redis.sadd(live.key("adopted"), b"seen by another scheduler")
    if phase == "finished":
        assert earlier.exchange(ack(1)).status is Status.FINISHED
    later = HandWorker(live, "later", replace(IDENTITY, run_name="one"))
    later.crawl = replace(limited(5.0, 2), run_name="two", spider_args="other", keep_seen=keeps)
    assert later.rejoin("later-2", run=4).run == 4
    assert later.exchange(put(2, admission=Admission.SEEN)).census.seen == kept + 1
    assert live.redis.exists(live.key("adopted")) == kept
    meta = live.redis.hgetall(live.key("meta"))
    assert (meta[b"run_name"], meta[b"spider_args"], meta[b"limiting"]) == (b"two", b"other", b"5000 2")
    joined = HandWorker(live, "joins", later.crawl).joined
    assert (joined.status, joined.run, joined.resumed, joined.limits_before) == (Status.OK, 4, True, None)


@pytest.mark.parametrize("phase", ["open", "finished"])
@pytest.mark.parametrize("first", ["a worker", "a program"])
def test_after_a_roll_back_an_earlier_run_uses_the_settings_of_the_later_one(
    open_frontier: Callable[..., LiveFrontier], phase: str, first: str
) -> None:
    """Pages whose fingerprints had expired when the later run began are new. Workers of that run can join."""
    live = open_frontier(seen=Seen.EXPIRING)
    kept = replace(IDENTITY, keep_seen=True, seen_ttl_s=1000.0)
    then = replace(kept, partition_by="slot", run_name="one")
    earlier = HandWorker(live, "earlier", then)
    earlier.exchange(put(1, admission=Admission.SEEN), want=1)
    if phase == "finished":
        assert earlier.exchange(ack(1)).status is Status.FINISHED
    live.advance(2000)
    program, later = HandWorker(live, "program", then), HandWorker(live, "later", then)
    program.crawl, later.crawl = PROGRAM, kept
    if first == "a program":
        assert program.rejoin("program-2", run=4).run == 4
    assert later.rejoin("later-2", run=4).run == 4
    assert later.exchange(put(1, admission=Admission.SEEN)).dropped == ()
    joined = HandWorker(live, "joins", kept).joined
    assert (joined.status, joined.run, joined.resumed) == (Status.OK, 4, True)


# fence and drain


def test_fencing_drops_the_seeding_level(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """A dead worker's start() does not keep the run open."""
    worker.exchange(seeding=1)
    assert other.exchange().status is Status.OK
    assert other.fence("worker") == "OK"
    assert other.exchange().status is Status.FINISHED


def test_only_fenced_workers_are_drained(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """A worker that is not fenced still runs its entries, so no other worker may get them."""
    worker.exchange(put(1), put(2), want=2)
    before = live.dump()
    assert other.drain("worker") == (0, 0, 0)
    assert other.drain("nobody") == (0, 0, 0)
    assert live.dump() == before


def test_every_step_of_a_long_drain_moves_some_leases(live: LiveFrontier, worker: HandWorker) -> None:
    """Each step moves some leases, until no lease is left."""
    other = HandWorker(live, "other")
    worker.exchange(*(put(n, payload=b"x" * 100) for n in range(900)))
    left = len(worker.take(900))
    other.fence("worker")
    while left:
        moved, buried, left_now = other.drain("worker", limit=20)
        assert (moved, buried) == (min(20, left), 0)
        assert left_now == left - moved
        left = left_now


@pytest.mark.parametrize(
    ("epoch", "run", "answer"), [("another", 0, "LOST"), (None, 1, "RESYNC"), (None, -1, "FINISHED")]
)
def test_reclaiming_needs_the_right_epoch_and_run(
    live: LiveFrontier, worker: HandWorker, other: HandWorker, epoch: str | None, run: int, answer: str
) -> None:
    """A worker with another epoch or run cannot fence or drain a worker, and cannot leave."""
    worker.exchange(put(1), want=1)
    before = live.dump()
    other.epoch, other.run = epoch or other.epoch, run
    assert other.fence("worker") == answer
    assert live.dump() == before
    HandWorker(live, "third").fence("worker")
    before = live.dump()
    assert other.drain("worker") == (0, 0, 0)
    assert other.leave() == (0, False)
    assert live.dump() == before


# leave


def test_a_worker_that_leaves_returns_all_its_leases(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """The leases return to their places, not as suspects. No attempt is charged. The member is removed."""
    other.exchange(*puts_of_one_partition())
    assert worker.take(3) == [1, 2, 3]
    assert worker.leave() == (3, False)
    assert live.members() == {"other"}
    receipt = other.exchange(want=5)
    assert numbers(receipt) == [1, 2, 3, 4, 5]
    assert {lease.attempts for lease in receipt.leases} == {0}


def test_the_last_to_leave_an_open_run_keeps_it(live: LiveFrontier, worker: HandWorker) -> None:
    """The next worker resumes the interrupted crawl as it was."""
    worker.exchange(*(put(n, admission=Admission.SEEN) for n in ALL), want=2)
    worker.exchange(ack(1))
    assert worker.leave() == (1, True)
    joined = HandWorker(live, "later").joined
    assert (joined.run, joined.resumed) == (0, True)
    assert joined.census == Census(waiting=4, done=1, seen=5, workers=1)


# beats


def test_beats_of_another_frontier_are_lost(live: LiveFrontier, worker: HandWorker) -> None:
    """A heartbeat with another epoch is not counted, and its answer has no heartbeats of workers."""
    before = live.dump()
    assert live.call("beats", "worker", "another") == {}
    assert live.dump() == before


# start time and count of done entries


def member(live: LiveFrontier, worker_id: str) -> Member:
    """Return the member with this id."""
    return next(each for each in live.call("members") if each.worker_id == worker_id)


@pytest.mark.parametrize("fenced", [False, True])
def test_a_worker_that_rejoins_keeps_since_and_done(
    live: LiveFrontier, worker: HandWorker, other: HandWorker, fenced: bool
) -> None:
    """A fenced worker also keeps both values. If its old record is gone, both values begin again."""
    live.redis.hset(live.key("worker:worker"), mapping={"since": 5000, "done": 7})
    if fenced:
        other.fence("worker")
    worker.rejoin("again")
    assert (member(live, "again").since, member(live, "again").done) == (5.0, 7)
    worker.leave()
    worker.rejoin("late")
    assert member(live, "late").since > 5
    assert member(live, "late").done == 0


# late copies


@pytest.mark.parametrize("rejoins", [False, True], ids=["join", "rejoin"])
def test_a_late_copy_of_a_registration_lets_no_late_exchange_in(rejoins: bool, live: LiveFrontier) -> None:
    """Late copies of a registration and an exchange arrive after the worker has left.

    The put's token is deleted, so only the refusal of the exchange prevents a second entry.
    """
    HandWorker(live, "spider").exchange(seeding=1)
    program = HandWorker(live, "program")
    if rejoins:
        program.exchange()
        program.rejoin("program-2")
    once = put(1)
    once.once = True
    program.exchange(once)
    late = program.last
    program.exchange(terms=Terms(forget=entry_id(1)))
    program.leave()
    if rejoins:
        live.call(
            "rejoin",
            Rejoin("program-2", "program", program.epoch, 0, [], Parentless.NONE, Seeding.ACTIVE),
            {}, IDENTITY,
        )  # fmt: skip
    else:
        live.call("join", "program", {}, uuid4().hex, IDENTITY)
    assert late.worker_id in live.members()
    assert program.send(late).status is Status.RESYNC
    assert live.count("waiting") == 1
