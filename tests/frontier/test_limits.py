"""Limits change during a crawl, through a user or through other settings, and from run to run."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.model import Status, Terms
from scrapy_dq.frontier.moves import Release
from support.live_frontier import (
    SLOW,
    HandWorker,
    LiveFrontier,
    ack,
    block,
    limited,
    numbers,
    put,
    puts,
    waits,
)

pytestmark = pytest.mark.usefixtures("sound")

A, B = b"a", b"b"


# While the crawl runs


def test_a_higher_limit_frees_waiting_entries(live: LiveFrontier, narrow: HandWorker) -> None:
    """The next exchange applies the change. 0 means no limit. A negative value means the crawl's default."""
    assert narrow.take(9) == [0, 1]
    assert live.limit(A, concurrency=4) == (0.0, 4, 0.0)
    assert narrow.take(9) == [2, 3]
    assert live.limit(A, concurrency=0) == (0.0, 0, 0.0)
    assert narrow.take(2) == [4, 5]
    assert live.limit(A, concurrency=-1) == (0.0, 2, 0.0)
    assert narrow.take(9) == []


def test_a_shorter_delay_shortens_the_current_rest(live: LiveFrontier) -> None:
    """If a delay drops from an hour to 100 s, no worker waits for the hour."""
    worker = HandWorker(live, "worker", limited(3600.0))
    worker.exchange(*puts(A, 10), want=1)
    worker.exchange(ack(0))
    live.limit(A, delay_s=100.0)
    live.advance(100)
    assert numbers(worker.exchange(want=1)) == [1]


# Settings and runs


def test_settings_that_raise_the_concurrency_free_waiting_entries(
    live: LiveFrontier, narrow: HandWorker
) -> None:
    """The partition returns to the rotation, and the other partitions keep their turns."""
    assert narrow.take(2) == [0, 1]
    narrow.exchange(
        put(10, partition=B), put(11, partition=B), put(20, partition=b"c"), put(30, partition=b"d")
    )
    assert numbers(narrow.exchange(want=1)) == [10]
    other = HandWorker(live, "other", limited(concurrency=3))
    assert [numbers(other.exchange(want=1))[0] for _ in range(4)] == [2, 20, 30, 11]


def test_the_next_run_has_the_limits_of_its_settings(live: LiveFrontier, slow: HandWorker) -> None:
    """The next run starts without the manual limits, blocks and rests of the last run."""
    for n in range(10):
        slow.exchange(want=1)
        slow.exchange(ack(n))
        live.advance(100)
    live.limit(A, delay_s=5.0, concurrency=1, block_s=10_000.0)
    slow.exchange()
    slow.leave()
    again = HandWorker(live, "again", SLOW)
    assert (again.run, again.joined.limits_before) == (1, None)
    assert live.limit(A) == (100.0, 0, 0.0)
    assert waits(again.exchange(*puts(A, 2), want=1)) == {0: 0}


@pytest.mark.parametrize("how", ["flush", "join"])
def test_the_state_of_partitions_is_deleted_with_the_run(live: LiveFrontier, how: str) -> None:
    """After a flush or a lost `meta`, no limit, rest, block or suspect remains for the next crawl."""
    crawl = limited(100.0, 1, f=(0.0, 1))
    worker, victim = HandWorker(live, "worker", crawl), HandWorker(live, "victim", crawl)
    worker.exchange(put(0, partition=b"d"))
    assert victim.take(1) == [0]
    worker.reclaim("victim")
    live.advance(100)
    worker.exchange(put(1, partition=B), *puts(A, 2, 10), *puts(b"e", 2, 20), *puts(b"f", 2, 30))
    assert numbers(worker.exchange(want=9, terms=Terms(here={b"d": (1, 0)}))) == [10, 1, 20, 30]
    new = (put(2, due_in=900.0), put(3, partition=b"g"))
    worker.exchange(ack(20), *new, terms=Terms(notes=[block(B, 500)]))
    polite = {"suspects", "resting", "saturated", "limits", "busy", "unsent", "earliest", "blocked"}
    assert live.key_names() >= {*polite, "delayed", "quarantine", "rotation"}
    if how == "flush":
        live.call("flush", ["worker"])
        assert live.key_names() == set()
    else:
        live.redis.delete(live.key("meta"))
        HandWorker(live, "new")
        assert live.key_names() == {"meta", "members", "beats", "worker:new"}


def test_a_worker_that_rejoins_into_a_new_run_keeps_its_limits(live: LiveFrontier, slow: HandWorker) -> None:
    """Redis is rolled back to the end of the previous run. So only the worker knows the limits of its run."""
    live.limit(A, delay_s=0.0)
    while slow.exchange(*(Release(i) for i in slow.held), want=0).census.waiting:
        slow.exchange(*(ack(n) for n in slow.take(9)))
    assert slow.exchange().status is Status.FINISHED
    slow.rejoin("slow again", run=1)
    slow.exchange(*puts(B, 3, 50))
    assert waits(slow.exchange(want=3)) == {50: 0}


def test_limits_of_a_later_run_count_leases_of_an_earlier_run_after_a_roll_back(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """Three entries were leased without a limit. Until they return, they use up the later limit of three."""
    worker.exchange(*puts(A, 9), want=3)
    before = live.dump()
    assert worker.take(6) == [3, 4, 5, 6, 7, 8]
    assert worker.exchange(*map(ack, range(9))).status is Status.FINISHED
    other = HandWorker(live, "other", limited(concurrency=3))
    live.roll_back(before)
    other.rejoin("other again", run=1)
    live.state()  # the partition is in the rotation until its turn
    assert other.take(9) == []
    other.reclaim("worker")
    assert len(other.take(9)) == 3
