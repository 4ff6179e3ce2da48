"""Lists so long that Redis compresses their inner parts, with the settings of docs/deploying.md.

Redis 6.2 dies in all of these tests with `list-compress-depth 1`. So each has a server of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from scrapy_dq.frontier.admin.backlog import upcoming
from scrapy_dq.frontier.model import MAX_MOVES, Order
from support.live_frontier import HandWorker, LiveFrontier, ack, numbers, put, release
from support.redis_server import RedisServer, found_kinds

WAIT, WANT = 14_000, 100
PAYLOAD = b"the same in all " * 8


@pytest.fixture(params=found_kinds())
def live(crawl_name: str, request: pytest.FixtureRequest) -> Iterator[LiveFrontier]:
    """Return a frontier that serves newest first, on a server of its own."""
    with (
        RedisServer(request.param) as server,
        closing(LiveFrontier(server.url, crawl_name, Order.LIFO)) as live,
    ):
        yield live


def fill(worker: HandWorker, count: int) -> None:
    for first in range(0, count, MAX_MOVES):
        worker.exchange(*(put(n, payload=PAYLOAD) for n in range(first, min(count, first + MAX_MOVES))))


def test_a_long_list_is_served_and_grows_at_the_same_end(live: LiveFrontier, worker: HandWorker) -> None:
    """As of any crawl with the default order, of one site."""
    fill(worker, WAIT)
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


def test_what_was_given_back_is_compared_with_the_end_of_a_list(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """What is served next there may be in another part than what was granted before, by the same script."""
    fill(worker, 2_000)
    random = Random(1)
    for turn in range(300):
        leased = numbers(worker.exchange(want=random.randint(1, 40)))
        back = {n for n in leased if random.random() < 0.3}
        ends = (release(n) if n in back else ack(n) for n in leased)
        worker.exchange(*ends, *(put(10_000 + 30 * turn + n, payload=PAYLOAD) for n in range(14)))
    assert live.count("waiting") > 1_000


def test_a_look_at_what_is_next_harms_nothing(live: LiveFrontier, worker: HandWorker) -> None:
    fill(worker, 2_000)
    assert len(upcoming(live.redis, live.crawl, 500)) == 500
    for turn in range(300):
        (leased,) = numbers(worker.exchange(want=1))
        assert leased == 1_999 - turn
        worker.exchange(ack(leased))
    worker.exchange(*(put(n, payload=PAYLOAD) for n in range(3_000, 3_100)))
    assert live.count("waiting") == 1_800
