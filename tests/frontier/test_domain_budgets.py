"""Budgets of partitions, per run or per day: entries over a budget wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.frontier import peek, retry
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.model import Limits, Status
from scrapy_dq.frontier.moves import Defer, Move
from scrapy_dq.frontier.worker.audit import audit
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    again,
    bury,
    entry_id,
    fail,
    numbers,
    put,
    puts,
    release,
)

pytestmark = pytest.mark.usefixtures("sound")
A, B = b"a", b"b"


def budgeted(budget: int = 0, *, daily: bool = False, **own: int) -> Any:
    return replace(IDENTITY, limits=Limits(budget=budget, daily=daily, own_budgets=own))


def begin(live: LiveFrontier, crawl: Any) -> HandWorker:
    """Return a worker of a crawl with ten entries in each of two partitions."""
    worker = HandWorker(live, "worker", crawl)
    worker.exchange(*puts(A, 10), *puts(B, 10, 10), seeding=1)
    return worker


def test_a_partition_gets_no_more_leases_than_its_budget(live: LiveFrontier) -> None:
    """Entries count against the budget if they are in flight, done, failed or to be done again."""
    worker = begin(live, budgeted(3, b=1))
    assert sorted(worker.take(20)) == [0, 1, 2, 10]
    receipt = worker.exchange(ack(0), fail(1), again(2), ack(10), want=9, seeding=1)
    assert not receipt.leases
    assert receipt.damage == ""
    assert receipt.census.waiting == 7 + 9 + 1
    assert live.limit(A) == (0, 0, 0)
    assert live.call("limit", A)[3:] == (3, 3)
    assert live.call("limit", B)[3:] == (1, 1)


@pytest.mark.parametrize("end", ["ack", "bury", "release"])
def test_a_deferred_entry_counts_against_the_budget(live: LiveFrontier, end: str) -> None:
    """A deferred entry counts against the budget: first as in flight, and after its ack as done.

    The page of such an entry is done, but its lease is kept until puts in other shards are retired.
    """
    worker = begin(live, budgeted(1))
    assert sorted(worker.take(20)) == [0, 10]
    worker.exchange(Defer(entry_id(0)), ack(10), seeding=1)
    worker.held.add(entry_id(0))
    assert worker.take(20) == []
    move = {"ack": ack, "bury": bury, "release": release}[end](0)
    worker.exchange(move, seeding=1)
    assert worker.take(20) == {"ack": [], "bury": [1], "release": [0]}[end]


def test_a_retry_after_the_end_uses_the_same_budget(live: LiveFrontier) -> None:
    """A retry continues the finished run under its old number, even if all workers have left."""
    worker = HandWorker(live, "worker", budgeted(3))
    worker.exchange(*puts(A, 3), seeding=1)
    worker.take(3)
    assert worker.exchange(ack(0), fail(1), ack(2)).status is Status.FINISHED
    worker.leave()
    overview = peek(live.redis, live.crawl)
    assert retry(live.redis, live.crawl, overview, failed=lambda record: True).failed == 1
    HandWorker(live, "another", budgeted(3))
    assert live.call("limit", A)[3:] == (3, 3)


def test_a_daily_budget_is_renewed_at_midnight(live: LiveFrontier) -> None:
    """A day ends at midnight UTC by Redis's clock. Until then, the partition rests, as the answer shows."""
    worker = begin(live, budgeted(1, daily=True))
    assert sorted(worker.take(20)) == [0, 10]
    receipt = worker.exchange(ack(0), ack(10), want=9, seeding=1)
    assert not receipt.leases
    assert receipt.damage == ""
    now_s = live.redis.time()[0]
    assert receipt.next_due_s is not None
    assert abs((receipt.next_due_s + now_s) % 86_400 - 86_400) % 86_400 < 60 or now_s % 86_400 > 86_300
    for partition in (A, B):  # as if the budgets had been spent yesterday
        today, spent = map(int, live.redis.hget(live.key("spent"), partition).split())
        live.redis.hset(live.key("spent"), partition, f"{today - 1} {spent}")
    live.advance(86_400)
    assert sorted(worker.take(20)) == [1, 11]


def spend(live: LiveFrontier, crawl: Any) -> HandWorker:
    """Return a worker that has done as many entries as the budgets allow."""
    worker = begin(live, crawl)
    taken = worker.take(20)
    worker.exchange(*map(ack, taken), seeding=1)
    return worker


def test_a_worker_learns_that_only_entries_over_their_budgets_are_left(live: LiveFrontier) -> None:
    """No answer reports this while more entries may come, or the crawl is on hold.

    More may come from a running start(), a listening worker, a lease, or an entry that is delayed.
    """
    worker = spend(live, budgeted(1))

    def only_over_budget(*moves: Move, seeding: int = 0) -> bool:
        return bool(worker.exchange(*moves, want=9, seeding=seeding).census.only_over_budget)

    assert not only_over_budget(seeding=1)
    assert only_over_budget()
    assert only_over_budget(seeding=2)
    assert not only_over_budget(seeding=3)
    other = HandWorker(live, "other", budgeted(1))
    assert not only_over_budget()
    other.exchange(put(50, partition=b"c"))
    assert other.take(1) == [50]
    assert not only_over_budget()
    other.exchange(seeding=3)
    assert not only_over_budget()
    other.exchange(ack(50))
    assert only_over_budget()
    assert not only_over_budget(put(51, partition=b"d", due_in=900.0))
    live.advance(1000)
    assert numbers(other.exchange(want=1)) == [51]
    other.exchange(Defer(entry_id(51)))
    assert not only_over_budget()
    steer(live.redis, live.crawl, Command.PAUSE)
    other.held.add(entry_id(51))
    other.exchange(ack(51))
    assert not only_over_budget()
    steer(live.redis, live.crawl, Command.RESUME)
    assert only_over_budget()
    assert live.call("limit", A, budget=2)[3:] == (2, 1)
    assert not only_over_budget()


def test_workers_wait_until_tomorrow_for_a_daily_budget(live: LiveFrontier) -> None:
    worker = spend(live, budgeted(1, daily=True))
    assert not worker.exchange(want=9).census.only_over_budget
    assert live.call("limit", A, budget=2)[3:] == (2, 1)


def test_an_empty_shard_reports_only_entries_over_budget(live: LiveFrontier) -> None:
    """Even a shard without entries reports this, because another shard may have some over their budgets."""
    worker = spend(live, IDENTITY)
    assert worker.exchange().census.only_over_budget
    assert not worker.exchange(put(50)).census.only_over_budget


def test_an_exchange_examines_a_bounded_number_of_partitions(live: LiveFrontier) -> None:
    """The first answer does not report that only entries over budgets are left: not all were examined yet."""
    worker = HandWorker(live, "worker", budgeted(1))
    for n in range(600):
        worker.exchange(*puts(b"host %d" % n, 2, 2 * n), seeding=1)
    taken = worker.take(600)
    assert len(taken) == 600
    worker.exchange(*map(ack, taken))
    HandWorker(live, "other", budgeted(1, other=1)).exchange()
    first, second = worker.exchange(want=1), worker.exchange(want=1)
    assert (first.leases, first.census.only_over_budget) == ((), 0)
    assert (second.leases, second.census.only_over_budget) == ((), 1)


@pytest.mark.parametrize("settings", [{"budget": 2, "daily": True}, {"budget": 2}, {}])
def test_new_budget_settings_apply_at_once(live: LiveFrontier, settings: dict[str, Any]) -> None:
    """With new settings, a partition that has spent its daily budget need not rest until midnight."""
    worker = begin(live, budgeted(1, daily=True))
    assert sorted(worker.take(20)) == [0, 10]
    assert worker.exchange(ack(0), ack(10), want=9, seeding=1).next_due_s is not None
    HandWorker(live, "other", budgeted(**settings)).exchange(seeding=1)
    assert sorted(worker.take(2)) == [1, 11]


def test_after_a_roll_back_to_an_earlier_run_no_budget_is_spent(live: LiveFrontier) -> None:
    """The waiting entries now belong to the later run, which has not spent its budgets."""
    worker = begin(live, budgeted(1))
    assert sorted(worker.take(20)) == [0, 10]
    worker.exchange(ack(0), ack(10), seeding=1)
    worker.rejoin("again", run=worker.run + 1)
    receipt = worker.exchange(want=20, seeding=1)
    assert (sorted(numbers(receipt)), receipt.damage) == ([1, 11], "")


def test_a_lost_count_of_leases_is_noticed(live: LiveFrontier) -> None:
    """A partition seems saturated, although no worker holds its entries and its budget is not spent."""
    worker = begin(live, budgeted(2))
    assert sorted(worker.take(9)) == [0, 1, 10, 11]
    live.redis.hset(live.key("busy"), mapping={A: 9, B: 9})
    receipt = worker.exchange(ack(0), ack(10), release(1), release(11), want=9, seeding=1)
    assert (receipt.leases, receipt.damage) == ((), "entries")
    live.run(audit(live.frontier, worker.epoch, worker.run))
    assert sorted(worker.take(9)) == [1, 11]


def test_manual_budgets_use_the_period_of_the_settings(live: LiveFrontier) -> None:
    """The settings define the period even if they define no budget."""
    worker = begin(live, budgeted(daily=True))
    assert live.call("limit", A, budget=1)[3:] == (1, 0)
    assert 0 in worker.take(20)
    assert worker.exchange(ack(0), want=1, seeding=1).next_due_s is not None
    assert int(live.redis.hget(live.key("spent"), A).split()[0]) == live.redis.time()[0] // 86_400
    assert live.call("limit", A, budget=2)[3:] == (2, 1)


def test_only_partitions_with_a_budget_are_counted(live: LiveFrontier) -> None:
    """If all partitions were counted, each host of a crawl would leave a field in `spent`."""
    worker = begin(live, budgeted(b=9))
    assert sorted(worker.take(2)) == [0, 10]
    worker.exchange(ack(0), ack(10), seeding=1)
    assert live.redis.hgetall(live.key("spent")) == {B: b"0 1"}


def test_counts_of_earlier_days_are_deleted(live: LiveFrontier) -> None:
    worker = begin(live, budgeted(9, daily=True))
    assert sorted(worker.take(4)) == [0, 1, 10, 11]
    worker.exchange(ack(0), seeding=1)
    today = live.redis.time()[0] // 86_400
    live.redis.hset(live.key("meta"), "spent_on", today - 1)
    live.redis.hset(live.key("spent"), A, f"{today - 1} 1")
    worker.exchange(ack(10), seeding=1)
    assert live.redis.hkeys(live.key("spent")) == [B]
    worker.exchange(ack(1), seeding=1)
    assert sorted(live.redis.hkeys(live.key("spent"))) == [A, B]
