"""Fixtures of the frontier's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from scrapy_dq.frontier.model import Order, Seen
from support import live_frontier
from support.live_frontier import NARROW, PARTITIONINGS, SLOW, HandWorker, LiveFrontier, puts
from support.redis_server import RedisServer


@pytest.fixture(autouse=True)
def partitioning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have `put` choose partitions as the module says; without a word of it, there is but one."""
    name = getattr(request, "param", "none")
    monkeypatch.setattr(live_frontier, "partitioning", PARTITIONINGS[name])
    return name


@pytest.fixture
def open_frontier(redis_server: RedisServer, crawl_name: str) -> Iterator[Callable[..., LiveFrontier]]:
    """Yield a function that returns the frontier of a crawl; it is deleted at the end of the test."""
    with ExitStack() as frontiers:

        def open_one(
            order: Order = Order.PRIORITY_LIFO, crawl: str = crawl_name, seen: Seen = Seen.EXACT
        ) -> LiveFrontier:
            return frontiers.enter_context(closing(LiveFrontier(redis_server.url, crawl, order, seen)))

        yield open_one


@pytest.fixture
def live(open_frontier: Callable[..., LiveFrontier]) -> LiveFrontier:
    """Return a frontier that serves oldest first: entries leave in the order of their numbers."""
    return open_frontier(Order.FIFO)


@pytest.fixture
def worker(live: LiveFrontier) -> HandWorker:
    """Return a worker that has joined; it is seeding until an exchange says otherwise."""
    return HandWorker(live, "worker")


@pytest.fixture
def other(live: LiveFrontier, worker: HandWorker) -> HandWorker:
    """Return a second worker, of the same crawl."""
    return HandWorker(live, "other")


@pytest.fixture
def sound(live: LiveFrontier) -> Iterator[None]:
    """See to it that what a test leaves behind contradicts itself nowhere."""
    yield
    live.state()


@pytest.fixture
def slow(live: LiveFrontier) -> HandWorker:
    """Return a worker of a crawl with a delay of 100 s; in partition a ten entries wait."""
    worker = HandWorker(live, "slow", SLOW)
    worker.exchange(*puts(b"a", 10))
    return worker


@pytest.fixture
def narrow(live: LiveFrontier) -> HandWorker:
    """Return a worker of a crawl with a concurrency of 2; in partition a ten entries wait."""
    worker = HandWorker(live, "narrow", NARROW)
    worker.exchange(*puts(b"a", 10))
    return worker
