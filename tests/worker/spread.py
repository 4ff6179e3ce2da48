"""A crawl over several shards of one Redis, its worker, and what is stored there, past the worker."""

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
    """No exchange of this part gets through, and it has noticed. Yield what is called instead."""
    error = FrontierUnavailable("cut off")
    with patch.object(part.frontier, "exchange", side_effect=error) as exchange:
        await until(lambda: part.outage, "the outage")
        yield exchange


class Spread:
    """A crawl of SHARDS shards, and what is stored there, past its workers."""

    def __init__(self, crawl: Crawl, redis: Redis) -> None:
        self.crawl, self.redis = crawl, redis

    def engine(self, **options: Any) -> Engine:
        """Return a worker whose puts are soon certain."""
        return Engine(self.crawl, identity=SPREAD, rollback_horizon_s=HORIZON_S, **options)

    def key(self, shard: int, name: str = "meta") -> str:
        return keys.prefix(keys.Shard(self.crawl.name, shard)) + name

    def get(self, field: str, shard: int = 0) -> bytes | None:
        return self.redis.hget(self.key(shard), field)  # type: ignore[return-value]

    def set(self, shard: int, **meta: Any) -> None:
        self.redis.hset(self.key(shard), mapping=meta)

    def metas(self, field: str) -> list[bytes | None]:
        """Return what all shards say of their run."""
        return [self.get(field, shard) for shard in range(SHARDS)]

    def members(self) -> list[int]:
        """Return how many members each shard has."""
        return [self.redis.scard(self.key(shard, "members")) for shard in range(SHARDS)]  # type: ignore[misc]

    def peek(self) -> Overview:
        return peek(self.redis, self.crawl.name)

    def retry(self) -> int:
        """Retry all that failed; return how many."""
        return retry(self.redis, self.crawl.name, self.peek(), failed=lambda record: True).failed

    def fence(self, shard: int, worker_id: str) -> None:
        self.redis.hset(self.key(shard, f"worker:{worker_id}"), "fenced", 1)

    def forget(self, shard: int, worker: Engine, **meta: Any) -> None:
        """As `forget_id`, of a worker's id there."""
        self.forget_id(shard, worker.parts[shard].id, **meta)

    def forget_id(self, shard: int, worker_id: str, **meta: Any) -> None:
        """Change what a shard says of its run; it has no record of the worker any more.

        At once: an exchange that saw half of it would be answered otherwise.
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
    """Return an entry of a shard, which no link leads to."""
    return next(n for n in range(1000, 2000) if place(n) == shard)


async def leased(worker: Engine) -> Lease:
    """Wait for a lease, and take it."""
    found: list[Lease] = []
    await until(lambda: found.extend(filter(None, [worker.worker.take()])) or found, "lease")
    return found[0]


async def fail_one(worker: Engine, number: int) -> None:
    """Seed one request, and let it fail; then nothing is left."""
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
