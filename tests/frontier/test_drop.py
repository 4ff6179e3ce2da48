"""`drop` removes the waiting entries of one partition, and no other entry. The counts stay right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scrapy_dq.frontier.admin import drop as drop_module
from scrapy_dq.frontier.admin.drop import drop, waiting_in
from scrapy_dq.frontier.model import Admission, Order
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, fail, limited, numbers, put, release

pytestmark = pytest.mark.usefixtures("sound")
TRAP, OTHER = b"trap.example", b"other.example"


@pytest.fixture
def live(open_frontier: Callable[..., LiveFrontier]) -> LiveFrontier:
    return open_frontier(Order.PRIORITY_FIFO)


@pytest.fixture
def everywhere(live: LiveFrontier) -> HandWorker:
    """Return a worker of a crawl with entries of two partitions in every state."""
    worker, victim = HandWorker(live, "worker"), HandWorker(live, "victim")
    n = iter(range(1000))
    for partition in (TRAP, OTHER):
        for priority in (0, 3, -2, 0, 0):
            worker.exchange(*(put(next(n), priority, partition=partition) for _ in range(4)))
        worker.exchange(*(put(next(n), partition=partition, due_in=1000.0) for _ in range(5)))
    assert len(victim.take(6)) == 6
    worker.reclaim("victim")
    taken = worker.take(8)
    worker.exchange(*(move(each) for move, each in zip((fail, bury, ack, release), taken, strict=False)))
    return worker


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_all_waiting_entries_of_a_partition_are_dropped(
    everywhere: HandWorker, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Steps may have any size. Entries in flight, failed or dead, and in other partitions, are kept."""
    monkeypatch.setattr(drop_module, "STEP", step)
    before = live.state()
    trap = {i for i, entry in before["entries"].items() if entry[0] == "backlog" and TRAP in entry}
    waited = waiting_in(live.redis, live.crawl, TRAP.decode())
    assert waited > 10
    steps: list[int] = []
    assert drop(live.redis, live.crawl, TRAP.decode(), "me", steps.append) == waited + 5 == sum(steps)
    assert max(steps) <= step
    assert waiting_in(live.redis, live.crawl, TRAP.decode()) == 0
    after = live.state()
    assert len(after["delayed"]) == 5
    assert {TRAP for _, partition, _ in after["delayed"].values() if partition == TRAP} == set()
    assert before["dead"] == after["dead"]
    assert not trap & set(after["entries"])
    census = everywhere.exchange().census
    assert census.waiting == waiting_in(live.redis, live.crawl, OTHER.decode())
    assert drop(live.redis, live.crawl, TRAP.decode()) == 0


def test_dropped_entries_stay_seen_and_the_run_ends_without_them(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker")
    new = [put(n, admission=Admission.SEEN, token=b"%020d" % n, partition=TRAP) for n in range(9)]
    worker.exchange(*new, want=1)
    assert drop(live.redis, live.crawl, TRAP.decode()) == 8
    assert worker.exchange(*new, want=9).census.waiting == 0
    assert worker.exchange(ack(0)).status.value == "FINISHED"


def test_entries_of_a_partition_at_its_limit_are_dropped(live: LiveFrontier) -> None:
    """The waiting entries are dropped although their partition is saturated or rests."""
    for first, limit in ((0, limited(concurrency=1)), (10, limited(100.0))):
        worker = HandWorker(live, f"worker {first}", limit)
        worker.exchange(*(put(n, partition=TRAP) for n in range(first, first + 4)), want=4)
        waited = waiting_in(live.redis, live.crawl, TRAP.decode())
        assert waited >= 2
        assert drop(live.redis, live.crawl, TRAP.decode()) == waited
        live.state()


def test_entries_of_a_partition_with_a_longer_name_stay(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker")
    worker.exchange(put(1, partition=TRAP + b"x", due_in=100.0), put(2, partition=TRAP + b"x"))
    assert drop(live.redis, live.crawl, TRAP.decode()) == 0
    assert numbers(worker.exchange(want=2)) == [2]


def test_a_drop_in_a_missing_crawl_returns_none(live: LiveFrontier) -> None:
    assert drop(live.redis, live.crawl, TRAP.decode()) is None
