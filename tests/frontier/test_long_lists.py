"""With the settings of docs/deploying.md, Redis compresses the inner parts of these long lists.

With `list-compress-depth 1`, Redis 6.2 crashes in this test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from scrapy_dq.frontier.model import MAX_MOVES, Order
from support.live_frontier import HandWorker, LiveFrontier, ack, numbers, put
from support.redis_server import RedisServer, found_kinds

WAIT, WANT = 14_000, 100
PAYLOAD = b"the same in all " * 8


@pytest.fixture(params=found_kinds())
def live(crawl_name: str, request: pytest.FixtureRequest) -> Iterator[LiveFrontier]:
    """Return a frontier that serves newest first, on a separate server."""
    with (
        RedisServer(request.param) as server,
        closing(LiveFrontier(server.url, crawl_name, Order.LIFO)) as live,
    ):
        yield live


def test_a_long_list_is_served_and_grows_at_the_same_end(live: LiveFrontier, worker: HandWorker) -> None:
    """A crawl of one site with the default order has such a list."""
    for first in range(0, WAIT, MAX_MOVES):
        worker.exchange(*(put(n, payload=PAYLOAD) for n in range(first, first + MAX_MOVES)))
    expected = list(range(WAIT))
    leased: list[int] = []
    for first in range(WAIT, WAIT + 9_000, 60):
        new = range(first, first + 60)
        ends = [ack(n) for n in leased]
        leased = numbers(worker.exchange(*(put(n, payload=PAYLOAD) for n in new), *ends, want=WANT))
        expected += new
        assert leased == expected[: -WANT - 1 : -1]
        del expected[-WANT:]
    assert live.count("waiting") == len(expected)
