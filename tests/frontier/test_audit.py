"""Keys are deleted during a crawl. An audit rebuilds keys that follow from others, and records losses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from scrapy_dq.frontier import forget
from scrapy_dq.frontier.answers import Audited, Receipt
from scrapy_dq.frontier.model import Admission, Order, Status
from scrapy_dq.frontier.moves import Move
from scrapy_dq.frontier.worker.audit import audit, findings_of
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    entry_id,
    limited,
    numbers,
    put,
    puts,
    release,
)

COUNT = 6


def mend(live: LiveFrontier, worker: HandWorker) -> Audited:
    """Run a complete audit, as a worker does."""
    return live.run(audit(live.frontier, worker.epoch, worker.run))


def filled(live: LiveFrontier, crawl: object = None) -> HandWorker:
    """Return a worker that put entries of two ranks into three partitions, released one and holds one."""
    worker = HandWorker(live, "worker", crawl) if crawl else HandWorker(live, "worker")  # type: ignore[arg-type]
    for n in range(COUNT):
        worker.exchange(put(n, n % 2, partition=b"slot %d" % (n % 3), admission=Admission.SEEN))
    worker.take(2)
    worker.exchange(release(int(sorted(worker.held)[0])))
    assert len(worker.held) == 1
    return worker


def crawl_on(live: LiveFrontier, worker: HandWorker, rounds: int = 20) -> tuple[set[int], Receipt, Audited]:
    """Crawl until the run is finished. Return the done entries, the last receipt and the audits' findings."""
    done: set[int] = set()
    found = Audited()
    for _ in range(rounds):
        live.advance(100)
        held = {int(i) for i in worker.held}
        receipt = worker.exchange(*(ack(n) for n in sorted(held)), want=9)
        if receipt.status is Status.RESYNC:
            live_held = worker.rejoin(f"{worker.worker_id}+").owned
            assert {int(i) for i in live_held} <= held
            continue
        done |= held
        if receipt.damage:
            found += mend(live, worker)
        if receipt.status is Status.FINISHED:
            return done, receipt, found
    raise AssertionError(f"after {rounds} rounds the run has not finished: {receipt}")


def _score_changed(live: LiveFrontier) -> int:
    live.redis.zadd(live.key("more_bands"), {b"b\0" + struct.pack(">Q", 2**52): 1})
    return 0


def _all_deleted(live: LiveFrontier) -> int:
    live.redis.delete(live.key("bands"), live.key("backlog:-8:b"))
    return 2


def _one_deleted(live: LiveFrontier) -> int:
    live.redis.hdel(live.key("bands"), "b")
    live.redis.delete(live.key("backlog:-8:b"))
    return 2


@pytest.mark.parametrize("spoil", [_score_changed, _all_deleted, _one_deleted])
def test_the_next_list_of_a_partition_is_served_when_its_best_list_is_gone(
    open_frontier: Callable[..., LiveFrontier], spoil: Callable[[LiveFrontier], int]
) -> None:
    """Otherwise the next list would stay in the index `more_bands`, and no worker would lease from it."""
    live = open_frontier(Order.PRIORITY_LIFO)
    worker = HandWorker(live, "worker")
    for n in range(18):
        worker.exchange(put(n, n // 3 % 3, partition=(b"a", b"b", b"c")[n % 3]))
    assert live.redis.llen(live.key("backlog:-8:b")) == 2
    gone = spoil(live)
    done, receipt, _ = crawl_on(live, worker)
    assert receipt.status is Status.FINISHED
    assert (len(done), receipt.census.gone) == (18 - gone, gone)


@pytest.mark.parametrize("crawl", [None, limited(concurrency=2)])
@pytest.mark.parametrize(
    "key", ["bands", "more_bands", "rotation", "members", "beats", "seeds", "busy", "saturated"]
)
def test_deleted_derived_keys_are_rebuilt(live: LiveFrontier, key: str, crawl: object) -> None:
    """If one of these keys is deleted during the crawl, no entry is lost and the run ends."""
    worker = filled(live, crawl)
    live.redis.delete(live.key(key))
    done, receipt, found = crawl_on(live, worker)
    assert done == set(range(COUNT))
    assert receipt.census.gone == 0
    assert (found.gone, found.seen_gone) == (0, False)
    live.call("beats", worker.worker_id, worker.epoch)
    live.state()


@pytest.mark.parametrize(
    ("key", "missing"),
    [("returned", 1), ("backlog:0:slot 1", None), ("in-flight:worker", 1), ("delayed", 2)],
)
def test_lost_entries_are_counted(live: LiveFrontier, key: str, missing: int | None) -> None:
    """The other entries are crawled, and the census counts the loss. The run ends only after an audit."""
    worker = filled(live)
    worker.exchange(put(90, due_in=1000), put(91, due_in=2000))
    if missing is None:
        keys_ = [k for k in live.key_names() if k.startswith("backlog:")]
        key = sorted(keys_)[0]
        missing = live.redis.llen(live.key(key))
        assert missing
    assert live.redis.delete(live.key(key))
    live.advance(3000)

    done, receipt, found = crawl_on(live, worker)

    assert len(done) == COUNT + 2 - missing
    assert found.gone == missing == receipt.census.gone
    assert f"requests that are gone: {missing}" in findings_of(found)
    assert live.call("census").gone == missing


def test_a_damaged_run_of_a_name_does_not_count_as_done(live: LiveFrontier) -> None:
    """Entries of the run were lost. So a worker with the same run name begins the next run."""
    named = replace(IDENTITY, run_name="monday")
    worker = HandWorker(live, "worker", named)
    worker.exchange(*puts(b"a", 3))
    for name in live.key_names():
        if name.startswith("backlog:"):
            live.redis.delete(live.key(name))
    assert crawl_on(live, worker)[1].census.gone == 3
    worker.leave()
    joined = HandWorker(live, "again", named).joined
    assert (joined.status, joined.run, joined.census.gone) == (Status.OK, 1, 0)


def test_counted_entries_without_keys_keep_the_run_open(live: LiveFrontier, worker: HandWorker) -> None:
    """The entries are gone, but are still counted as waiting. This is damage, and the run does not end."""
    worker.exchange(*puts(b"a", 3))
    for name in live.key_names() - {"meta", "members", "beats", "worker:worker"}:
        live.redis.delete(live.key(name))
    for _ in range(3):
        receipt = worker.exchange(want=9)
        assert (receipt.status, bool(receipt.damage)) == (Status.OK, True)
    assert mend(live, worker).gone == 3
    assert worker.exchange().status is Status.FINISHED


@pytest.mark.parametrize(
    ("moves_before", "held_up"),
    [
        ([], None),
        ([[]], None),
        ([[put(2, admission=Admission.SEEN)]], None),
        ([[put(2, admission=Admission.SEEN)], []], None),
        ([], lambda live: live.limit(b"a", concurrency=2)),
    ],
)
def test_the_loss_of_seen_is_noted(
    live: LiveFrontier,
    worker: HandWorker,
    moves_before: list[list[Move]],
    held_up: Callable[[LiveFrontier], object] | None,
) -> None:
    """Without `seen`, pages may be crawled again, but none is missing. The run ends only after an audit."""
    worker.exchange(put(1, admission=Admission.SEEN), want=1)
    live.redis.delete(live.key("seen"))
    for moves in moves_before:
        assert worker.exchange(*moves).damage == "seen"
    if held_up:
        held_up(live)
    receipt = worker.exchange(*(ack(int(i)) for i in sorted(worker.held)))
    assert (receipt.status, receipt.damage) == (Status.OK, "seen")
    assert mend(live, worker) == Audited(seen_gone=True)
    worker.exchange(*(ack(n) for n in worker.take(9)))
    receipt = worker.exchange()
    assert (receipt.status, receipt.damage, receipt.census.gone) == (Status.FINISHED, "", 1)
    assert findings_of(Audited(seen_gone=True)) == "the seen set is gone: pages are crawled again"


@pytest.mark.parametrize("seeding", [1, 2, 3])
def test_a_worker_that_listens_does_not_wait_for_lost_leases(
    live: LiveFrontier, worker: HandWorker, other: HandWorker, seeding: int
) -> None:
    """Redis still counts the lost leases. The audit records them as gone, even while a worker listens."""
    worker.exchange(put(1), want=1, seeding=seeding)
    live.redis.delete(live.key("in-flight:worker"))
    assert worker.exchange(seeding=seeding).status is Status.RESYNC
    worker.rejoin("worker-2")
    assert worker.exchange(seeding=seeding).damage == other.exchange().damage == "entries"
    assert mend(live, worker).gone == 1
    receipt = worker.exchange(seeding=seeding)
    assert (receipt.status, receipt.damage, receipt.census.in_flight) == (Status.OK, "", 0)
    worker.exchange()
    assert other.exchange().status is Status.FINISHED


@pytest.mark.parametrize("limits", [{"concurrency": 1}, {"delay_s": 0.1}], ids=str)
def test_lost_leases_delay_no_partition(live: LiveFrontier, limits: dict[str, float]) -> None:
    """Lost leases count against a limit and are never settled. But the waiting entries are still served."""
    worker, other = (HandWorker(live, name, limited(**limits)) for name in ("worker", "other"))
    worker.exchange(*(put(n, partition=b"slot") for n in range(3)), want=1)
    live.redis.delete(live.key("in-flight:worker"))
    assert worker.exchange().status is Status.RESYNC
    worker.rejoin("worker-2")
    worker.exchange()
    live.advance(200)
    assert (other.exchange(want=1).damage, mend(live, other).gone) == ("entries", 1)
    done, receipt, _ = crawl_on(live, other)
    assert (len(done), receipt.census.gone) == (2, 1)


@pytest.mark.parametrize("due_in", [0.0, 1000.0])
@pytest.mark.parametrize("together", [True, False])
def test_counts_stay_exact_when_a_forgotten_put_comes_twice(
    live: LiveFrontier, worker: HandWorker, due_in: float, together: bool
) -> None:
    """`scrapy dq clear --seen` forgets a waiting entry, and a worker's replay log puts the entry again."""
    twice = put(1, admission=Admission.SEEN, due_in=due_in)
    worker.exchange(twice)
    if not together:
        worker.take(1)
    assert forget(live.redis, live.crawl, [(entry_id(1), b"")]) == 1
    worker.exchange(twice)
    live.advance(2000)
    worker.take(2)
    receipt = worker.exchange(*(ack(int(i)) for i in sorted(worker.held)))
    worker.exchange(*(ack(n) for n in worker.take(2)))
    receipt = worker.exchange()
    assert (receipt.status, receipt.damage) == (Status.FINISHED, "")


def test_a_worker_whose_record_is_gone_is_found_and_drained(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """The audit makes the worker a member again, and another worker drains its leases."""
    other.exchange(*puts(b"a", 4))
    assert worker.take(2) == [0, 1]
    live.redis.delete(live.key("worker:worker"), live.key("members"))
    found = mend(live, other)
    assert (found.members, found.gone) == (2, 0)
    assert live.members() == {"worker", "other"}
    assert other.drain("worker") == (2, 0, 0)
    done: set[int] = set()
    while len(done) < 4:
        taken = other.take(4)
        other.exchange(*(ack(n) for n in taken))
        done |= set(taken)
    # Redis does not know whether the start() of `worker` was complete. So this start() counts as incomplete
    # until a worker that joins later completes its own start().
    receipt = other.exchange()
    assert (receipt.status, receipt.census.incomplete) == (Status.OK, 1)
    later = HandWorker(live, "later", replace(IDENTITY, starts="args"))
    assert later.exchange().status is Status.FINISHED


def test_many_lists_are_found_in_steps(live: LiveFrontier, worker: HandWorker) -> None:
    """There are more lists than one call of the audit examines. All of them are served afterwards."""
    count = 450
    worker.exchange(*(put(n, partition=b"slot %d" % n) for n in range(count)))
    live.redis.delete(live.key("bands"), live.key("rotation"))
    before = live.dump()
    look = audit(live.frontier, worker.epoch, worker.run, repair=False)
    assert live.run(look) == Audited(lists=count, partitions=count)
    assert live.dump() == before
    assert worker.exchange(want=9).damage == "rotation"
    assert mend(live, worker) == Audited(lists=count, partitions=count)
    live.state()
    taken = worker.take(count)
    assert sorted(taken) == list(range(count))


def test_an_audit_of_a_sound_crawl_changes_nothing(live: LiveFrontier) -> None:
    """The stored state is the same before and after the audit."""
    worker = filled(live)
    before = live.state()
    assert mend(live, worker) == Audited()
    assert live.state() == before
    assert numbers(worker.exchange(want=1))


def test_a_run_whose_members_are_lost_does_not_finish_while_a_worker_seeds(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Without the members, Redis cannot know whether a start() still runs. So the run does not finish."""
    other.exchange(seeding=1)
    live.redis.delete(live.key("members"))
    receipt = worker.exchange()
    assert (receipt.status, receipt.damage) == (Status.OK, "members")
    assert mend(live, worker).members == 2
    assert worker.exchange().census.seeding == 1
    other.exchange()
    assert worker.exchange().status is Status.FINISHED


@pytest.mark.parametrize("names", [["bands"], ["backlog:0:a"]])
def test_a_script_that_was_stopped_halfway_hides_no_loss(
    live: LiveFrontier, worker: HandWorker, names: list[str]
) -> None:
    """A script that stops halfway leaves the mark `torn`. Even then, the audit detects the deleted keys."""
    worker.exchange(*puts(b"a", 4))
    live.redis.delete(*(live.key(name) for name in names))
    live.redis.hset(live.key("meta"), "torn", 0)
    done, receipt, found = crawl_on(live, worker)
    gone = 0 if names == ["bands"] else 4
    assert (len(done), found.gone, receipt.census.gone) == (4 - gone, gone, gone)


def test_the_deleted_record_of_a_worker_is_not_taken_for_a_roll_back(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """The worker is still a member, so Redis was not rolled back.

    Redis answers the rejoin with a very high exchange number, as if it had applied all exchanges.
    """
    worker.exchange(put(1))
    live.redis.delete(live.key("worker:worker"))
    last_seq = worker.rejoin("again").last_seq
    assert last_seq is not None
    assert last_seq > 10**9
