"""An exchange: applied once, in sequence, by a worker in good standing, or answered and changing nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_dq.frontier.model import Admission, Census, FrontierUnavailable, Lease, Receipt, Status
from support.live_frontier import (
    HandWorker,
    LiveFrontier,
    ack,
    bury,
    decline,
    entry_id,
    fail,
    numbers,
    partition_of,
    put,
    release,
)

pytestmark = pytest.mark.parametrize("partitioning", ["none", "own"], indirect=True)

RESYNC = Receipt(Status.RESYNC)
LOST = Receipt(Status.LOST)


# What an exchange does


def test_puts_are_applied_before_what_settles(live: LiveFrontier) -> None:
    """At `maxmemory` the exchange is refused as a whole; an ack in front would write, and let puts pass."""
    worker = HandWorker(live, "worker")
    worker.exchange(put(1), want=1)
    before = live.dump()
    live.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(FrontierUnavailable, match="memory is full"):
            worker.exchange(ack(1), put(2), want=1)
    finally:
        live.redis.config_set("maxmemory", 0)
    assert live.dump() == before
    assert numbers(worker.exchange(ack(1), put(2), want=1)) == [2]


FULL = {
    "release": lambda worker: worker.exchange(release(1)),
    "fail": lambda worker: worker.exchange(fail(1)),
    "bury": lambda worker: worker.exchange(bury(1)),
    "decline": lambda worker: worker.exchange(decline(1)),
    "lease": lambda worker: worker.exchange(want=1),
    "fall due": lambda worker: worker.exchange(),
    "leave": HandWorker.leave,
    "drain": lambda worker: HandWorker.drain(worker, "dead"),
}


@pytest.mark.parametrize("what", FULL)
def test_what_is_stored_is_moved_in_a_full_redis(live: LiveFrontier, what: str) -> None:
    """A script that has written may exceed `maxmemory`, which is checked before its first write only."""
    dead, worker = HandWorker(live, "dead"), HandWorker(live, "worker")
    worker.exchange(put(1), put(2), put(3), put(4, due_in=50), want=1)
    dead.take(1)
    worker.fence("dead")
    live.advance(60 * (what == "fall due"))
    live.redis.config_set("maxmemory", 1)
    try:
        FULL[what](worker)
    finally:
        live.redis.config_set("maxmemory", 0)
    assert not live.redis.hexists(live.key("meta"), "torn")
    live.state()


def test_moves_are_applied_in_order_and_leases_taken_after_them(worker: HandWorker) -> None:
    """What an exchange puts it may lease at once; a lease carries attempts, payload and partition."""
    receipt = worker.exchange(put(1, payload=b"\x00one\r\n"), put(2, payload=b""), want=5)
    assert receipt.leases == (
        Lease(entry_id(1), 0, b"\x00one\r\n", partition_of(1)),
        Lease(entry_id(2), 0, b"", partition_of(2)),
    )
    assert receipt.status is Status.OK
    assert receipt.applied


def test_the_census_counts_everything_after_the_exchange(worker: HandWorker, other: HandWorker) -> None:
    """A receipt says how many wait, are in flight, done, dead and seen, and how many workers there are."""
    worker.exchange(*(put(n, admission=Admission.SEEN) for n in range(1, 9)), want=4, seeding=1)
    receipt = worker.exchange(ack(1), ack(2), bury(3), put(9), want=0, seeding=1)
    assert receipt.census == Census(waiting=5, in_flight=1, done=2, dead=1, seen=8, workers=2)


def test_the_census_counts_who_is_seeding_while_nothing_waits(worker: HandWorker, other: HandWorker) -> None:
    """Only an idle worker needs to know whom it waits for; a worker whose start() failed is not counted."""
    assert worker.exchange(seeding=1).census.seeding == 2
    assert worker.exchange(seeding=2).census.seeding == 1
    assert worker.exchange(put(1), seeding=1).census.seeding == 0


@pytest.mark.parametrize("admission", Admission)
def test_a_put_is_dropped_if_its_token_was_seen(worker: HandWorker, admission: Admission) -> None:
    """Positions in the prefix tell which puts were known, within one exchange too."""
    assert worker.exchange(put(1, admission=admission, token=b"t")).dropped == ()
    moves = [put(2), put(3, admission=admission, token=b"t"), put(4, admission=admission, token=b"u")]
    receipt = worker.exchange(*moves, replace(moves[2], entry_id=entry_id(5)), want=10)
    assert receipt.dropped == (1, 3)
    assert numbers(receipt) == [1, 2, 4]


def test_each_admission_has_tokens_of_its_own(worker: HandWorker) -> None:
    """A seed is not seen: a link back to the start page is crawled, and the other way round."""
    receipt = worker.exchange(*(put(a, admission=a, token=b"t") for a in Admission), want=10)
    assert receipt.dropped == ()
    assert len(receipt.leases) == 3


def test_settled_entries_are_where_they_belong(live: LiveFrontier, worker: HandWorker) -> None:
    """Acked: gone. Released: in the backlog, uncharged. Buried: a dead letter, out of the way."""
    worker.exchange(put(1), put(2), put(3), want=3)
    worker.exchange(ack(1), release(2), bury(3), seeding=1)
    state = live.state()
    assert state["entries"] == {entry_id(2): ("backlog", 0, False, b"payload")}
    assert state["dead"] == {entry_id(3): ("worker", 0, b"payload")}
    assert state["done"] == 1


def test_what_is_not_held_cannot_be_settled(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Acks, releases and burials of waiting, foreign, settled and unknown entries are skipped."""
    worker.exchange(*(put(n) for n in range(1, 5)), want=2)
    other.exchange(want=1)
    worker.exchange(ack(1))
    before = live.state()["entries"]
    for n in (1, 3, 4, 99):
        for move in (ack(n), release(n), bury(n)):
            assert worker.exchange(move).applied
    assert live.state()["entries"] == before
    assert live.state()["dead"] == {}
    assert live.state()["done"] == 1


def test_settling_twice_counts_once(worker: HandWorker) -> None:
    """The second ack of a lease, in the same exchange or later, does nothing."""
    worker.exchange(put(1), put(2), want=2)
    assert worker.exchange(ack(1), ack(1), release(1)).census.done == 1
    assert worker.exchange(ack(1), bury(1)).census == Census(in_flight=1, done=1, workers=1)


def test_a_released_lease_may_come_back_at_once(worker: HandWorker) -> None:
    """Moves come before leases: a release frees the entry for the same exchange's want."""
    worker.exchange(put(1), put(2, partition=partition_of(1)), want=1)
    assert numbers(worker.exchange(release(1), want=1)) == [1]


def test_want_limits_the_leases(worker: HandWorker) -> None:
    """An exchange never brings more leases than wanted; want 0 brings none."""
    assert numbers(worker.exchange(*(put(n) for n in range(1, 50)))) == []
    assert numbers(worker.exchange(want=1)) == [1]
    assert numbers(worker.exchange(want=40)) == list(range(2, 42))


def test_nobody_takes_more_than_its_share(live: LiveFrontier) -> None:
    """Of a small backlog a worker gets ceil(waiting / members), however much it wants."""
    workers = [HandWorker(live, f"worker-{i}") for i in range(4)]
    workers[0].exchange(*(put(n) for n in range(10)))
    shares = [len(worker.exchange(want=10).leases) for worker in workers]
    assert shares == [3, 2, 2, 1]


# Once, and in sequence


def test_a_repeat_gets_the_stored_reply(live: LiveFrontier, worker: HandWorker) -> None:
    """After a lost reply the same bytes with the same number are not applied again, and answered the same."""
    worker.exchange(put(1, admission=Admission.SEEN, token=b"t"), want=0)
    first = worker.exchange(put(2), put(3, admission=Admission.SEEN, token=b"t"), put(4), want=2)
    before = live.dump()
    for _ in range(3):
        assert worker.send(worker.last) == first
    assert live.dump() == before
    assert first.dropped == (1,)


def test_a_repeat_brings_only_what_is_in_flight_still(worker: HandWorker, other: HandWorker) -> None:
    """What was reclaimed between the exchange and its repeat is not given a second time."""
    other.exchange(*(put(n) for n in range(1, 5)))
    worker.exchange(want=2)
    other.fence("worker")
    other.drain("worker", limit=1)
    repeated = worker.send(worker.last)
    assert repeated.applied
    assert len(repeated.leases) == 1


def test_a_repeat_of_an_older_exchange_is_refused(live: LiveFrontier, worker: HandWorker) -> None:
    """A late copy of an exchange that was answered and followed by another changes nothing."""
    worker.exchange(put(1))
    late = worker.last
    worker.exchange(want=1)
    before = live.dump()
    assert worker.send(late) == RESYNC
    assert live.dump() == before


@pytest.mark.parametrize("seq", [0, 2, 5, 100])
def test_only_the_next_exchange_is_applied(live: LiveFrontier, worker: HandWorker, seq: int) -> None:
    """A number that is neither the last (3) nor the next (4): Redis or the worker is out of step."""
    for n in range(3):
        worker.exchange(put(n))
    before = live.dump()
    assert worker.exchange(put(10), want=1, seq=seq) == RESYNC
    assert live.dump() == before


@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_wrong_count_of_leases_is_refused(live: LiveFrontier, worker: HandWorker, held: int) -> None:
    """A late copy may fit the sequence after Redis stepped back; only the count of leases shows it."""
    worker.exchange(put(1), put(2), put(3), want=2)
    before = live.dump()
    assert worker.exchange(ack(1), want=1, held=held) == RESYNC
    assert live.dump() == before


def test_a_rolled_back_redis_is_noticed_before_anything_is_applied(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """After a roll-back the worker's next exchange is not the frontier's next: RESYNC, and nothing done."""
    worker.exchange(put(1))
    older = live.dump()
    worker.exchange(put(2))
    live.roll_back(older)
    assert worker.exchange(put(3), want=1) == RESYNC
    assert live.dump() == older


# In good standing


def test_an_unknown_worker_is_told_to_rejoin(live: LiveFrontier, worker: HandWorker) -> None:
    """A worker that is not a member, because it was drained or Redis was rolled back, changes nothing."""
    worker.exchange(put(1), put(2), want=1)
    before = live.dump()
    assert worker.exchange(put(3), want=1, worker_id="nobody", seq=1, held=0) == RESYNC
    assert live.dump() == before


def test_a_fenced_worker_is_told_to_rejoin(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """From the fence on, a worker wrongly presumed dead neither puts, settles nor leases."""
    worker.exchange(put(1), put(2), want=1)
    other.fence("worker")
    before = live.dump()
    assert worker.exchange(ack(1), put(3), want=1) == RESYNC
    assert live.dump() == before


def test_a_frontier_that_is_gone_is_lost(live: LiveFrontier, worker: HandWorker) -> None:
    """An absent frontier is never considered finished, and an exchange does not make one."""
    worker.exchange(put(1))
    live.roll_back({})
    assert worker.exchange(put(2)) == LOST
    assert worker.send(worker.last) == LOST
    assert live.dump() == {}


def test_another_frontier_of_the_same_name_is_lost(live: LiveFrontier, worker: HandWorker) -> None:
    """A crawl that was flushed and started again has another epoch: an old worker's moves are ignored."""
    live.roll_back({})
    HandWorker(live, "worker").exchange(put(1), put(2), want=1)
    before = live.dump()
    assert worker.exchange(put(3), seq=2, held=1) == LOST
    assert live.dump() == before


def test_a_zombie_of_an_older_run_changes_nothing(live: LiveFrontier, worker: HandWorker) -> None:
    """A worker that slept through the end of its run cannot put into the next one, nor open or end it."""
    worker.exchange()
    other = HandWorker(live, "other")
    assert other.run == worker.run + 1
    before = live.dump()
    assert worker.exchange(put(1), want=1) == Receipt(Status.FINISHED)
    assert live.dump() == before


def test_a_run_that_was_forgotten_is_out_of_step(live: LiveFrontier, worker: HandWorker) -> None:
    """A roll-back may pass the start of the run: the worker rejoins, it is not at its end."""
    before = live.dump()
    assert worker.exchange(put(1), run=1) == RESYNC
    assert live.dump() == before


def test_a_repeat_brings_all_that_a_large_exchange_has_brought(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """The repeat has the same limits as the exchange."""
    worker.exchange(*(put(n, payload=b"x" * 300_000) for n in range(14)))
    worker.exchange(*(put(n) for n in range(14, 1_014)))
    first = worker.exchange(want=1_000)
    assert 10 < len(first.leases) < 20
    assert worker.send(worker.last).leases == first.leases
    worker.exchange(*(ack(n) for n in numbers(first)))
    rest = worker.exchange(want=1_000)
    assert len(rest.leases) == 1_000
    assert worker.send(worker.last).leases == rest.leases
