"""Limits bound the rate and the number of leases of each partition for all workers together."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from scrapy_dq.frontier.model import Sent, Terms
from scrapy_dq.frontier.moves import Ack, Move
from support.live_frontier import (
    NARROW,
    SLOW,
    HandWorker,
    LiveFrontier,
    ack,
    block,
    bury,
    fail,
    limited,
    numbers,
    put,
    puts,
    release,
    sent,
    waits,
)

pytestmark = pytest.mark.usefixtures("sound")

A, B = b"a", b"b"


# Delay


def test_the_delay_counts_from_the_sending_of_the_request(live: LiveFrontier, slow: HandWorker) -> None:
    """If the report that a request was sent arrives a minute late, every worker waits a minute less."""
    other = HandWorker(live, "other", SLOW)
    slow.exchange(want=1)
    live.advance(500)
    receipt = slow.note(sent(0, ago=60, partition=A), want=1)
    assert (numbers(receipt), round(receipt.next_due_s or 0, -1)) == ([], 40)
    live.advance(30)
    assert numbers(other.exchange(want=1)) == []
    live.advance(10)
    assert waits(other.exchange(want=1)) == {1: 0}


def test_the_report_of_another_lease_does_not_end_a_stint(slow: HandWorker) -> None:
    """The report names another entry, another partition, or a lease that never existed."""
    slow.exchange(want=1)
    notes = (sent(n, ago=500, partition=slot) for n, slot in ((1, A), (0, B), (99, b"elsewhere")))
    assert numbers(slow.note(*notes, want=1)) == []


def test_a_worker_cannot_report_a_lease_that_it_has_lost(live: LiveFrontier, slow: HandWorker) -> None:
    """The lease was reclaimed and went to another worker, which has not sent it yet."""
    other = HandWorker(live, "other", SLOW)
    slow.exchange(want=1)
    other.reclaim("slow")
    live.advance(100)
    assert waits(other.exchange(want=1)) == {0: 0}
    slow.rejoin("slow again")
    assert numbers(slow.note(sent(0, ago=100, partition=A), want=1)) == []


def test_rounding_never_shortens_the_delay(live: LiveFrontier) -> None:
    """Redis counts in whole milliseconds. Each delay is rounded up, and grows only by this rounding."""
    delay_s = 0.0203  # rounded up to 21 ms
    worker, ahead = HandWorker(live, "worker", limited(delay_s)), Terms(ahead_s=1.0)
    worker.exchange(*puts(A, 101))
    [lease] = worker.exchange(want=1, terms=ahead).leases
    for _ in range(100):
        at = time.monotonic()
        worker.note(Sent(A, lease.entry_id, at))
        [following] = worker.exchange(Ack(lease.entry_id), want=1, terms=ahead).leases
        came = time.monotonic()
        assert following.send_at is not None
        assert at + delay_s <= following.send_at <= came + delay_s + 0.002
        lease = following


@pytest.mark.parametrize("settle", [ack, fail, bury, release])
def test_a_lease_that_ends_unreported_counts_as_sent_just_now(
    live: LiveFrontier, slow: HandWorker, settle: Callable[[int], Move]
) -> None:
    """The worker may have sent the lease at the last moment, so the whole delay follows."""
    slow.exchange(want=1)
    live.advance(500)
    receipt = slow.exchange(settle(0), want=1)
    assert (numbers(receipt), round(receipt.next_due_s or 0, -1)) == ([], 100)
    live.advance(100)
    assert len(waits(slow.exchange(want=1))) == 1


def test_many_rests_end_at_once(slow: HandWorker) -> None:
    """More rests end than one exchange handles, so the next exchanges continue."""
    slots = [b"slot %d" % n for n in range(700)]
    slow.exchange(*(put(100 + n, partition=slot) for n, slot in enumerate(slots)))
    slow.exchange(*(put(1000 + n, partition=slot) for n, slot in enumerate(slots)))
    slow.exchange(*(ack(n) for n in slow.take(701)))
    assert slow.take(701) == []
    slow.live.advance(100)
    assert len(slow.take(1401)) == 701


# Concurrency


def test_the_concurrency_of_a_partition_holds_for_all_workers_together(
    live: LiveFrontier, narrow: HandWorker
) -> None:
    """While each of two workers holds an entry, no worker gets more until one entry is done."""
    other = HandWorker(live, "other", NARROW)
    assert numbers(narrow.exchange(want=1)) == [0]
    assert numbers(other.exchange(want=9)) == [1]
    assert numbers(narrow.exchange(want=9)) == numbers(other.exchange(want=9)) == []
    assert numbers(other.exchange(ack(1), want=9)) == [2]


# Blocks


def test_a_block_applies_to_all_workers(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """A worker reports a block of 500 s. For this time, no worker gets a lease of the blocked partition."""
    worker.exchange(*puts(A, 3), *puts(B, 3, 10))
    receipt = worker.note(block(A, 500), want=1)
    assert (numbers(receipt), round(receipt.next_due_s or 0, -1)) == ([10], 500)
    live.advance(490)
    assert other.take(9) == [11, 12]
    live.advance(20)
    assert other.take(9) == [0, 1, 2]


def test_a_shorter_block_changes_nothing(live: LiveFrontier, worker: HandWorker) -> None:
    """If several pages report blocks, the longest block holds."""
    worker.exchange(*puts(A, 3))
    worker.note(block(A, 500), block(A, 100), block(A, 0))
    worker.note(block(A, 50))
    live.advance(490)
    receipt = worker.exchange(want=9, terms=Terms(here={A: (1, 9)}))
    assert (numbers(receipt), receipt.blocked) == ([], (A,))
    live.advance(20)
    assert numbers(worker.exchange(want=1)) == [0]


# The clock


def test_a_clock_that_steps_back_does_not_prolong_rests(live: LiveFrontier, slow: HandWorker) -> None:
    """Redis's clock was a year ahead and is corrected. Each rest keeps its remaining time."""
    year = 365 * 86_400
    live.advance(year)
    slow.exchange(*puts(B, 2, 10), put(20, partition=b"c", due_in=150.0), want=1)
    slow.exchange(ack(0), want=1)
    slow.note(block(b"c", 50))
    live.change_count("offset", -year * 1000)
    assert numbers(slow.exchange(ack(10), want=9)) == []
    live.advance(100)
    assert numbers(slow.exchange(want=9)) == [1, 11]
    live.advance(60)
    assert numbers(slow.exchange(ack(1), ack(11), want=9)) == [20]
    assert live.count("offset") > year * 1000 - 10_000
