"""An entry that is not due waits in `delayed`. Its fingerprint is seen, and it is as safe as any other."""

from __future__ import annotations

import time
from itertools import count

import msgpack
import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import Census
from scrapy_dq.frontier.wire import pack_moves
from support.live_frontier import HandWorker, LiveFrontier, entry_id, numbers, put

pytestmark = pytest.mark.usefixtures("sound")


def round_due(receipt: Receipt) -> float | None:
    """Return the seconds until the next entry is due, rounded to 10 s."""
    return None if receipt.next_due_s is None else round(receipt.next_due_s, -1)


def test_a_delayed_entry_is_leased_when_it_is_due(live: LiveFrontier, worker: HandWorker) -> None:
    """Until then, the census counts it as delayed, and each answer has the seconds until it is due."""
    receipt = worker.exchange(put(1, due_in=100.0), want=1)
    assert receipt.census == Census(delayed=1, workers=1)
    assert (numbers(receipt), round_due(receipt)) == ([], 100)
    live.advance(60)
    receipt = worker.exchange(want=1)
    assert (numbers(receipt), round_due(receipt)) == ([], 40)
    live.advance(40)
    receipt = worker.exchange(want=1)
    assert (numbers(receipt), receipt.next_due_s) == ([1], None)


def test_a_pause_while_moves_are_packed_does_not_change_the_order(
    live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be stopped between any two moves. The order of the due times does not change."""
    moves = [put(n, due_in=100.0 + n / 10) for n in range(5)]
    pauses = count(time.monotonic())
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(pauses))
        packed = pack_moves(moves, now=next(pauses))
    worker.exchange(moves=packed)
    live.advance(1000)
    assert worker.take(9) == [0, 1, 2, 3, 4]


def test_a_delay_includes_the_time_in_the_outbox(live: LiveFrontier, worker: HandWorker) -> None:
    """The time that the put spends in the outbox counts towards its delay."""
    late = put(1, due_in=100.0)
    late.due_at -= 60
    assert round_due(worker.exchange(late)) == 40
    assert late.due_at > time.monotonic()


def test_many_due_entries_are_moved_in_steps(live: LiveFrontier, worker: HandWorker) -> None:
    """One exchange moves a bounded number of due entries. The next exchanges continue in the same order."""
    for begin in (0, 500, 1000):
        worker.exchange(*(put(n, due_in=100.0 + 10 * n) for n in range(begin, begin + 500)))
    live.advance(16_000)
    receipt = worker.exchange()
    assert (receipt.census.waiting, receipt.census.delayed, receipt.next_due_s) == (500, 1000, 0)
    assert worker.take(1500) == list(range(1500))


def test_large_due_entries_are_moved_in_smaller_steps(live: LiveFrontier, worker: HandWorker) -> None:
    """One exchange moves a bounded number of entries and of bytes."""
    for n in range(12):
        worker.exchange(put(n, due_in=100.0, payload=b"x" * 1_000_000))
    worker.exchange(*(put(100 + n, due_in=200.0) for n in range(40)))
    live.advance(300)
    assert 5 <= worker.exchange().census.waiting < 50
    assert len(worker.take(52)) == 52


def test_a_put_with_a_reason_is_a_dead_letter_at_once(live: LiveFrontier, worker: HandWorker) -> None:
    """A request that can be stored but not crawled is kept with the reason, and delays no other request."""
    receipt = worker.exchange(put(1, reason="too long for anybody", payload=b"it"), put(2), want=9)
    assert (numbers(receipt), receipt.census.dead, receipt.census.waiting) == ([2], 1, 0)
    letter = live.redis.hget(keys.prefix(live.crawl) + "dead", entry_id(1))
    reason, died_ms, worker_id, charged, place, payload, _ = msgpack.unpackb(letter, raw=True)
    assert (reason, worker_id, charged, payload) == (b"too long for anybody", b"", 0, b"it")
    assert (died_ms > 1_700_000_000_000, len(place)) == (True, 16)
