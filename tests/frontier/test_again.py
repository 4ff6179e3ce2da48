"""Entries whose work is to be done again: they wait under another id, and there is one of each."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from scrapy_dq.frontier.model import Admission, Census, Move, Order, Status
from support.live_frontier import (
    HandWorker,
    LiveFrontier,
    ack,
    again,
    entry_id,
    limited,
    numbers,
    partitions,
    put,
    release,
)

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def holder(worker: HandWorker) -> HandWorker:
    """A worker that holds entry 1."""
    worker.exchange(put(1, admission=Admission.SEEN, token=b"t" * 20))
    assert worker.take(1) == [1]
    return worker


def test_it_waits_until_it_is_due(live: LiveFrontier, holder: HandWorker) -> None:
    """It counts as done, and is delayed; then it has the payload that it was given."""
    receipt = holder.exchange(again(1, payload=b"later", due_in=100), want=1)
    assert receipt.census == Census(delayed=1, done=1, seen=1, workers=1)
    assert numbers(receipt) == []
    live.advance(100)
    (lease,) = holder.exchange(want=1).leases
    assert (lease.entry_id, lease.payload, lease.attempts) == (entry_id(101), b"later", 0)
    receipt = holder.exchange(ack(101))
    assert (receipt.status, receipt.census.done) == (Status.FINISHED, 2)


def test_with_no_wait_it_is_served_at_once(holder: HandWorker) -> None:
    """In the same exchange."""
    assert numbers(holder.exchange(again(1), want=1)) == [101]


def test_it_stays_seen(holder: HandWorker) -> None:
    """Links to it are duplicates: no put makes a second entry of it."""
    holder.exchange(again(1, due_in=100))
    assert holder.exchange(put(2, admission=Admission.SEEN, token=b"t" * 20)).dropped == (0,)


def test_it_keeps_its_partition_and_gets_a_new_priority(
    open_frontier: Callable[..., LiveFrontier],
) -> None:
    """Of what is due, the new pages come first, if that is what is asked for."""
    live = open_frontier(Order.PRIORITY_FIFO)
    worker = HandWorker(live, "worker")
    worker.exchange(*(put(n, partition=b"p") for n in (1, 2)))
    assert sorted(worker.take(2)) == [1, 2]
    worker.exchange(again(1, -5, due_in=10), again(2, due_in=20))
    live.advance(30)
    receipt = worker.exchange(want=2)
    assert (numbers(receipt), partitions(receipt)) == ([102, 101], [b"p", b"p"])


def test_a_lease_that_is_not_held_changes_nothing(live: LiveFrontier, worker: HandWorker) -> None:
    """It was reclaimed, and another worker will settle it."""
    worker.exchange(put(1))
    worker.take(1)
    worker.exchange(release(1), again(1, due_in=10))
    assert worker.take(1) == [1]


def test_a_repeat_changes_nothing(live: LiveFrontier, holder: HandWorker) -> None:
    """After a lost reply the same bytes are answered."""
    first = holder.exchange(again(1, due_in=100))
    before = live.dump()
    assert holder.send(holder.last) == first
    assert live.dump() == before


def test_a_limit_counts_it_no_more(live: LiveFrontier) -> None:
    """While it waits, others of its partition are served."""
    worker = HandWorker(live, "worker", limited(concurrency=1))
    worker.exchange(put(1, partition=b"p"), put(2, partition=b"p"))
    assert worker.take(2) == [1]
    assert numbers(worker.exchange(again(1, due_in=100), want=2)) == [2]


def test_who_still_has_the_work_before_does_not_end_it(holder: HandWorker) -> None:
    """A worker that was taken for dead settles what it had, after the entry was granted to it again."""
    holder.exchange(again(1), want=1)
    assert holder.held == {entry_id(101)}
    receipt = holder.exchange(again(1), again(1, due_in=9), held=1)
    assert (receipt.census.in_flight, receipt.census.done, receipt.census.delayed) == (1, 1, 0)


def test_after_a_roll_back_there_is_one_of_it(live: LiveFrontier, holder: HandWorker) -> None:
    """Redis has forgotten that it was done: its worker's lease goes back, and it is done once more."""
    snapshot = live.dump()
    holder.exchange(again(1, due_in=100))
    live.roll_back(snapshot)
    assert holder.exchange().status is Status.RESYNC
    assert holder.rejoin("again", held=[]).status is Status.OK
    assert holder.take(2) == [1]
    assert holder.exchange(again(1, due_in=100)).census.delayed == 1


def test_a_dead_worker_charges_it_nothing(live: LiveFrontier, holder: HandWorker) -> None:
    """A suspect that was done is not a suspect when it comes again."""
    live.call("fence", "worker", holder.epoch, holder.run)
    live.call("drain", "worker", holder.epoch, holder.run, 10, 3)
    other = HandWorker(live, "other")
    (lease,) = other.exchange(want=1).leases
    assert lease.suspect
    other.exchange(again(1))
    (lease,) = other.exchange(want=1).leases
    assert (lease.suspect, lease.attempts) == (False, 0)


@pytest.mark.soak
def test_a_day_of_many_pages_keeps_each_interval(live: LiveFrontier) -> None:
    """100,000 pages, every 3 to 12 hours each, by the frontier's clock: each within 1 %."""
    pages, day_s, step_s = 100_000, 86_400, 60
    worker, draw = HandWorker(live, "worker"), random.Random(1)
    every = [draw.choice((3, 6, 12)) * 3600 for _ in range(pages)]
    now, last, visits, worst = 0, [-1] * pages, 0, 0.0
    for first in range(0, pages, 1000):
        worker.exchange(*(put(n) for n in range(first, first + 1000)))
    while now <= day_s:
        moves: list[Move] = []
        while receipt := worker.exchange(*moves, want=1000):
            moves = []
            for number in numbers(receipt):
                n = number % pages
                if last[n] >= 0:
                    worst = max(worst, abs(now - last[n] - every[n]) / every[n])
                last[n] = now
                visits += 1
                moves.append(again(number, as_number=number + pages, due_in=every[n]))
            if not moves:
                break
        live.advance(step_s)
        now += step_s
    assert worst <= 0.01
    assert visits == sum(1 + day_s // each for each in every)
    assert worker.exchange().census.delayed == pages
