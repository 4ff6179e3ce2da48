"""After `again` (the page is to be visited again), an entry waits under another id. It exists only once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scrapy_dq.frontier.model import Admission, Census, Order, Status
from support.live_frontier import HandWorker, LiveFrontier, ack, again, entry_id, numbers, partitions, put

pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def holder(worker: HandWorker) -> HandWorker:
    """Return a worker that holds entry 1."""
    worker.exchange(put(1, admission=Admission.SEEN, token=b"t" * 20))
    assert worker.take(1) == [1]
    return worker


def test_an_entry_to_repeat_waits_until_it_is_due(live: LiveFrontier, holder: HandWorker) -> None:
    """`again` counts the entry as done, delays it and stores its new payload."""
    receipt = holder.exchange(again(1, payload=b"later", due_in=100), want=1)
    assert receipt.census == Census(delayed=1, done=1, seen=1, workers=1)
    assert numbers(receipt) == []
    live.advance(100)
    (lease,) = holder.exchange(want=1).leases
    assert (lease.entry_id, lease.payload, lease.attempts) == (entry_id(101), b"later", 0)
    receipt = holder.exchange(ack(101))
    assert (receipt.status, receipt.census.done) == (Status.FINISHED, 2)


def test_an_entry_to_repeat_keeps_its_partition_and_gets_a_new_priority(
    open_frontier: Callable[..., LiveFrontier],
) -> None:
    """Entry 1 gets the priority -5, so entry 2 comes first although it was due later."""
    live = open_frontier(Order.PRIORITY_FIFO)
    worker = HandWorker(live, "worker")
    worker.exchange(*(put(n, partition=b"p") for n in (1, 2)))
    assert sorted(worker.take(2)) == [1, 2]
    worker.exchange(again(1, -5, due_in=10), again(2, due_in=20))
    live.advance(30)
    receipt = worker.exchange(want=2)
    assert (numbers(receipt), partitions(receipt)) == ([102, 101], [b"p", b"p"])


def test_after_a_roll_back_an_entry_to_repeat_exists_once(live: LiveFrontier, holder: HandWorker) -> None:
    """Redis forgets that the entry was settled. So it is leased again, and then done and delayed again."""
    snapshot = live.dump()
    holder.exchange(again(1, due_in=100))
    live.roll_back(snapshot)
    assert holder.exchange().status is Status.RESYNC
    assert holder.rejoin("again", held=[]).status is Status.OK
    assert holder.take(2) == [1]
    assert holder.exchange(again(1, due_in=100)).census.delayed == 1
