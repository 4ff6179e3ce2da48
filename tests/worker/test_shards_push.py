"""A push into several shards: it joins each once, waits for all disks, and opens the run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from redis.asyncio import Redis as AsyncRedis

from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.model import Admission, FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker import durability, membership
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.pushing.producer import Producer
from worker.engine import ORDER, Crawl, until
from worker.spread import HORIZON_S, SHARDS, SPREAD, Spread, of


@asynccontextmanager
async def producing(crawl: Crawl, *, durable: bool, shards: int = SHARDS) -> AsyncIterator[Producer]:
    async with AsyncRedis.from_url(crawl.url) as redis:
        producer = Producer(
            [Frontier(redis, crawl.name, ORDER, shard=n) for n in range(shards)],
            replace(SPREAD, shards=shards), WorkerOptions(ttl_s=60.0, rollback_horizon_s=HORIZON_S),
            connect=lambda shard: AsyncRedis.from_url(crawl.url), dropped=lambda put: None, durable=durable,
        )  # fmt: skip
        async with producer.joined():
            yield producer


async def test_a_worker_waits_for_the_disks_of_all_shards_at_once(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With appendfsync everysec, each disk takes up to a second. A worker and a push wait for all at once."""
    waiting = 0

    async def wait_for_all(*args: Any) -> str:
        nonlocal waiting
        waiting += 1
        await until(lambda: waiting >= SHARDS, "all")
        return ""

    monkeypatch.setattr(durability, "wait_until_durable", wait_for_all)
    async with spread.engine() as worker:
        await worker.worker.wait_until_durable(AsyncMock(), time.monotonic() + 5)
    waiting = 0
    async with producing(spread.crawl, durable=True):
        pass


async def test_a_push_whose_join_has_no_answer_joins_once(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push repeats the join under the same id. A second member would keep the run open."""
    monkeypatch.setattr(membership, "JOIN_PATIENCE_S", 0.0)
    join, lost = Frontier.join, iter([True])

    async def without_answer(frontier: Frontier, *args: Any) -> Joined:
        joined = await join(frontier, *args)
        if next(lost, False):
            raise FrontierUnavailable("the answer is lost")
        return joined

    monkeypatch.setattr(Frontier, "join", without_answer)
    async with producing(spread.crawl, durable=False):
        assert spread.members()[0] == 1
    assert spread.members()[0] == 0


@pytest.mark.parametrize("cleared", [False, True])
async def test_a_push_opens_the_run_of_its_puts_in_other_shards(spread: Spread, cleared: bool) -> None:
    """Other workers declared the push dead and finished the run; a push into a cleared run is refused."""
    refused = pytest.raises(FrontierRefused, match="the crawl was deleted or replaced")
    with refused if cleared else nullcontext():
        async with producing(spread.crawl, durable=False) as producer:
            meta = {"cleared": 1} if cleared else {}
            spread.forget_id(0, producer.members[0][1], phase="finished", **meta)
            token = b"%d" % of(2)
            await producer.put(Put(b"%012d" % 1, Admission.SEEN, token, 0, False, token, None))
            await producer.hand_in()
            assert spread.get("phase") == b"open"


async def test_a_push_ends_when_other_workers_have_finished_the_run(spread: Spread) -> None:
    """A finished run applies no exchange without moves, so the push must not wait for an applied one."""
    async with producing(spread.crawl, durable=False, shards=1) as producer:
        await producer.put(Put(b"%012d" % 1, Admission.SEEN, b"token", 0, False, b"payload", None))
        await producer.hand_in()
        spread.set(0, phase="finished")
    assert spread.get("phase") == b"finished"
