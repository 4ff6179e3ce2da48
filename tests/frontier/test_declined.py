"""An entry that a worker's code cannot serve goes to the others; it is a dead letter only if none can."""

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
    numbers,
    partition_of,
    put,
)

pytestmark = pytest.mark.parametrize("partitioning", ["none", "one"], indirect=True)


def declines(worker: HandWorker, *entries: int) -> None:
    """Let *worker* put entries, lease and decline them."""
    worker.exchange(*(put(n) for n in entries))
    assert sorted(worker.take(len(entries))) == sorted(entries)
    worker.exchange(*(decline(n) for n in entries))


def test_a_declined_entry_goes_to_another_worker_and_never_back(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """The other one gets it, marked, and no attempt is charged."""
    declines(worker, 1)
    assert peek(live.redis, live.crawl).census.declined == 1
    assert numbers(worker.exchange(want=5)) == []
    receipt = other.exchange(want=5)
    assert [(lease.was_declined, lease.attempts) for lease in receipt.leases] == [(True, 0)]
    assert live.state()["declined"] == []


def test_nothing_is_buried_while_a_present_worker_may_serve_it(
    live: LiveFrontier, worker: HandWorker, other: HandWorker
) -> None:
    """Only after each has declined it, the entry is a dead letter, and the run is finished without it."""
    declines(worker, 1)
    assert worker.exchange().status is Status.OK
    assert other.take(1) == [1]
    assert worker.exchange().status is Status.OK
    receipt = other.exchange(decline(1))
    assert (receipt.status, receipt.census.dead) == (Status.OK, 0)  # no worker has been offered it since
    for each in (worker, other):
        receipt = each.exchange(want=5)
    assert (receipt.status, receipt.census.dead, receipt.census.unserved) == (Status.FINISHED, 1, 1)
    assert receipt.census.waiting == receipt.census.declined == 0


@pytest.mark.parametrize("seeding", [2, 3])
def test_a_worker_that_listens_or_whose_start_failed_does_not_keep_them(
    worker: HandWorker, seeding: int
) -> None:
    """The run stays open, and nothing waits in it."""
    declines(worker, 1)
    worker.exchange(want=5, seeding=seeding)
    receipt = worker.exchange(want=5, seeding=seeding)
    assert (receipt.status, receipt.census.waiting, receipt.census.dead) == (Status.OK, 0, 1)


def test_a_program_that_only_puts_is_not_waited_for(live: LiveFrontier, worker: HandWorker) -> None:
    """It has no code that could serve a request."""
    HandWorker(live, "program", PROGRAM).exchange()
    declines(worker, 1)
    worker.exchange(want=5)
    assert worker.exchange(want=5).census.unserved == 1


def test_a_retry_lets_every_worker_try_again(live: LiveFrontier, worker: HandWorker) -> None:
    """The run is open again, and finished if they serve it."""
    declines(worker, 1)
    worker.exchange(want=5)
    assert peek(live.redis, live.crawl).census.unserved == 1
    retry(live.redis, live.crawl, peek(live.redis, live.crawl), dead=lambda record: True)
    assert worker.take(1) == [1]
    receipt = worker.exchange(ack(1))
    assert (receipt.status, receipt.census.unserved) == (Status.FINISHED, 0)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_run_that_keeps_what_was_seen_finds_pages_again_that_nobody_could_serve(
    live: LiveFrontier, keeps: bool
) -> None:
    """Their fingerprints are removed when the next run begins; a done page keeps its fingerprint."""
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


def test_nothing_is_buried_while_no_worker_with_a_spider_is_there(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """A program has no code for requests, so it has not declined them."""
    declines(worker, 1)
    worker.leave()
    program = HandWorker(live, "program", PROGRAM)
    assert [program.exchange().census.dead for _ in range(2)] == [0, 0]
    assert HandWorker(live, "new code").take(1) == [1]


def test_nothing_is_buried_while_another_shard_has_something_left(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """The crawl goes on, and a worker with the right code may join."""
    declines(worker, 1)
    busy = Terms(busy_elsewhere=True)
    assert [worker.exchange(want=5, terms=busy).census.dead for _ in range(2)] == [0, 0]
    assert worker.exchange(want=5).census.dead == 1


def test_dropping_a_partition_drops_its_declined_entries(live: LiveFrontier, worker: HandWorker) -> None:
    """They wait there, like all others."""
    worker.exchange(put(9))
    worker.take(1)
    declines(worker, 1, 2)
    assert drop(live.redis, live.crawl, partition_of(1).decode()) == 2
    assert live.state()["declined"] == []
