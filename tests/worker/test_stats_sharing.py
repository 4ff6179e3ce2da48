"""When a worker reports its counts, and their fate if no answer comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
import redis
from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_dq.frontier import shared_stats
from scrapy_dq.stats.collector import MAX_DELTAS, SharedStats, StatsSharing
from support.proxy import RedisProxy
from support.stored import dump, roll_back
from support.waiting import Stopwatch
from worker.engine import Crawl, Engine, until

NEVER_S = 1000.0

Read = Callable[[], dict[str, float]]


@pytest.fixture
def read(client: redis.Redis, crawl_name: str) -> Read:
    return lambda: shared_stats(client, crawl_name)


@asynccontextmanager
async def sharing(
    engine: Engine, interval_s: float = NEVER_S
) -> AsyncIterator[tuple[SharedStats, StatsSharing]]:
    stats = SharedStats(Crawler(Spider))
    with patch("scrapy_dq.stats.collector.EVERY_S", interval_s):
        shared = StatsSharing(stats, engine.frontier, engine.worker)
        yield stats, shared
        await shared.end()


async def test_a_lost_reply_counts_once(crawl: Crawl, proxy: RedisProxy, read: Read) -> None:
    """The worker repeats the same bytes under the same number; later counts follow."""
    async with Engine(crawl, url=proxy.url) as engine, sharing(engine, 0.05) as (stats, shared):
        cut = proxy.cut_next_reply(containing=b"a counted stat")
        stats.inc_value("a counted stat", 5)
        await until(lambda: cut.fired, "the reply is lost")
        stats.inc_value("a counted stat", 2)
        await until(lambda: read().get("a counted stat") == 7, "the later count is reported")
        await shared.share()
        assert read() == {"a counted stat": 7}


async def test_a_lost_reply_and_a_rejoin_count_once(crawl: Crawl, proxy: RedisProxy, read: Read) -> None:
    """The worker is fenced, drained and registered again before it can repeat its unanswered report."""
    async with Engine(crawl, url=proxy.url) as engine, sharing(engine) as (stats, shared):
        proxy.cut_next_reply(containing=b"a counted stat")
        stats.inc_value("a counted stat", 5)
        with pytest.raises(Exception, match="does not answer"):
            await shared.share()
        former = engine.worker.id
        await engine.frontier.fence(former, engine.worker.epoch, engine.worker.run)
        await engine.frontier.drain(former, engine.worker.epoch, engine.worker.run, 100, 3)
        await until(lambda: engine.worker.id != former, "the worker registers again")
        await shared.share()
        assert read() == {"a counted stat": 5}


async def test_stats_of_an_outage_are_only_delayed(
    crawl: Crawl, proxy: RedisProxy, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts from an outage are reported when Redis is back, and nothing is logged about the delay."""
    async with Engine(crawl, url=proxy.url, timeout_s=0.2) as engine, sharing(engine, 0.05) as (stats, _):
        stats.inc_value("a", 1)
        await until(lambda: read().get("a") == 1, "the stat is reported")
        proxy.refuse()
        for _ in range(10):
            stats.inc_value("a", 1)
            await asyncio.sleep(0.03)
        proxy.pass_through()
        await until(lambda: read().get("a") == 11, "the stat is reported")
    assert not [record for record in caplog.records if record.name == "scrapy_dq.repeated"]


async def test_the_remaining_stats_are_reported_in_bounded_steps_at_the_end(crawl: Crawl, read: Read) -> None:
    """There may be more stats than one trip carries, and the worker may have left."""
    async with Engine(crawl) as engine, sharing(engine) as (stats, shared):
        for n in range(MAX_DELTAS * 2 + 1):
            stats.inc_value(f"stat/{n}")
        await shared.end()
        assert len(read()) == MAX_DELTAS * 2 + 1
        engine.seed(())
        await engine.stop()
        stats.inc_value("stat/0")
    assert read()["stat/0"] == 2


async def test_the_end_does_not_wait_for_a_redis_that_is_unavailable(crawl: Crawl, proxy: RedisProxy) -> None:
    """The end waits a second at most, and the counts are lost."""
    async with Engine(crawl, url=proxy.url, timeout_s=100) as engine:
        stats = SharedStats(Crawler(Spider))
        shared = StatsSharing(stats, engine.frontier, engine.worker)
        stats.inc_value("a")
        proxy.black_hole()
        began = Stopwatch()
        await shared.end()
        assert began.seconds < 3
        proxy.pass_through()


async def test_a_roll_back_loses_only_the_forgotten_stats(
    crawl: Crawl, client: redis.Redis, read: Read
) -> None:
    """Reports that Redis has forgotten are lost. Later reports count."""
    async with Engine(crawl) as engine, sharing(engine) as (stats, shared):
        stats.inc_value("a", 1)
        await shared.share()
        snapshot = dump(client, crawl.name)
        stats.inc_value("a", 2)
        await shared.share()
        roll_back(client, crawl.name, snapshot)
        stats.inc_value("a", 4)
        await shared.share()
        assert read() == {"a": 5}
