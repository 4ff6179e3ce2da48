"""The list of the next requests has the order of the leases. The command reads little more than it shows."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.admin.backlog import upcoming
from scrapy_dq.frontier.model import Order
from support.live_frontier import HandWorker, LiveFrontier, numbers, put, release
from support.redis_server import RedisServer


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("partitions", [1, 3, 30])
def test_entries_are_listed_in_the_order_of_the_leases(
    server: RedisServer, crawl_name: str, order: Order, partitions: int
) -> None:
    """Some entries have other ranks, and some were returned."""
    live = LiveFrontier(server.url, crawl_name, order)
    worker = HandWorker(live, "worker")
    worker.exchange(
        *[put(n, n % 3, start=n % 5 == 0, partition=b"p%d" % (n * n % partitions)) for n in range(60)]
    )
    worker.exchange(want=12)
    worker.exchange(*[release(int(entry)) for entry in sorted(worker.held)[::2]])
    other = HandWorker(live, "other")
    before = live.dump()
    for count in (1, 7, 54, 100):
        assert len({entry.entry_id for entry in upcoming(live.redis, live.crawl, count)}) == min(count, 54)
    assert live.dump() == before
    told = [int(entry.entry_id) for entry in upcoming(live.redis, live.crawl, 20)]
    leased = numbers(other.exchange(want=20))
    assert told == leased
    live.close()


def test_large_entries_are_read_up_to_a_bound(live: LiveFrontier, worker: HandWorker) -> None:
    """Out of 12 MB, the list shows at most 4 MiB and one more entry, and reads only a few entries more."""
    for n in range(0, 20, 2):
        worker.exchange(
            put(n, payload=b"x" * 600_000), put(n + 1, payload=b"x" * 600_000, partition=b"p%d" % n)
        )
    live.redis.config_resetstat()
    assert len(upcoming(live.redis, live.crawl, 20)) == 7
    assert live.redis.info("commandstats")["cmdstat_lindex"]["calls"] <= 16


def commands_of(live: LiveFrontier, count: int) -> tuple[int, int]:
    """Return the numbers of shown entries and of Redis commands, for *count* requested entries."""
    live.redis.config_resetstat()
    shown_ = len(upcoming(live.redis, live.crawl, count))
    return shown_, sum(of["calls"] for of in live.redis.info("commandstats").values())


def test_each_entry_is_read_once_for_any_number_of_entries(live: LiveFrontier, worker: HandWorker) -> None:
    """One long partition among many short ones needs as many rounds as it has entries."""
    worker.exchange(*[put(n, partition=b"long") for n in range(300)])
    worker.exchange(*[put(300 + n, partition=b"short %d" % n) for n in range(199)])
    shown_, commands = commands_of(live, 1000)
    assert shown_ == 499
    assert commands < 499 * 10
    live.redis.delete(live.key("backlog:0:long"))
    assert commands_of(live, 300)[0] == 199
