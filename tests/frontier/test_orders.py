"""Each order also holds for equal priorities, and for entries that return after a lease.

Without partitions, there is one strict order of all entries. With partitions, each partition has its own
order.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from scrapy.crawler import Crawler
from scrapy.http import Request
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.spiders import Spider
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_LEASES, MAX_MOVES, Order, StartQueue
from scrapy_dq.frontier.moves import Put
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    by_partition,
    numbers,
    partition_of,
    put,
    release,
)
from support.reference import ReferenceFrontier

pytestmark = pytest.mark.parametrize("partitioning", ["none", "slots"], indirect=True)

PRIORITY_ORDERS = [Order.PRIORITY_LIFO, Order.PRIORITY_FIFO]


@pytest.fixture(params=Order)
def live(open_frontier: Callable[..., LiveFrontier], request: pytest.FixtureRequest) -> LiveFrontier:
    """Return a frontier of each order."""
    return open_frontier(request.param)


def random_puts(count: int, seed: int) -> list[Put]:
    rng = random.Random(seed)
    return [put(n, rng.randint(-2, 2), start=rng.choice((0, 0, 0, 0, 0, 0, 1, 2))) for n in range(count)]


def expected(order: Order, puts: list[Put]) -> dict[bytes, list[int]]:
    """Return the numbers of *puts* as the reference serves them, by partition."""
    reference = ReferenceFrontier(order)
    reference.join("worker", {}, "epoch", IDENTITY)
    reference.exchange("worker", "epoch", 0, 1, 0, 0, 0, puts)
    return by_partition([int(i) for i in reference.serving()])


def test_thousands_are_served_in_order(live: LiveFrontier, worker: HandWorker) -> None:
    """3,000 entries are put, a thousand at a time. They are leased in portions, and some are released."""
    puts = random_puts(3000, seed=5)
    for i in range(0, len(puts), MAX_MOVES):
        worker.exchange(*puts[i : i + MAX_MOVES])
    rng, served = random.Random(6), []
    while got := numbers(worker.exchange(want=rng.choice((1, 31, 32, 33, 64, 100, MAX_LEASES)))):
        back = [n for n in got if rng.random() < 0.01]
        if back:
            served += got[: got.index(back[0])]
            worker.exchange(*(release(n) for n in got[got.index(back[0]) :]))
        else:
            served += got
    assert by_partition(served) == expected(live.order, puts)


@pytest.mark.parametrize("size", [5_000, 200_000, 1_000_000])
def test_an_exchange_brings_no_more_than_its_bytes(live: LiveFrontier, worker: HandWorker, size: int) -> None:
    """The lease that reaches MAX_EXCHANGE_BYTES is the last lease. The next exchange continues after it."""
    count = 2 * MAX_EXCHANGE_BYTES // size + 5
    rng = random.Random(7)
    puts = [put(n, n % 2, payload=b"x" * rng.randint(size // 2, size)) for n in range(count)]
    for i in range(0, count, 4 * 10**6 // size):
        worker.exchange(*puts[i : i + 4 * 10**6 // size])
    served = []
    while (receipt := worker.exchange(want=MAX_LEASES)).leases:
        sizes = [len(lease.payload) for lease in receipt.leases]
        assert sum(sizes[:-1]) < MAX_EXCHANGE_BYTES
        if receipt.census.waiting and len(sizes) < MAX_LEASES:
            assert sum(sizes) >= MAX_EXCHANGE_BYTES
        served += numbers(receipt)
    assert by_partition(served) == expected(live.order, puts)


@pytest.mark.parametrize("huge", [2**31, 2**50, 2**53 + 1, 2**60, 2**63 - 1, 10**30])
def test_huge_priorities_are_served_first_or_last(live: LiveFrontier, worker: HandWorker, huge: int) -> None:
    """Any int is a valid priority. Beyond ±2**49, all priorities are equal."""
    worker.exchange(put(1, huge), put(2, -huge), put(3, 0))
    worker.exchange(put(4, huge, start=True), put(5, -huge, start=True), put(6, huge))
    served = {
        Order.PRIORITY_LIFO: [6, 1, 4, 3, 2, 5],
        Order.PRIORITY_FIFO: [1, 6, 4, 3, 2, 5],
        Order.FIFO: [1, 2, 3, 4, 5, 6],
        Order.LIFO: [6, 5, 4, 3, 2, 1],
    }[live.order]
    assert by_partition(worker.take(9)) == by_partition(served)
    worker.exchange(*(release(n) for n in served[::-1]))
    assert by_partition(worker.take(9)) == by_partition(served)


def test_neighbouring_priorities_stay_apart(
    open_frontier: Callable[..., LiveFrontier], crawl_name: str
) -> None:
    """At the limit and around zero, priorities that differ by one keep their order."""
    priorities = [2**49, 2**49 - 1, 2**49 - 2, 2, 1, 0, -1, -2, 2 - 2**49, 1 - 2**49, -(2**49)]
    for order in PRIORITY_ORDERS:
        live = open_frontier(order, f"{crawl_name}-{order.value}")
        worker = HandWorker(live, "worker")
        shuffled = random.Random(8).sample(range(len(priorities)), len(priorities))
        worker.exchange(*(put(n, priorities[n]) for n in shuffled))
        assert by_partition(worker.take(20)) == by_partition(range(len(priorities)))
        worker.exchange(*(release(n) for n in shuffled))
        assert by_partition(worker.take(20)) == by_partition(range(len(priorities)))


@pytest.mark.parametrize(
    ("order", "queue"),
    [(Order.PRIORITY_LIFO, LifoMemoryQueue), (Order.PRIORITY_FIFO, FifoMemoryQueue)],
    ids=["lifo", "fifo"],
)
@pytest.mark.parametrize(
    ("start_queue", "start_cls"),
    [(StartQueue.FIFO, FifoMemoryQueue), (StartQueue.LIFO, LifoMemoryQueue), (StartQueue.SHARED, None)],
    ids=["start-fifo", "start-lifo", "start-shared"],
)
@pytest.mark.parametrize("seed", range(3))
def test_priority_orders_equal_those_of_scrapy(
    open_frontier: Callable[..., LiveFrontier],
    order: Order,
    queue: type,
    start_queue: StartQueue,
    start_cls: type | None,
    seed: int,
) -> None:
    """Scrapy's own priority queue serves the same requests in the same order.

    Each partition is compared with its own Scrapy queue.
    """
    crawler = Crawler(Spider)
    theirs = {
        partition_of(n): ScrapyPriorityQueue.from_crawler(crawler, queue, "", start_queue_cls=start_cls)
        for n in range(3)
    }
    worker = HandWorker(open_frontier(order), "worker")
    rng = random.Random(seed)
    for n in range(300):
        batch = []
        for i in range(rng.choice((0, 0, 1, 2, 5))):
            number, priority, start = 10 * n + i, rng.randint(-2, 2), rng.random() < 0.3
            meta = {"number": number} | ({"is_start_request": True} if start else {})
            theirs[partition_of(number)].push(Request("data:,", priority=priority, meta=meta))
            batch.append(put(number, priority, start=start_queue if start else StartQueue.SHARED))
        pops = min(rng.choice((0, 1, 1, 3)) if n < 299 else MAX_LEASES, sum(map(len, theirs.values())))
        worker.exchange(*batch)
        taken = worker.take(pops)
        assert len(taken) == pops
        assert taken == [theirs[partition_of(number)].pop().meta["number"] for number in taken]


@pytest.mark.parametrize("live", [Order.PRIORITY_LIFO, Order.LIFO], indirect=True)
def test_redis_6_does_not_walk_a_long_list_for_its_newest_entries(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """If LRANGE reads the end of a long list, Redis 6 walks there from the head, which takes milliseconds.

    So the exchange calls LINDEX for each entry instead.
    """
    if int(live.redis.info("server")["redis_version"].partition(".")[0]) > 6:
        pytest.skip("a newer Redis begins at the nearer end")
    for begin in range(0, 11_000, 1_000):
        worker.exchange(*(put(n, partition=b"") for n in range(begin, begin + 1_000)))
    live.redis.config_resetstat()
    assert len(worker.exchange(want=40).leases) == 40
    called = live.redis.info("commandstats")
    assert called["cmdstat_lindex"]["calls"] >= 40
    assert "cmdstat_lrange" not in called
