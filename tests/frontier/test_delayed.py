"""Entries that are not due yet: they wait apart, are known already, and are lost no more than others."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import msgpack
import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Admission, Census, Order, Receipt, Status
from scrapy_dq.frontier.wire import pack_moves
from support.live_frontier import HandWorker, LiveFrontier, ack, entry_id, numbers, put

pytestmark = pytest.mark.usefixtures("sound")


def round_due(receipt: Receipt) -> float | None:
    """Return when something falls due, to 10 s."""
    return None if receipt.next_due_s is None else round(receipt.next_due_s, -1)


def test_a_delayed_entry_is_leased_when_it_is_due(live: LiveFrontier, worker: HandWorker) -> None:
    """Not before; the census counts it apart from those that wait, and says when to come back."""
    receipt = worker.exchange(put(1, due_in=100.0), want=1)
    assert receipt.census == Census(delayed=1, workers=1)
    assert (numbers(receipt), round_due(receipt)) == ([], 100)
    live.advance(60)
    receipt = worker.exchange(want=1)
    assert (numbers(receipt), round_due(receipt)) == ([], 40)
    live.advance(40)
    receipt = worker.exchange(want=1)
    assert (numbers(receipt), receipt.next_due_s) == ([1], None)


def test_what_falls_due_first_is_first(live: LiveFrontier, worker: HandWorker) -> None:
    """Whichever was put first; and the first is reported."""
    receipt = worker.exchange(*(put(n, due_in=100.0 * due) for n, due in enumerate((3, 1, 4, 2, 5))))
    assert round_due(receipt) == 100
    live.advance(450)
    receipt = worker.exchange(want=9)
    assert (numbers(receipt), round_due(receipt)) == ([1, 3, 0, 2], 50)


def test_a_pause_while_they_are_packed_changes_no_order(
    live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be stopped between any two of an exchange's moves."""
    moves = [put(n, due_in=100.0 + n / 10) for n in range(5)]
    pauses = count(time.monotonic())
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(pauses))
        packed = pack_moves(moves, now=next(pauses))
    worker.exchange(moves=packed)
    live.advance(1000)
    assert worker.take(9) == [0, 1, 2, 3, 4]


def test_at_its_time_it_is_as_one_that_is_put_then(live: LiveFrontier, worker: HandWorker) -> None:
    """It goes behind what was put before, and before what is put after."""
    worker.exchange(put(1, due_in=100.0))
    worker.exchange(put(2))
    live.advance(100)
    worker.exchange()
    worker.exchange(put(3))
    assert worker.take(9) == [2, 1, 3]


def test_a_moment_by_the_wall_is_one_of_redis(live: LiveFrontier, worker: HandWorker) -> None:
    """`not before` is given in seconds since 1970; the worker's clock does not matter."""
    worker.exchange(seeding=1)
    live.advance(1000)
    wall = live.redis.time()[0]
    moves = (put(1, not_before_s=wall + 100), put(2, not_before_s=wall - 100), put(3))
    assert round_due(worker.exchange(*moves)) == 100
    assert worker.take(9) == [2, 3]
    live.advance(110)
    assert worker.take(9) == [1]


@pytest.mark.parametrize(("due_in", "not_before"), [(100.0, 200.0), (200.0, 100.0)])
def test_of_two_moments_the_later_holds(
    live: LiveFrontier, worker: HandWorker, due_in: float, not_before: float
) -> None:
    """A request may have a delay and a date."""
    wall = live.redis.time()[0]
    assert round_due(worker.exchange(put(1, due_in=due_in, not_before_s=wall + not_before))) == 200


def test_a_time_in_the_past_is_no_delay(worker: HandWorker) -> None:
    """A put that was delayed on its way waits no longer than it has to."""
    assert numbers(worker.exchange(put(1, due_in=-5.0), want=1)) == [1]


def test_a_wait_is_counted_from_when_it_was_asked_for(live: LiveFrontier, worker: HandWorker) -> None:
    """The time that it spent in the outbox is part of it."""
    late = put(1, due_in=100.0)
    late.due_at -= 60
    assert round_due(worker.exchange(late)) == 40
    assert late.due_at > time.monotonic()


@pytest.mark.parametrize("admission", Admission)
def test_it_is_admitted_when_it_is_put(live: LiveFrontier, worker: HandWorker, admission: Admission) -> None:
    """While it is delayed, and after, another of its token is known."""
    worker.exchange(put(1, admission=admission, token=b"t", due_in=100.0))
    assert worker.exchange(put(2, admission=admission, token=b"t")).dropped == (0,)
    live.advance(100)
    assert worker.exchange(put(3, admission=admission, token=b"t", due_in=9.0), want=9).dropped == (0,)
    assert worker.held == {entry_id(1)}


def test_a_repeat_delays_nothing_twice(live: LiveFrontier, worker: HandWorker) -> None:
    """After a lost reply the same bytes are answered, and the entry stands where it stood."""
    first = worker.exchange(put(1, due_in=100.0), put(2, due_in=50.0), want=1)
    before = live.dump()
    assert worker.send(worker.last) == first
    assert live.dump() == before


def test_it_keeps_the_run_from_finishing(live: LiveFrontier, worker: HandWorker) -> None:
    """An idle crawl waits for it, and ends by its ack."""
    assert worker.exchange(put(1, due_in=100.0)).status is Status.OK
    live.advance(100)
    assert numbers(worker.exchange(want=1)) == [1]
    assert worker.exchange(ack(1)).status is Status.FINISHED


def test_a_finished_run_is_opened_by_one(worker: HandWorker) -> None:
    """`spider_idle` adds what is to be crawled in an hour: the crawl continues until then."""
    assert worker.exchange().status is Status.FINISHED
    assert worker.exchange(put(1, due_in=100.0)).status is Status.OK


def test_while_only_delayed_entries_wait_it_is_told_who_is_seeding(
    worker: HandWorker, other: HandWorker
) -> None:
    """A worker that may rest until then has to know that nobody else will find something."""
    assert worker.exchange(put(1, due_in=100.0), seeding=1).census.seeding == 2
    assert other.exchange().census.seeding == 1


@pytest.mark.parametrize("how", ["rejoin", "leave", "reclaim"])
def test_it_survives_the_worker_that_put_it(
    live: LiveFrontier, worker: HandWorker, other: HandWorker, how: str
) -> None:
    """It is the frontier's from the exchange on."""
    worker.exchange(put(1, due_in=100.0), put(2), want=1)
    if how == "rejoin":
        worker.rejoin("worker again", held=[])
    elif how == "leave":
        worker.leave()
    else:
        other.reclaim("worker")
    assert live.state()["delayed"].keys() == {entry_id(1)}
    live.advance(100)
    assert sorted(other.take(9)) == [1, 2]


def test_a_delayed_entry_survives_without_workers(live: LiveFrontier, worker: HandWorker) -> None:
    """A crawl that is resumed after its moment has it at once."""
    worker.exchange(put(1, due_in=100.0))
    worker.leave()
    live.advance(1000)
    assert HandWorker(live, "later").take(9) == [1]


def test_a_flush_leaves_nothing_of_it(live: LiveFrontier, worker: HandWorker) -> None:
    """Nor is it among those that waited."""
    worker.exchange(put(1, due_in=100.0), put(2))
    assert live.call("flush", ["worker"])[1] == Census(waiting=1)
    assert live.dump() == {}


def test_it_waits_for_its_own_partition(live: LiveFrontier, worker: HandWorker) -> None:
    """Where it belongs is kept while it is delayed."""
    slot = "é {a}".encode()
    worker.exchange(*(put(n, partition=slot, due_in=100.0) for n in range(3)), put(9, partition=b"b"))
    live.advance(100)
    receipt = worker.exchange(want=9)
    assert {int(lease.entry_id): lease.partition for lease in receipt.leases} == {
        **dict.fromkeys(range(3), slot),
        9: b"b",
    }


def test_it_keeps_its_priority(open_frontier: Callable[..., LiveFrontier]) -> None:
    """At its time it goes before those of a lower one."""
    live = open_frontier(Order.PRIORITY_FIFO)
    worker = HandWorker(live, "worker")
    worker.exchange(put(1, 0), put(2, 5, due_in=100.0), put(3, -5, due_in=100.0), put(4, 5, start=True))
    live.advance(100)
    assert worker.take(9) == [2, 4, 1, 3]


def test_many_that_are_due_come_in_steps(live: LiveFrontier, worker: HandWorker) -> None:
    """One exchange moves a bounded number; the next ones continue, in order."""
    for begin in (0, 500, 1000):
        worker.exchange(*(put(n, due_in=100.0 + 10 * n) for n in range(begin, begin + 500)))
    live.advance(16_000)
    receipt = worker.exchange()
    assert (receipt.census.waiting, receipt.census.delayed, receipt.next_due_s) == (500, 1000, 0)
    assert worker.take(1500) == list(range(1500))


def test_large_ones_that_are_due_come_in_smaller_steps(live: LiveFrontier, worker: HandWorker) -> None:
    """Neither in number nor in bytes is more moved than an exchange may carry."""
    for n in range(12):
        worker.exchange(put(n, due_in=100.0, payload=b"x" * 1_000_000))
    worker.exchange(*(put(100 + n, due_in=200.0) for n in range(40)))
    live.advance(300)
    assert 5 <= worker.exchange().census.waiting < 50
    assert len(worker.take(52)) == 52


# Puts that cannot be served


def test_a_put_with_a_reason_is_a_dead_letter_at_once(live: LiveFrontier, worker: HandWorker) -> None:
    """What can be stored but not crawled is kept with the reason, and blocks nothing."""
    receipt = worker.exchange(put(1, reason="too long for anybody", payload=b"it"), put(2), want=9)
    assert (numbers(receipt), receipt.census.dead, receipt.census.waiting) == ([2], 1, 0)
    letter = live.redis.hget(keys.prefix(live.crawl) + "dead", entry_id(1))
    reason, died_ms, worker_id, charged, place, payload, _ = msgpack.unpackb(letter, raw=True)
    assert (reason, worker_id, charged, payload) == (b"too long for anybody", b"", 0, b"it")
    assert (died_ms > 1_700_000_000_000, len(place)) == (True, 16)


def test_a_put_with_a_reason_is_admitted_once(worker: HandWorker) -> None:
    """Its repeat is known, and buries nothing a second time."""
    worker.exchange(put(1, admission=Admission.SEEN, token=b"t", reason="no"))
    receipt = worker.exchange(put(2, admission=Admission.SEEN, token=b"t", reason="no"))
    assert (receipt.dropped, receipt.census.dead, receipt.status) == ((0,), 1, Status.FINISHED)


def test_a_put_with_a_reason_keeps_no_run_open(worker: HandWorker) -> None:
    """There is nothing left to do for it, delayed or not."""
    assert worker.exchange(put(1, reason="no", due_in=100.0)).status is Status.FINISHED
