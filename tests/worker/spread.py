"""A crawl over several shards of one Redis, its worker, and direct access to the stored state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

from redis import Redis

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.overview import Overview, peek
from scrapy_dq.frontier.admin.retry import retry
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import Census, FrontierUnavailable, Lease
from scrapy_dq.frontier.worker.worker import Worker
from worker.engine import IDENTITY, Crawl, Engine, until

SHARDS = 3
SPREAD = replace(IDENTITY, shards=SHARDS)
HORIZON_S = 0.3


@asynccontextmanager
async def cut_off(part: Worker) -> AsyncIterator[Mock]:
    """Make every exchange of *part* fail, wait for its outage, and yield the mock that is called instead."""
    error = FrontierUnavailable("cut off")
    with patch.object(part.frontier, "exchange", side_effect=error) as exchange:
        await until(lambda: part.outage, "the outage")
        yield exchange


class Spread:
    """A crawl of SHARDS shards, with direct access to its stored state."""

    def __init__(self, crawl: Crawl, redis: Redis) -> None:
        self.crawl, self.redis = crawl, redis

    def engine(self, **options: Any) -> Engine:
        """Return a worker with a short roll-back horizon, so that its puts are soon certain."""
        return Engine(self.crawl, identity=SPREAD, rollback_horizon_s=HORIZON_S, **options)

    def key(self, shard: int, name: str = "meta") -> str:
        return keys.prefix(keys.Shard(self.crawl.name, shard)) + name

    def get(self, field: str, shard: int = 0) -> bytes | None:
        return self.redis.hget(self.key(shard), field)  # type: ignore[return-value]

    def set(self, shard: int, **meta: Any) -> None:
        self.redis.hset(self.key(shard), mapping=meta)

    def metas(self, field: str) -> list[bytes | None]:
        """Return a field of each shard's `meta`."""
        return [self.get(field, shard) for shard in range(SHARDS)]

    def members(self) -> list[int]:
        """Return how many members each shard has."""
        return [self.redis.scard(self.key(shard, "members")) for shard in range(SHARDS)]  # type: ignore[misc]

    def peek(self) -> Overview:
        return peek(self.redis, self.crawl.name)

    def retry(self) -> int:
        """Retry all failed requests; return their number."""
        return retry(self.redis, self.crawl.name, self.peek(), failed=lambda record: True).failed

    def fence(self, shard: int, worker_id: str) -> None:
        self.redis.hset(self.key(shard, f"worker:{worker_id}"), "fenced", 1)

    def forget(self, shard: int, worker: Engine, **meta: Any) -> None:
        """Call `forget_id` with the worker's id in that shard."""
        self.forget_id(shard, worker.parts[shard].id, **meta)

    def forget_id(self, shard: int, worker_id: str, **meta: Any) -> None:
        """Change a shard's `meta` and delete its record of the worker, in one transaction.

        An exchange between the two changes would get another answer.
        """
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hset(self.key(shard), mapping=meta)
            pipe.srem(self.key(shard, "members"), worker_id)
            pipe.delete(self.key(shard, f"worker:{worker_id}"))
            pipe.execute()


def place(number: int) -> int:
    """Return the shard of an entry."""
    return shard_of(b"", b"%d" % number, SHARDS)


def of(shard: int) -> int:
    """Return the number of an entry that lies in a shard and is no other entry's child."""
    return next(n for n in range(1000, 2000) if place(n) == shard)


async def leased(worker: Engine) -> Lease:
    """Wait for a lease, and take it."""
    found: list[Lease] = []
    await until(lambda: found.extend(filter(None, [worker.worker.take()])) or found, "lease")
    return found[0]


async def fail_one(worker: Engine, number: int) -> None:
    """Seed one request and let it fail, so that nothing is left."""
    worker.seed([number])

    def failed() -> bool:
        lease = worker.worker.take()
        if lease is not None:
            worker.worker.fail(lease.entry_id, "no", "url")
        return lease is not None

    await until(failed, "lease")
    await until(lambda: not worker.worker.pending, "end")


def stored(census: Census) -> int:
    return census.waiting + census.in_flight
