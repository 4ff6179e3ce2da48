"""Entries whose work is to be done again: they wait under another id, and there is one of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scrapy_dq.frontier.model import Admission, Census, Order, Status
from support.live_frontier import HandWorker, LiveFrontier, ack, again, entry_id, numbers, partitions, put

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


def test_after_a_roll_back_there_is_one_of_it(live: LiveFrontier, holder: HandWorker) -> None:
    """Redis has forgotten that it was done: its worker's lease goes back, and it is done once more."""
    snapshot = live.dump()
    holder.exchange(again(1, due_in=100))
    live.roll_back(snapshot)
    assert holder.exchange().status is Status.RESYNC
    assert holder.rejoin("again", held=[]).status is Status.OK
    assert holder.take(2) == [1]
    assert holder.exchange(again(1, due_in=100)).census.delayed == 1
