"""A run ends exactly when all entries are done and no worker is seeding. A new put opens it again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_dq.crew.monitor import run_name_for
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import Admission, Identity, Parentless, Seeding, Status
from scrapy_dq.settings import Config
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, bury, entry_id, numbers, put

pytestmark = pytest.mark.parametrize("partitioning", ["none", "own"], indirect=True)

FINISHED = Status.FINISHED


# The end


@pytest.mark.parametrize("seeding", [1, 2])
def test_a_seeding_worker_keeps_the_run_open(worker: HandWorker, other: HandWorker, seeding: int) -> None:
    """At seeding level 1, its start() still runs. At level 2, it has raised, so requests are missing."""
    worker.exchange(seeding=seeding)
    assert other.exchange().status is Status.OK
    assert worker.exchange(seeding=seeding).status is Status.OK
    assert worker.exchange(seeding=0).status is FINISHED


def test_finishing_keeps_every_key(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """The end of a run only sets a mark, because a late request must still be checked against `seen`."""
    other.exchange(put(1, admission=Admission.SEEN))
    worker.take(1)
    worker.exchange(ack(1))
    assert live.key_names() == {"meta", "members", "beats", "seen", "worker:worker", "worker:other"}


def test_a_late_copy_of_an_exchange_with_a_finished_run_is_not_applied(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Redis has stored the exchange's number. So it also refuses the copy after a put has opened the run."""
    worker.exchange()
    other.exchange()
    assert worker.exchange(want=4).status is FINISHED
    late = worker.last
    assert worker.send(late).status is FINISHED
    other.exchange(put(1))
    assert worker.send(late).leases == ()
    assert worker.exchange(put(2)).applied
    assert sorted(worker.take(2)) == [1, 2]


def test_a_finished_run_to_which_a_late_worker_returned_is_not_resumed(live: LiveFrontier) -> None:
    """A worker that was frozen in start() returns after the end. Redis already knows all its requests."""
    starts = [put(n, start=True, admission=Admission.SEED) for n in (1, 2)]
    frozen, other = HandWorker(live, "frozen"), HandWorker(live, "other")
    frozen.exchange(*starts, seeding=1)
    other.exchange(*starts)
    other.fence("frozen")
    other.drain("frozen")
    other.take(2)
    assert other.exchange(ack(1), ack(2)).status is FINISHED
    other.leave()
    assert frozen.rejoin("back", parentless=Parentless.LOGGED).status is Status.OK
    receipt = frozen.exchange(*starts, seeding=1)
    assert (receipt.status, receipt.dropped) == (FINISHED, (0, 1))
    new = HandWorker(live, "new")
    assert (new.joined.resumed, new.run) == (False, 1)
    assert new.exchange(*starts).dropped == ()
    assert frozen.exchange().status is FINISHED


def test_a_new_put_opens_the_run_again(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """If `spider_idle` or a timer adds a request to a finished run, the run continues for all workers."""
    other.exchange()
    worker.exchange()
    receipt = worker.exchange(put(1), want=1)
    assert (receipt.status, receipt.applied) == (Status.OK, True)
    assert other.exchange().status is Status.OK
    assert live.state()["run"] == 0
    assert worker.exchange(ack(1)).status is FINISHED


def test_a_worker_that_is_out_of_step_does_not_open_the_run(live: LiveFrontier, worker: HandWorker) -> None:
    """Redis answers an unknown, fenced or out-of-sequence worker with RESYNC, and the run stays finished."""
    fenced = HandWorker(live, "fenced")
    worker.exchange()
    worker.fence("fenced")
    worker.exchange()
    assert live.state()["phase"] == "finished"
    before = live.dump()
    for wrong in ({"worker_id": "nobody"}, {"seq": 5}, {"seq": 1}, {"held": 1}):
        assert worker.exchange(put(1), **wrong) == Receipt(Status.RESYNC)
    assert fenced.exchange(put(1)) == Receipt(Status.RESYNC)
    for wrong in ({"worker_id": "nobody"}, {"seq": 5}, {"seq": 1}):
        assert worker.exchange(**wrong) == Receipt(Status.RESYNC)
    assert live.dump() == before


def test_a_lease_that_a_rollback_took_away_does_not_open_a_finished_run(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Redis was rolled back and forgot the exchange that leased the entry. Another worker leased the entry.

    So a late copy of the forgotten exchange finds no entry to lease.
    """
    other.exchange(put(1))
    before = live.dump()
    worker.exchange(want=1)
    live.roll_back(before)
    assert other.exchange(want=1).leases
    worker.send(worker.last)
    assert other.exchange(ack(1)).status is FINISHED
    receipt = worker.exchange()
    assert worker.held
    assert (receipt.status, receipt.applied, receipt.damage) == (FINISHED, False, "")


# The tombstone


def finished_by(live: LiveFrontier, crawl: Identity = IDENTITY) -> HandWorker:
    """Return the worker that ended a run with a seen entry, an entry of start() and a dead letter."""
    last = HandWorker(live, "last", crawl)
    last.exchange(put(1, admission=Admission.SEEN), put(2, admission=Admission.SEED), put(3), want=3)
    assert last.exchange(ack(1), ack(2), bury(3)).status is FINISHED
    return last


def test_the_last_to_leave_a_finished_run_unlinks_it(live: LiveFrontier) -> None:
    """Only the tombstone, the key `meta`, is left."""
    last = finished_by(live)
    live.redis.delete(live.key("dead"))
    assert last.leave() == (0, True)
    assert live.key_names() == {"meta"}
    assert live.state()["phase"] == "finished"


def test_a_finished_run_is_kept_while_other_workers_are_present(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """The first worker to leave deletes no key, because the other workers may open the run again."""
    other.exchange(put(1, admission=Admission.SEEN))
    worker.take(1)
    worker.exchange(ack(1))
    assert worker.leave() == (0, False)
    assert live.state()["tokens"][Admission.SEEN] == {entry_id(1)}
    assert other.exchange(put(2, admission=Admission.SEEN, token=entry_id(1))).dropped == (0,)


# The next run


def test_a_run_without_a_name_takes_the_first_name_that_a_worker_brings(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """Later, a worker with this name finds the run finished. Names that come later have no effect."""
    named = HandWorker(live, "named", replace(IDENTITY, run_name="job"))
    other = HandWorker(live, "other", replace(IDENTITY, run_name="another"))
    for each in (worker, named, other):
        each.exchange()
    late = HandWorker(live, "late", replace(IDENTITY, run_name="job"))
    assert (late.joined.status, late.run) == (FINISHED, 0)
    assert HandWorker(live, "next", replace(IDENTITY, run_name="another")).run == 1


def test_a_named_run_is_not_run_twice(live: LiveFrontier) -> None:
    """A worker with the run's name that is restarted after the end finds the run finished."""
    named = replace(IDENTITY, run_name="job-1")
    finished_by(live, named).leave()
    before = live.dump()
    joined = HandWorker(live, "again", named).joined
    assert (joined.status, joined.run) == (FINISHED, 0)
    assert live.dump() == before


def test_another_run_name_begins_a_new_run(live: LiveFrontier) -> None:
    """A join compares the worker's run name only with the last run's name, and then stores the worker's."""
    finished_by(live, replace(IDENTITY, run_name="job-1")).leave()
    again = HandWorker(live, "again", replace(IDENTITY, run_name="job-2"))
    assert (again.joined.status, again.run) == (Status.OK, 1)
    again.exchange()
    assert HandWorker(live, "late", replace(IDENTITY, run_name="job-2")).joined.status is FINISHED
    assert HandWorker(live, "next", replace(IDENTITY, run_name="job-1")).run == 2


def test_the_name_of_a_run_and_the_time_of_the_last_end_are_stored(live: LiveFrontier) -> None:
    """A worker with another run name receives the run's name. The next run keeps the time of the last end."""
    first = HandWorker(live, "first", replace(IDENTITY, run_name="night-6"))
    second = HandWorker(live, "second", replace(IDENTITY, run_name="night-7"))
    assert second.joined.run_name == "night-6"
    seen = peek(live.redis, live.crawl)
    assert (seen.run_name, seen.finished_at) == ("night-6", 0.0)
    for worker in (first, second):
        worker.exchange()
        worker.leave()
    ended = peek(live.redis, live.crawl)
    assert ended.finished_at >= ended.began_at == seen.began_at > live.redis.time()[0] - 600
    assert HandWorker(live, "next", replace(IDENTITY, run_name="night-7")).joined.run_name == "night-7"
    seen = peek(live.redis, live.crawl)
    assert (seen.run_name, seen.finished_at) == ("night-7", ended.finished_at)
    assert seen.began_at >= ended.finished_at


# A worker restarts just after the end

ARGS = replace(IDENTITY, restart_window_s=60.0, starts="{}")
OTHER_ARGS = replace(ARGS, spider_args='{"category": "b"}', starts='{"category": "b"}')


def shared_run(live: LiveFrontier, *others: Identity, host: str = "") -> None:
    """Let two workers of ARGS and one worker of each of *others* share a run, finish it and leave.

    Args:
        host: the host of all workers; if empty, each worker has its own host.
    """
    crawls = (ARGS, ARGS, *others)
    workers = [HandWorker(live, f"worker-{n}", crawl, host) for n, crawl in enumerate(crawls)]
    for worker in workers:
        worker.exchange(seeding=1)
    for worker in (*workers, workers[0]):
        receipt = worker.exchange()
    assert receipt.status is FINISHED
    for worker in workers:
        worker.leave()


@pytest.mark.parametrize("crawl", [ARGS, OTHER_ARGS])
def test_a_worker_that_is_started_again_finds_the_run_finished(live: LiveFrontier, crawl: Identity) -> None:
    """A worker with a former worker's arguments and no run name joins soon after the end. Nothing changes."""
    shared_run(live, OTHER_ARGS)
    before = live.dump()
    joined = HandWorker(live, "again", crawl).joined
    assert (joined.status, joined.run) == (FINISHED, 0)
    assert joined.ended_s is not None
    assert 0 <= joined.ended_s < 60
    assert live.dump() == before


@pytest.mark.parametrize(
    ("crawl", "host"),
    [
        (IDENTITY, ""), (OTHER_ARGS, ""), (replace(ARGS, spider="another"), ""),
        (replace(ARGS, run_name="job"), ""), (ARGS, "laptop"),
    ],
)  # fmt: skip
def test_a_worker_that_is_not_a_restart_begins_the_next_run(
    live: LiveFrontier, crawl: Identity, host: str
) -> None:
    """The worker has other arguments, a run name or no restart window, or all former workers had one host."""
    shared_run(live, host=host)
    joined = HandWorker(live, "again", crawl, host).joined
    assert (joined.status, joined.run, joined.ended_s) == (Status.OK, 1, None)


def test_after_the_window_the_next_run_begins(live: LiveFrontier) -> None:
    """A worker that joins after its restart window does not count as restarted, even with equal arguments."""
    shared_run(live)
    live.redis.hincrby(live.key("meta"), "ended", -60_001)
    assert HandWorker(live, "again", ARGS).run == 1


@pytest.mark.parametrize("with_", ["itself", "a program", "one that is dead", "one that died before it came"])
def test_a_run_of_one_worker_is_not_shared(live: LiveFrontier, with_: str) -> None:
    """The only worker does not share the run with its own former id, or with a program.

    Nor does it share the run with a worker that died before the only worker joined.
    """
    if with_ == "a program":
        HandWorker(live, "program", IDENTITY).exchange(seeding=Seeding.LISTENING)
    elif with_ == "one that is dead":
        HandWorker(live, "dead", ARGS).fence("dead", gone=True)
    elif with_ == "one that died before it came":
        live.call("beats", "dead", HandWorker(live, "dead", ARGS).epoch)
    alone = HandWorker(live, "alone", ARGS)
    if with_ == "one that died before it came":
        alone.fence("dead", gone=True)
    if with_ == "itself":
        alone.rejoin("alone again")
    alone.drain("dead")
    live.call("leave", "program", alone.epoch, alone.run, False)
    alone.exchange(put(1), want=1)
    assert alone.exchange(ack(1)).status is FINISHED
    alone.leave()
    assert HandWorker(live, "again", ARGS).run == 1


@pytest.mark.parametrize("third", [False, True])
def test_a_run_in_which_two_workers_were_alive_is_shared(live: LiveFrontier, third: bool) -> None:
    """The first worker sent a heartbeat after the second joined, or a third worker was present."""
    first = HandWorker(live, "first", ARGS)
    second = HandWorker(live, "second", ARGS)
    if third:
        HandWorker(live, "third", ARGS).exchange()
    else:
        live.call("beats", "first", first.epoch)
    second.fence("first", gone=True)
    second.drain("first")
    assert second.exchange().status is FINISHED
    second.leave()
    assert HandWorker(live, "again", ARGS).joined.status is FINISHED


def test_each_run_is_shared_or_not_regardless_of_the_last_one(live: LiveFrontier) -> None:
    """Workers shared the first run, but the second had only one. So the next worker begins a new run."""
    shared_run(live)
    alone = HandWorker(live, "alone", IDENTITY)
    alone.exchange()
    alone.leave()
    assert HandWorker(live, "again", ARGS).run == 2


# Workers that return after the end


def test_a_worker_that_was_declared_dead_finds_the_seen_requests(live: LiveFrontier) -> None:
    """The last worker to leave keeps the tokens. So a late worker opens the run only by a new request."""
    sleeper, other = HandWorker(live, "sleeper"), HandWorker(live, "other")
    other.exchange(put(1, admission=Admission.SEED), put(2, admission=Admission.SEEN))
    assert sorted(other.take(2)) == [1, 2]
    other.fence("sleeper")
    other.drain("sleeper")
    assert other.exchange(ack(1), ack(2)).status is FINISHED
    other.leave()
    assert live.key_names() == {"meta", "seen", "seeds", "absent"}
    assert sleeper.rejoin("awake", parentless=Parentless.WAITING).status is Status.OK
    known = (put(1, admission=Admission.SEED), put(2, admission=Admission.SEEN))
    receipt = sleeper.exchange(*known, put(3, admission=Admission.SEEN), want=9)
    assert (receipt.dropped, numbers(receipt)) == ((0, 1), [3])
    assert sleeper.exchange(ack(3)).status is FINISHED
    sleeper.leave()
    assert live.key_names() == {"meta"}


def test_no_late_worker_opens_a_cleared_run(live: LiveFrontier) -> None:
    """Without `seen`, late puts would start the crawl again. So Redis answers a late worker with FINISHED."""
    last = finished_by(live)
    live.redis.delete(live.key("dead"))
    last.leave()
    before = live.dump()
    for parentless in (Parentless.WAITING, Parentless.LOGGED):
        assert last.rejoin("late", parentless=parentless).status is FINISHED
    assert live.dump() == before


def test_crews_that_begin_together_use_one_run_name(live: LiveFrontier) -> None:
    """A restarted worker of the second crew finds the run finished. A later crew begins the next run."""
    config = Config(live.crawl)
    for number in range(3):
        first, second = run_name_for(live.redis, config), run_name_for(live.redis, config)
        named = replace(IDENTITY, run_name=second)
        worker = HandWorker(live, f"first-{number}", replace(IDENTITY, run_name=first))
        assert worker.run == number
        assert worker.exchange().status is Status.FINISHED
        late = live.call("join", f"second-{number}", {"host": "h"}, "epoch", named)
        assert (late.status, late.run) == (Status.FINISHED, number)
    HandWorker(live, "unnamed")
    assert run_name_for(live.redis, config) == run_name_for(live.redis, config)
