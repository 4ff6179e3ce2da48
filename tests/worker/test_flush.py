"""A flush deletes a crawl only if none of its workers is alive."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_dq.backend.connection import Connection
from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.admin import liveness
from scrapy_dq.frontier.admin.flush import flush
from scrapy_dq.frontier.answers import Flushed
from scrapy_dq.frontier.calls import Exchange
from scrapy_dq.frontier.model import Census, FrontierRefused, Seeding
from scrapy_dq.frontier.wire import pack_moves
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.settings import Config
from support import stored
from support.live_frontier import put
from support.waiting import Stopwatch
from worker.engine import IDENTITY, ORDER, Crawl

POLL_S = 0.05
TTL_S = 0.4
GONE = own_identity() | {"pid": 2**22 + 1, "pid_start": "1"}
ELSEWHERE = own_identity() | {"host": "elsewhere"}

Dump = Callable[[], dict[bytes, bytes]]


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a flush look at the heartbeats every 50 ms instead of every second."""
    monkeypatch.setattr(liveness, "POLL_S", POLL_S)


@pytest.fixture
def dump(client: redis.Redis, crawl_name: str) -> Dump:
    """Return a function that reads the stored state without the heartbeats."""

    def read() -> dict[bytes, bytes]:
        found = stored.dump(client, crawl_name)
        return {name: value for name, value in found.items() if not name.endswith(b":beats")}

    return read


@asynccontextmanager
async def frontier_of(crawl: Crawl, kind: type[Frontier] = Frontier) -> AsyncIterator[Frontier]:
    connection = Connection(Config(crawl.name, redis_url=crawl.url), Path())
    yield kind(await connection.open(), crawl.name, ORDER)
    await connection.close()


async def add(frontier: Frontier, worker_id: str, identity: dict[str, Any]) -> None:
    """Register a worker, which puts three entries and leases one of them."""
    await frontier.join(worker_id, identity, "epoch", IDENTITY)
    await frontier.exchange(
        Exchange(worker_id, "epoch", 0, 1, 1, Seeding.ACTIVE, 0, pack_moves([put(1), put(2), put(3)]))
    )


@asynccontextmanager
async def beating(frontier: Frontier, worker_id: str) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            await frontier.beats(worker_id, "epoch")
            await asyncio.sleep(POLL_S / 2)

    task = asyncio.create_task(beat())
    yield
    task.cancel()


async def test_a_flush_does_not_wait_for_a_worker_that_died_on_this_machine(crawl: Crawl, dump: Dump) -> None:
    """The leases of the dead worker are deleted with the crawl."""
    async with frontier_of(crawl) as frontier:
        await add(frontier, "a", GONE)
        assert (await asyncio.wait_for(flush(frontier, 600), 60)).deleted == Census(waiting=2, in_flight=1)
        assert not dump()


async def test_a_worker_that_is_silent_is_watched_for_the_ttl(
    crawl: Crawl, dump: Dump, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker on another host may only be slow.

    So the flush logs that it waits, and counts the worker as dead only after the TTL.
    """
    caplog.set_level(logging.INFO, "scrapy_dq")
    async with frontier_of(crawl) as frontier:
        await add(frontier, "silent", ELSEWHERE)
        began, clock = time.monotonic(), Stopwatch()
        assert (await flush(frontier, TTL_S)).deleted == Census(waiting=2, in_flight=1)
        assert time.monotonic() - began >= TTL_S
        assert clock.seconds < TTL_S + 2
        assert not dump()
    [line] = [r.getMessage() for r in caplog.records if r.name == liveness.__name__]
    assert "silent" in line


async def test_a_worker_that_joins_at_the_last_moment_is_seen(crawl: Crawl, dump: Dump) -> None:
    """If a worker joins after the last look, the script refuses the flush, which then watches that worker."""

    class Late(Frontier):
        """A frontier that a worker joins just before its first flush."""

        late = True

        async def flush(self, dead: Any) -> Flushed:
            if self.late:
                self.late = False
                await add(self, "late", ELSEWHERE)
            return await super().flush(dead)

    async with frontier_of(crawl, Late) as frontier:
        await add(frontier, "gone", GONE)
        async with beating(frontier, "late"):
            with pytest.raises(FrontierRefused, match="late"):
                await flush(frontier, 30)
        assert dump()
