"""An entry that one worker's code cannot serve goes to other workers, and is buried only if none can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_dq.frontier import peek, retry
from scrapy_dq.frontier.admin.drop import drop
from scrapy_dq.frontier.model import Admission, Status, Terms
from support.live_frontier import (
    IDENTITY,
    PROGRAM,
    HandWorker,
    LiveFrontier,
    ack,
    decline,
    limited,
    numbers,
    partition_of,
    put,
    release,
    sent,
    waits,
)

pytestmark = pytest.mark.parametrize("partitioning", ["none", "one"], indirect=True)


def declines(worker: HandWorker, *entries: int) -> None:
    """Let *worker* put entries, lease them and decline them."""
    worker.exchange(*(put(n) for n in entries))
    assert sorted(worker.take(len(entries))) == sorted(entries)
    worker.exchange(*(decline(n) for n in entries))


def test_a_declined_entry_goes_to_another_worker_and_never_back(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """The other worker gets the entry with the mark `was_declined`, and no attempt is charged."""
    declines(worker, 1)
    assert peek(live.redis, live.crawl).census.declined == 1
    assert numbers(worker.exchange(want=5)) == []
    receipt = other.exchange(want=5)
    assert [(lease.was_declined, lease.attempts) for lease in receipt.leases] == [(True, 0)]
    assert live.state()["declined"] == []


def test_an_entry_is_not_buried_while_a_present_worker_may_serve_it(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """The entry becomes a dead letter only after each worker has declined it. Then the run is finished."""
    declines(worker, 1)
    assert worker.exchange().status is Status.OK
    assert other.take(1) == [1]
    assert worker.exchange().status is Status.OK
    receipt = other.exchange(decline(1))
    assert (receipt.status, receipt.census.dead) == (Status.OK, 0)  # not offered to each worker again yet
    for each in (worker, other):
        receipt = each.exchange(want=5)
    assert (receipt.status, receipt.census.dead, receipt.census.unserved) == (Status.FINISHED, 1, 1)
    assert receipt.census.waiting == receipt.census.declined == 0


def test_a_returned_entry_is_not_offered_to_workers_that_declined_it(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """When another worker releases the entry or leaves, Redis still knows which workers had declined it."""
    declines(worker, 1, 2)
    other.take(2)
    other.exchange(release(1))
    third = HandWorker(live, "third")
    other.leave()
    assert numbers(worker.exchange(want=5)) == []
    assert sorted(third.take(5)) == [1, 2]


def test_a_worker_that_rejoins_is_still_known_to_have_declined(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """A rejoin changes the worker's id, but not its code."""
    declines(worker, 1)
    worker.rejoin("another id")
    assert numbers(worker.exchange(want=5)) == []
    assert numbers(other.exchange(want=5)) == [1]


def test_a_declined_entry_does_not_wait_for_the_end_of_the_backlog(
    worker: HandWorker, other: HandWorker
) -> None:
    """Each exchange offers one declined entry, and more only if no other entry is left."""
    declines(worker, 1, 2, 3)
    worker.exchange(*(put(n) for n in range(4, 8)))
    assert other.take(4) == [1, 4, 5, 6]
    assert other.take(3) == [2, 7, 3]


def test_delays_apply_to_declined_entries(live: LiveFrontier, partitioning: str) -> None:
    """Declined entries are leased one by one, each after the delay of the previous request to their site."""
    if partitioning == "none":
        pytest.skip("without partitions there are no limits")
    crawl, soon = limited(100.0), Terms(ahead_s=50.0)
    worker, other = HandWorker(live, "worker", crawl), HandWorker(live, "other", crawl)
    worker.exchange(put(1), put(2))
    for n in (1, 2):
        assert worker.take(1, soon) == [n]
        worker.exchange(decline(n))
        live.advance(100.0)
    assert numbers(other.exchange(want=2, terms=soon)) == [1]
    assert numbers(other.exchange(want=2, terms=soon)) == []
    other.exchange(terms=Terms(notes=(sent(1),)))
    assert numbers(other.exchange(want=2, terms=soon)) == []
    live.advance(60.0)
    (left,) = waits(other.exchange(want=2, terms=soon)).values()
    assert left == 40


def test_a_worker_is_offered_no_more_than_it_has_room_for(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """A worker gets no more declined entries than it has room for, so it need not release any of them."""
    declines(worker, 1, 2, 3, 4, 5, 6)
    terms = Terms(most=3, here={partition_of(1): (1, 2)})
    assert numbers(other.exchange(want=9, terms=terms)) == [1, 2]


def test_a_blocked_partition_offers_nothing(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """While a partition is blocked, its declined entries are offered to no worker."""
    declines(worker, 1)
    live.limit(partition_of(1), block_s=1000.0)
    assert numbers(other.exchange(want=5)) == []


def test_a_suspect_is_not_offered_to_a_worker_that_declined_it(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Each further death counts as an attempt. The worker that declined the entry never gets it again."""
    declines(worker, 1)
    assert other.take(1) == [1]
    worker.reclaim("other")
    third = HandWorker(live, "third")
    for attempts in (0, 1):
        assert numbers(worker.exchange(want=5)) == []
        (lease,) = third.exchange(want=5).leases
        assert (lease.suspect, lease.attempts) == (True, attempts)
        worker.reclaim(third.worker_id)
        third = HandWorker(live, f"third {attempts}")
    (lease,) = third.exchange(want=5).leases
    worker.fence(third.worker_id, gone=True)
    assert worker.drain(third.worker_id) == (0, 1, 0)


@pytest.mark.parametrize("seeding", [2, 3])
def test_entries_are_buried_although_a_worker_listens_or_its_start_failed(
    worker: HandWorker, seeding: int
) -> None:
    """The entry becomes a dead letter. The run stays open, and no entry waits."""
    declines(worker, 1)
    worker.exchange(want=5, seeding=seeding)
    receipt = worker.exchange(want=5, seeding=seeding)
    assert (receipt.status, receipt.census.waiting, receipt.census.dead) == (Status.OK, 0, 1)


def test_an_entry_is_buried_without_waiting_for_a_program_that_only_puts(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """A program has no code that could serve a request."""
    HandWorker(live, "program", PROGRAM).exchange()
    declines(worker, 1)
    worker.exchange(want=5)
    assert worker.exchange(want=5).census.unserved == 1


def test_a_retry_lets_every_worker_try_again(live: LiveFrontier, worker: HandWorker) -> None:
    """The run is open again, and ends when a worker serves the entry."""
    declines(worker, 1)
    worker.exchange(want=5)
    assert peek(live.redis, live.crawl).census.unserved == 1
    retry(live.redis, live.crawl, peek(live.redis, live.crawl), dead=lambda record: True)
    assert worker.take(1) == [1]
    receipt = worker.exchange(ack(1))
    assert (receipt.status, receipt.census.unserved) == (Status.FINISHED, 0)


@pytest.mark.parametrize("keeps", [True, False])
def test_pages_that_no_worker_could_serve_do_not_stay_in_seen(live: LiveFrontier, keeps: bool) -> None:
    """The next run begins without their fingerprints. If the run keeps `seen`, done pages stay seen."""
    identity = replace(IDENTITY, keep_seen=keeps)
    worker = HandWorker(live, "worker", identity)
    seen = {"admission": Admission.SEEN}
    worker.exchange(put(1, token=b"one", **seen), put(2, token=b"two", **seen))  # type: ignore[arg-type]
    worker.take(2)
    worker.exchange(ack(1), decline(2, fingerprint=b"two"))
    assert worker.exchange(want=5).status is Status.FINISHED
    worker.leave(keep_seen=keeps)
    HandWorker(live, "next", identity)
    assert live.state()["tokens"][Admission.SEEN] == ({b"one"} if keeps else set())


def test_an_entry_is_not_buried_while_no_worker_has_a_spider(live: LiveFrontier, worker: HandWorker) -> None:
    """A program has no code for requests, so it cannot decline them. The entry waits for a spider."""
    declines(worker, 1)
    worker.leave()
    program = HandWorker(live, "program", PROGRAM)
    assert [program.exchange().census.dead for _ in range(2)] == [0, 0]
    assert HandWorker(live, "new code").take(1) == [1]


def test_an_entry_is_not_buried_while_another_shard_has_entries(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """While the crawl continues in the other shard, a worker with the right code may still join."""
    declines(worker, 1)
    busy = Terms(busy_elsewhere=True)
    assert [worker.exchange(want=5, terms=busy).census.dead for _ in range(2)] == [0, 0]
    assert worker.exchange(want=5).census.dead == 1


def test_dropping_a_partition_drops_its_declined_entries(live: LiveFrontier, worker: HandWorker) -> None:
    """Declined entries belong to their partition, like all others."""
    worker.exchange(put(9))
    worker.take(1)
    declines(worker, 1, 2)
    assert drop(live.redis, live.crawl, partition_of(1).decode()) == 2
    assert live.state()["declined"] == []
