"""Two workers crawl start URLs from Redis. One is killed, but each URL is crawled."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
import redis

from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl
from support.tree_spider import FED
from support.waiting import wait_until

QUICK = (
    FED
    + """
    custom_settings = {"MAX_IDLE_TIME_BEFORE_CLOSE": 3}
    parse = TreeSpider.leaf
"""
)
BATCH = 100


def feed(client: redis.Redis, kind: str, key: str, urls: Iterable[str]) -> None:
    """Push *urls* in batches, slightly faster than the workers take them from the start key."""
    waiting = {"list": client.llen, "SET": client.scard, "ZSET": client.zcard, "STREAM": lambda _: 0}[kind]
    left = iter(urls)
    while batch := list(islice(left, BATCH)):
        if kind == "list":
            client.rpush(key, *batch)
        elif kind == "SET":
            client.sadd(key, *batch)
        elif kind == "STREAM":
            for url in batch:
                client.xadd(key, {"url": url})
        else:
            client.zadd(key, dict.fromkeys(batch, time.time()))
        wait_until(lambda: int(waiting(key)) < 2 * BATCH, f"{kind} is taken from", 60)  # type: ignore[arg-type]


def assert_acknowledged(client: redis.Redis, crawl: FaultCrawl, count: int) -> None:
    """Assert that the consumer group has read each message, and that no message is pending."""
    key = f"{crawl.project.name}:start_urls"
    (group,) = client.xinfo_groups(key)
    assert group["last-delivered-id"] == client.xinfo_stream(key)["last-generated-id"]
    assert (client.xlen(key), group["pending"]) == (count, 0)


@pytest.mark.parametrize("count", [400, pytest.param(100_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("kind", "shards"), [("list", 1), ("SET", 1), ("ZSET", 1), ("STREAM", 1), ("list", 3), ("STREAM", 3)]
)
def test_each_url_that_was_fed_is_crawled(kind: str, shards: int, count: int, fault_crawl: MakeCrawl) -> None:
    """At most the killed worker's leases are crawled twice."""
    settings: dict[str, Any] = {"DQ_WORKER_TTL": 30, "LOG_LEVEL": "INFO", "DQ_SHARDS": shards}
    if kind != "list":
        settings[f"REDIS_START_URLS_AS_{kind}"] = True
    crawl = fault_crawl(
        start_urls=[], site={"pages": count, "latency_s": 0.0}, settings=settings, spider=QUICK
    )
    began = time.monotonic()
    victim, _ = crawl.start(2)
    urls = [crawl.site.url(f"/p/{k}") for k in range(count)]
    with crawl.redis.client() as client:
        key = f"{crawl.project.name}:start_urls"
        feed(client, kind, key, urls[: count // 2])
        wait_until(lambda: crawl.overview().census.done >= count // 4, "a quarter is done", 60 + count / 50)
        crawl.kill(victim)
        crawl.start()
        feed(client, kind, key, urls[count // 2 :])
        verdict = crawl.end(60 + count / 50)
        seconds = time.monotonic() - began
        crawl.note(verdict, leases_at_kill=crawl.leases_at_kills, pages_per_s=f"{count / seconds:.0f}")
        crawl.assert_whole(verdict, crawl.leases_at_kills)
        if kind == "STREAM":
            assert_acknowledged(client, crawl, count)
        else:
            assert not client.exists(key)
    assert crawl.overview().phase == "finished"


def test_a_stream_feeds_a_crawl_whose_redis_is_rolled_back(fault_crawl: MakeCrawl) -> None:
    """A worker is also killed. At the end, the workers have acknowledged each message."""
    count = 400
    crawl = fault_crawl(
        start_urls=[],
        site={"pages": count},
        settings={"DQ_ROLLBACK_HORIZON": 10, "REDIS_START_URLS_AS_STREAM": True},
        spider=QUICK.replace("= {", "= {'DOWNLOAD_DELAY': 0.02, "),
    )
    crawl.start(2)
    urls = map(crawl.site.url, sorted(crawl.site.paths))
    with crawl.redis.client() as client:
        feed(client, "STREAM", f"{crawl.project.name}:start_urls", urls)
    for part in (0.2, 0.4):
        crawl.wait_for_part(part)
        snapshot = crawl.redis.snapshot()
        crawl.wait_for(len(crawl.done) + 20)
        crawl.kill(crawl.live[0])
        crawl.redis.roll_back(snapshot)
        crawl.start()
    verdict = crawl.end(120)
    crawl.note(verdict)
    assert not verdict.lost
    assert verdict.reasons == ("finished", "finished")
    with crawl.redis.client() as client:
        assert_acknowledged(client, crawl, count)
