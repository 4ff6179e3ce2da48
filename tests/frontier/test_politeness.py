"""Limits: over all workers no partition is leased from more often, or more at once, than it may be."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from scrapy_dq.frontier.model import Ack, Move, Sent, Terms
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


def test_a_lease_of_a_slow_partition_says_when_to_send(slow: HandWorker) -> None:
    """The first may be sent at once; that it has a time asks for a report."""
    assert waits(slow.exchange(want=5)) == {0: 0}


def test_without_a_delay_a_lease_has_no_time(narrow: HandWorker) -> None:
    """Nothing is to be reported of it."""
    assert waits(narrow.exchange(want=5)) == {0: None, 1: None}


def test_nothing_more_until_it_is_sent(live: LiveFrontier, slow: HandWorker) -> None:
    """However long it takes, nobody gets another while it may still be sent."""
    other = HandWorker(live, "other", SLOW)
    slow.exchange(want=1)
    live.advance(1000)
    assert numbers(slow.exchange(want=5)) == numbers(other.exchange(want=5)) == []


def test_the_delay_counts_from_the_sending(live: LiveFrontier, slow: HandWorker) -> None:
    """What took a minute to be reported is a minute less to wait, for every worker."""
    other = HandWorker(live, "other", SLOW)
    slow.exchange(want=1)
    live.advance(500)
    receipt = slow.note(sent(0, ago=60, partition=A), want=1)
    assert (numbers(receipt), round(receipt.next_due_s or 0, -1)) == ([], 40)
    live.advance(30)
    assert numbers(other.exchange(want=1)) == []
    live.advance(10)
    assert waits(other.exchange(want=1)) == {1: 0}


def test_no_rounding_takes_anything_from_the_delay(live: LiveFrontier) -> None:
    """Redis counts in whole ms: what each step may lose is added, and no more than that."""
    delay_s = 0.0203  # is 21 ms
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


def test_a_report_that_is_old_delays_nobody(slow: HandWorker) -> None:
    """It was sent longer ago than the delay: the next may go at once."""
    slow.exchange(want=1)
    assert waits(slow.note(sent(0, ago=200, partition=A), want=1)) == {1: 0}


@pytest.mark.parametrize("settle", [ack, fail, bury, release])
def test_a_lease_that_ends_unreported_counts_as_sent_just_now(
    live: LiveFrontier, slow: HandWorker, settle: Callable[[int], Move]
) -> None:
    """It may have been sent at the last moment: the whole delay follows."""
    slow.exchange(want=1)
    live.advance(500)
    receipt = slow.exchange(settle(0), want=1)
    assert (numbers(receipt), round(receipt.next_due_s or 0, -1)) == ([], 100)
    live.advance(100)
    assert len(waits(slow.exchange(want=1))) == 1


def test_a_lease_that_is_never_sent_gives_its_turn_back(live: LiveFrontier, slow: HandWorker) -> None:
    """The next one need not wait: the site got nothing. A delay from before has passed already."""
    slow.exchange(want=1)
    assert waits(slow.note(sent(0, ago=None, partition=A), want=1)) == {1: 0}
    slow.note(sent(1, partition=A))
    assert numbers(slow.exchange(ack(1), want=1)) == []
    live.advance(100)
    assert waits(slow.exchange(want=1)) == {2: 0}


@pytest.mark.parametrize("how", ["reclaim", "leave", "rejoin"])
def test_a_lease_that_comes_back_unreported_counts_as_sent_just_now(
    live: LiveFrontier, slow: HandWorker, how: str
) -> None:
    """A worker that is gone may have sent it, too; the delay is not forgotten with it."""
    other = HandWorker(live, "other", SLOW)
    slow.exchange(want=1)
    live.advance(500)
    if how == "reclaim":
        other.reclaim("slow")
    elif how == "leave":
        slow.leave()
    else:
        slow.rejoin("slow again", held=[])
    assert numbers(other.exchange(want=1)) == []
    live.advance(100)
    assert waits(other.exchange(want=1)) == {0: 0}


def test_a_lease_that_is_kept_is_waited_for(live: LiveFrontier, slow: HandWorker) -> None:
    """Under its new id the worker reports it as under the old one."""
    slow.exchange(want=1)
    slow.rejoin("slow again")
    live.advance(500)
    assert numbers(slow.exchange(want=1)) == []
    assert waits(slow.note(sent(0, ago=100, partition=A), want=1)) == {1: 0}


def test_a_settled_lease_after_its_report_changes_nothing(live: LiveFrontier, slow: HandWorker) -> None:
    """Its page took longer than the delay: the next is out long before its ack."""
    slow.exchange(want=1)
    slow.note(sent(0, partition=A))
    live.advance(100)
    assert waits(slow.exchange(want=1)) == {1: 0}
    slow.note(sent(1, ago=100, partition=A))
    assert waits(slow.exchange(ack(0), want=1)) == {2: 0}


def test_a_report_of_something_else_ends_no_stint(slow: HandWorker) -> None:
    """Of a lease of long ago, of another partition, or of one that never was."""
    slow.exchange(want=1)
    notes = (sent(n, ago=500, partition=slot) for n, slot in ((1, A), (0, B), (99, b"elsewhere")))
    assert numbers(slow.note(*notes, want=1)) == []


def test_a_worker_that_does_not_hold_it_cannot_report_it(live: LiveFrontier, slow: HandWorker) -> None:
    """It was taken from its worker and leased to another, who has not sent it yet."""
    other = HandWorker(live, "other", SLOW)
    slow.exchange(want=1)
    other.reclaim("slow")
    live.advance(100)
    assert waits(other.exchange(want=1)) == {0: 0}
    slow.rejoin("slow again")
    assert numbers(slow.note(sent(0, ago=100, partition=A), want=1)) == []


def test_each_partition_has_a_delay_of_its_own(live: LiveFrontier, slow: HandWorker) -> None:
    """While one rests the others are served; own limits go before the crawl's."""
    live.limit(B, delay_s=500.0)
    live.limit(b"c", delay_s=0.0)
    slow.exchange(*puts(B, 2, 10), *puts(b"c", 2, 20))
    assert waits(slow.exchange(want=9)) == {0: 0, 10: 0, 20: None, 21: None}
    slow.exchange(ack(0), ack(10), want=9)
    live.advance(100)
    assert numbers(slow.exchange(want=9)) == [1]
    live.advance(400)
    assert numbers(slow.exchange(want=9)) == [11]


def test_a_stint_is_as_long_as_it_is_taken_ahead(slow: HandWorker) -> None:
    """Who fetches 250 s ahead of the time gets what may be sent until then, each with its moment."""
    assert waits(slow.exchange(want=9, terms=Terms(ahead_s=250.0))) == {0: 0, 1: 100, 2: 200}


def test_the_last_of_a_stint_ends_it(live: LiveFrontier, slow: HandWorker) -> None:
    """The first two are sent, or done: the partition waits for the third, and then for its delay."""
    slow.exchange(want=9, terms=Terms(ahead_s=200.0))
    live.advance(1000)
    receipt = slow.exchange(ack(0), want=1, terms=Terms(notes=[sent(1, ago=500, partition=A)]))
    assert numbers(receipt) == []
    assert waits(slow.note(sent(2, ago=100, partition=A), want=1)) == {3: 0}


def test_a_stint_begins_ahead_of_its_time(live: LiveFrontier, slow: HandWorker) -> None:
    """It says how long is to be waited; who asks less far ahead has to come again."""
    slow.exchange(want=1)
    slow.exchange(ack(0))
    live.advance(60)
    assert numbers(slow.exchange(want=1, terms=Terms(ahead_s=30.0))) == []
    assert waits(slow.exchange(want=9, terms=Terms(ahead_s=110.0))) == {1: 40, 2: 140}


def test_what_one_may_have_ahead_another_may_not(live: LiveFrontier, slow: HandWorker) -> None:
    """Who is far from Redis has the partition put back into the rotation; for who is near it still rests."""
    slow.exchange(want=1)
    slow.exchange(ack(0))
    slow.exchange(terms=Terms(ahead_s=200.0))
    assert ("rotation", A) in live.state()["turns"]
    receipt = slow.exchange(want=1)
    assert (numbers(receipt), round(receipt.next_due_s or 0, -1)) == ([], 100)


def test_the_next_rest_to_end_is_reported(live: LiveFrontier, slow: HandWorker) -> None:
    """A worker with nothing else to do need not ask before."""
    assert slow.exchange(want=1).next_due_s is None
    assert slow.exchange(ack(0)).next_due_s == pytest.approx(100, abs=5)
    slow.exchange(*puts(B, 2, 10), want=1)
    live.advance(30)
    assert slow.exchange(ack(10), want=1).next_due_s == pytest.approx(70, abs=5)


def test_many_rests_end_at_once(slow: HandWorker) -> None:
    """More than one exchange looks at: the next go on."""
    slots = [b"slot %d" % n for n in range(700)]
    slow.exchange(*(put(100 + n, partition=slot) for n, slot in enumerate(slots)))
    slow.exchange(*(put(1000 + n, partition=slot) for n, slot in enumerate(slots)))
    slow.exchange(*(ack(n) for n in slow.take(701)))
    assert slow.take(701) == []
    slow.live.advance(100)
    assert len(slow.take(1401)) == 701


def test_a_repeat_tells_what_is_left_to_wait(live: LiveFrontier, slow: HandWorker) -> None:
    """After a lost reply the same leases come with the same moments, past ones too: a stint keeps gaps."""
    slow.exchange(*(put(n, partition=b"c") for n in range(20, 22)))
    live.limit(b"c", delay_s=0.0)
    first = slow.exchange(want=9, terms=Terms(ahead_s=200.0))
    assert waits(first) == {0: 0, 1: 100, 2: 200, 20: None, 21: None}
    live.advance(150)
    again = slow.send(slow.last)
    assert again == first
    assert waits(again) == {0: -150, 1: -50, 2: 50, 20: None, 21: None}


# Concurrency


def test_no_more_at_once_over_all_workers(live: LiveFrontier, narrow: HandWorker) -> None:
    """Two in flight is all: one each, until one of them is done."""
    other = HandWorker(live, "other", NARROW)
    assert numbers(narrow.exchange(want=1)) == [0]
    assert numbers(other.exchange(want=9)) == [1]
    assert numbers(narrow.exchange(want=9)) == numbers(other.exchange(want=9)) == []
    assert numbers(other.exchange(ack(1), want=9)) == [2]


@pytest.mark.parametrize("settle", [ack, fail, bury])
def test_every_end_makes_room(narrow: HandWorker, settle: Callable[[int], Move]) -> None:
    """Done, failed or buried: another may be leased in the same exchange."""
    assert numbers(narrow.exchange(want=9)) == [0, 1]
    assert numbers(narrow.exchange(settle(1), want=9)) == [2]


@pytest.mark.parametrize("how", ["reclaim", "leave", "rejoin"])
def test_leases_that_come_back_make_room(live: LiveFrontier, narrow: HandWorker, how: str) -> None:
    """What a dead worker held is not at work any more."""
    other = HandWorker(live, "other", NARROW)
    assert narrow.take(2) == [0, 1]
    assert numbers(other.exchange(want=9)) == []
    if how == "reclaim":
        other.reclaim("narrow")
    elif how == "leave":
        narrow.leave()
    else:
        narrow.rejoin("narrow again", held=[])
    assert numbers(other.exchange(want=9))[0] == 0


def test_leases_that_are_kept_count_on(live: LiveFrontier, narrow: HandWorker) -> None:
    """A worker that rejoins is as busy as before."""
    narrow.take(2)
    narrow.rejoin("narrow again", held=[0])
    assert numbers(narrow.exchange(want=9)) == [1]


def test_delay_and_concurrency_hold_together(live: LiveFrontier) -> None:
    """One every 100 s, and no third while two are at work; a stint is no longer than there is room."""
    worker = HandWorker(live, "worker", limited(100.0, 2))
    worker.exchange(*puts(A, 10))
    ahead = Terms(ahead_s=500.0)
    assert waits(worker.exchange(want=9, terms=ahead)) == {0: 0, 1: 100}
    live.advance(500)
    assert numbers(worker.note(sent(1, ago=400, partition=A), want=9)) == []
    assert waits(worker.exchange(ack(0), want=9, terms=ahead)) == {2: 0}


# Blocks


def test_a_block_holds_all_workers_off(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """One is told to come back in 500 s: neither leases before; the other partitions continue."""
    worker.exchange(*puts(A, 3), *puts(B, 3, 10))
    receipt = worker.note(block(A, 500), want=1)
    assert (numbers(receipt), round(receipt.next_due_s or 0, -1)) == ([10], 500)
    live.advance(490)
    assert other.take(9) == [11, 12]
    live.advance(20)
    assert other.take(9) == [0, 1, 2]


def test_others_learn_of_a_block(live: LiveFrontier, worker: HandWorker, other: HandWorker) -> None:
    """Who holds something of the partition gives back what it has not begun; others are not notified."""
    worker.exchange(*puts(A, 3), *puts(B, 3, 10))
    worker.note(block(A, 500))
    assert other.exchange(terms=Terms(here={A: (2, 3), B: (1, 1)})).blocked == (A,)
    assert other.exchange(terms=Terms(here={B: (1, 1)})).blocked == ()
    live.advance(500)
    assert other.exchange(terms=Terms(here={A: (2, 3)})).blocked == ()


def test_a_shorter_block_changes_nothing(live: LiveFrontier, worker: HandWorker) -> None:
    """Several pages say so at the same time: the longest holds."""
    worker.exchange(*puts(A, 3))
    worker.note(block(A, 500), block(A, 100), block(A, 0))
    worker.note(block(A, 50))
    live.advance(490)
    receipt = worker.exchange(want=9, terms=Terms(here={A: (1, 9)}))
    assert (numbers(receipt), receipt.blocked) == ([], (A,))
    live.advance(20)
    assert numbers(worker.exchange(want=1)) == [0]


def test_a_block_is_longer_than_a_delay(live: LiveFrontier, slow: HandWorker) -> None:
    """A stint that ends meanwhile does not shorten it; nor does a short block shorten the delay."""
    slow.exchange(want=1)
    slow.note(block(A, 500))
    slow.exchange(ack(0))
    live.advance(490)
    assert numbers(slow.exchange(want=1)) == []
    live.advance(20)
    assert numbers(slow.exchange(want=1)) == [1]
    slow.exchange(ack(1))
    slow.note(block(A, 50))
    live.advance(90)
    assert numbers(slow.exchange(want=1)) == []


def test_a_worker_that_asks_ahead_leases_before_a_block_ends(live: LiveFrontier, worker: HandWorker) -> None:
    """The leases say when, as with a delay; there is nothing to be reported, and no end to them."""
    worker.exchange(*puts(A, 3))
    worker.note(block(A, 100))
    live.advance(50)
    assert waits(worker.exchange(want=2, terms=Terms(ahead_s=60.0))) == {0: 50, 1: 50}
    assert waits(worker.exchange(want=2, terms=Terms(ahead_s=60.0))) == {2: 50}


def test_a_person_blocks_and_unblocks(live: LiveFrontier, worker: HandWorker) -> None:
    """By hand a block is set, set shorter, and lifted."""
    worker.exchange(*puts(A, 3))
    assert live.limit(A, block_s=500.0) == (0.0, 0, 500.0)
    assert numbers(worker.exchange(want=1)) == []
    assert live.limit(A, block_s=100.0) == (0.0, 0, 100.0)
    live.advance(60)
    assert live.limit(A) == (0.0, 0, 40.0)
    assert live.limit(A, block_s=0.0) == (0.0, 0, 0.0)
    assert numbers(worker.exchange(want=1)) == [0]


def test_lifting_a_block_keeps_the_delay(live: LiveFrontier, slow: HandWorker) -> None:
    """Where nothing was blocked, or is not any more, the last sending still counts."""
    slow.exchange(want=1)
    slow.exchange(ack(0))
    live.limit(A, block_s=0.0)
    assert numbers(slow.exchange(want=1)) == []


def test_an_empty_partition_is_blocked_too(live: LiveFrontier, worker: HandWorker) -> None:
    """What is found while the block lasts waits for its end; after that it is forgotten."""
    worker.note(block(A, 500))
    assert numbers(worker.exchange(*puts(A, 1), want=1)) == []
    live.advance(510)
    assert numbers(worker.exchange(want=1)) == [0]
    assert not live.key_names() & {"blocked", "earliest", "resting"}


# The clock


def test_a_clock_that_steps_back_delays_nobody(live: LiveFrontier, slow: HandWorker) -> None:
    """Redis was a year ahead, and is set right: what rests goes on resting for as long as it had to."""
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


def test_a_clock_far_ahead_leaves_nothing_stuck(live: LiveFrontier, slow: HandWorker) -> None:
    """Even if the stored clock is wrong by far, time goes on from there."""
    slow.exchange(want=1)
    slow.exchange(ack(0))
    slow.note(block(B, 500))
    live.change_count("clock", 4 * 10**12)
    assert waits(slow.exchange(*puts(B, 1, 10), want=9)) == {1: 0, 10: 0}
    slow.exchange(ack(1))
    live.advance(100)
    assert numbers(slow.exchange(want=9)) == [2]
