"""Fixtures of the frontier's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from scrapy_dq.frontier.model import Order
from support.live_frontier import HandWorker, LiveFrontier
from support.redis_server import RedisServer


@pytest.fixture
def open_frontier(redis_server: RedisServer, crawl_name: str) -> Iterator[Callable[..., LiveFrontier]]:
    """Yield a function that returns the frontier of a crawl; it is deleted at the end of the test."""
    with ExitStack() as frontiers:

        def open_one(order: Order = Order.PRIORITY_LIFO, crawl: str = crawl_name) -> LiveFrontier:
            return frontiers.enter_context(closing(LiveFrontier(redis_server.url, crawl, order)))

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
