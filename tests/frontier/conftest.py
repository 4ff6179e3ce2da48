"""Fixtures of the frontier's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from scrapy_dq.frontier.model import Order, Seen, StartKeys
from scrapy_dq.frontier.scripts import Script
from support import live_frontier
from support.live_frontier import NARROW, PARTITIONINGS, SLOW, HandWorker, LiveFrontier, puts
from support.redis_server import RedisServer
from support.sharded_crawl import Crawl
from support.torn import EachStop, Stopper


@pytest.fixture(autouse=True)
def partitioning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the test's parameter choose the partitions that `put` uses. By default, it uses no partitions."""
    name = getattr(request, "param", "none")
    monkeypatch.setattr(live_frontier, "partitioning", PARTITIONINGS[name])
    return name


@pytest.fixture
def open_frontier(redis_server: RedisServer, crawl_name: str) -> Iterator[Callable[..., LiveFrontier]]:
    """Yield a function that returns the frontier of a crawl. At the end of the test, the crawl is deleted."""
    with ExitStack() as frontiers:

        def open_one(
            order: Order = Order.PRIORITY_LIFO, crawl: str = crawl_name, seen: Seen = Seen.EXACT
        ) -> LiveFrontier:
            return frontiers.enter_context(closing(LiveFrontier(redis_server.url, crawl, order, seen)))

        yield open_one


@pytest.fixture
def live(open_frontier: Callable[..., LiveFrontier]) -> LiveFrontier:
    """Return a frontier that serves the oldest entry first. Tests number the entries in this order."""
    return open_frontier(Order.FIFO)


@pytest.fixture
def worker(live: LiveFrontier) -> HandWorker:
    """Return a worker that has joined. Its first exchange reports its start() as complete (level 0)."""
    return HandWorker(live, "worker")


@pytest.fixture
def other(live: LiveFrontier, worker: HandWorker) -> HandWorker:
    """Return a second worker, of the same crawl."""
    return HandWorker(live, "other")


@pytest.fixture
def sound(live: LiveFrontier) -> Iterator[None]:
    """Check after the test that the stored state is consistent."""
    yield
    live.state()


@pytest.fixture
def slow(live: LiveFrontier) -> HandWorker:
    """Return a worker of a crawl with a delay of 100 s. Ten entries wait in partition a."""
    worker = HandWorker(live, "slow", SLOW)
    worker.exchange(*puts(b"a", 10))
    return worker


@pytest.fixture
def narrow(live: LiveFrontier) -> HandWorker:
    """Return a worker of a crawl with a concurrency of 2. Ten entries wait in partition a."""
    worker = HandWorker(live, "narrow", NARROW)
    worker.exchange(*puts(b"a", 10))
    return worker


@pytest.fixture
def crawl_of(redis_server: RedisServer, crawl_name: str) -> Iterator[Callable[..., Crawl]]:
    with ExitStack() as crawls:
        yield lambda seen, partitioned, order=Order.FIFO, name="", url="": crawls.enter_context(
            closing(Crawl(url or redis_server.url, name or crawl_name, seen, partitioned, order))
        )


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], None]:
    """Return a function that makes the n-th script call fail, before or after Redis runs the script."""
    call = Script.call
    left = [0, False]

    async def counted(self: Script, *args: Any) -> Any:
        left[0] -= 1
        chosen = left[0] == 0
        if chosen and not left[1]:
            raise ConnectionError
        reply = await call(self, *args)
        if chosen:
            raise ConnectionError
        return reply

    def fail_at(n: int, late: bool) -> None:
        left[:] = n, late

    monkeypatch.setattr(Script, "call", counted)
    return fail_at


@pytest.fixture
def each_stop(redis_server: RedisServer, crawl_name: str, monkeypatch: pytest.MonkeyPatch) -> EachStop:
    """Return a function that yields frontiers, each with a function that stops the script *transition*.

    In the first frontier, the script is stopped at its first write, and in each further frontier one write
    later.
    """

    def each(
        transition: str, words: str, seen: Seen = Seen.EXACT, fed: StartKeys | None = None, least: int = 2
    ) -> Iterator[Any]:
        reached, at = True, 0
        while reached:
            at += 1
            reached = False
            args = (redis_server.url, f"{crawl_name} {at}", Order.PRIORITY_LIFO, seen, fed)
            with closing(LiveFrontier(*args)) as live:
                stopper = Stopper(live, monkeypatch, words)

                def stop(call: Callable[[], Any], stopper: Stopper = stopper, at: int = at) -> Any:
                    nonlocal reached
                    reached, answer = stopper.stop(transition, at, call)
                    return answer

                yield live, stop
        assert at > least, f"the script was stopped at {at - 1} writes, not at {least} or more"

    return each


@pytest.fixture
def elsewhere(redis_server: RedisServer) -> str:
    """Return the URL of another database of this server. Tests use it as if it were another Redis."""
    return f"{redis_server.url.removesuffix('/0')}/1"
