"""A crawl over several shards of one Redis: docs/internals/shards.md."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from redis import Redis

from scrapy_dq.frontier import keys
from worker.engine import IDENTITY, Crawl, Engine

SHARDS = 3
SPREAD = replace(IDENTITY, shards=SHARDS)
HORIZON_S = 0.3


def engine(crawl: Crawl, **options: Any) -> Engine:
    return Engine(crawl, identity=SPREAD, rollback_horizon_s=HORIZON_S, **options)


async def test_a_tree_is_crawled_by_two_workers_and_ends_for_both(crawl: Crawl, client: Redis) -> None:
    """Each entry once, in all shards; the last to leave clears up all but the tombstones."""
    crawl.size = 300
    async with engine(crawl, work_s=0.002) as a, engine(crawl, work_s=0.002) as b:
        a.seed()
        b.seed()
        await asyncio.gather(a.run(), b.run())
        assert crawl.started == crawl.done == crawl.once
        done = [
            client.hget(keys.meta(keys.Shard(crawl.name, shard)), "counts").split()[3]
            for shard in range(SHARDS)
        ]  # type: ignore[union-attr]
        assert min(map(int, done)) > 50
        assert sum(map(int, done)) == 300
        assert a.worker.census.done == b.worker.census.done == 300
        await a.stop()
        await b.stop()
    left = {
        key
        for shard in range(SHARDS)
        for key in client.scan_iter(keys.prefix(keys.Shard(crawl.name, shard)) + "*")
    }
    print(sorted(left))
    for shard in range(SHARDS):
        assert client.hget(keys.meta(keys.Shard(crawl.name, shard)), "phase") == b"finished"
