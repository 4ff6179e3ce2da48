"""What was fed, expanded by a worker that was cut off meanwhile: crawled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.model import Ack, Admission, Lease, Order, Put, StartKeys
from scrapy_dq.frontier.worker.protocol import WorkerProtocol
from support.live_frontier import IDENTITY
from support.redis_server import RedisServer
from support.spoken import Spoken

MARK = b"\x02"
HORIZON_S = 0.2


@asynccontextmanager
async def worker(url: str, crawl: str) -> AsyncIterator[tuple[Spoken, redis.asyncio.Redis]]:
    client = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0))
    keys = StartKeys("list", (f"{crawl}:start",), MARK)
    frontier = Frontier(client, crawl, Order.FIFO, start_keys=keys)
    driver = Spoken(frontier, IDENTITY, HORIZON_S)
    driver.protocol.listening, driver.protocol.seeding = True, 0
    await driver.join("an-epoch")
    yield driver, client
    await client.aclose()


def expand(protocol: WorkerProtocol, lease: Lease) -> None:
    """Put two children, whose ids follow from the lease's, and end it: as the scheduler does."""
    for n in (1, 2):
        child = lease.entry_id[:8] + b"%04d" % n
        payload = b"child %d" % n
        protocol.outbox.append(
            Put(child, Admission.ID, child, 0, False, payload, parent=lease.entry_id, once=True)
        )
    settle(protocol, lease)


def settle(protocol: WorkerProtocol, lease: Lease) -> None:
    ack = Ack(lease.entry_id)
    assert protocol.leases.settle(ack)
    protocol.outbox.append(ack)


async def work(driver: Spoken, crawled: list[bytes], rounds: int) -> None:
    protocol = driver.protocol
    for _ in range(rounds):
        await driver.exchange(8)
        while (lease := protocol.leases.take(0.0)) is not None:
            if lease.payload.startswith(MARK):
                expand(protocol, lease)
            else:
                crawled.append(lease.payload)
                settle(protocol, lease)
        await asyncio.sleep(0.04)


def test_its_children_are_not_stored_again(redis_server: RedisServer, crawl_name: str) -> None:
    """Another worker has put them and forgotten that it has: who lost the lease drops its puts with it."""

    async def scenario() -> list[bytes]:
        crawled: list[bytes] = []
        async with (
            worker(redis_server.url, crawl_name) as (cut_off, client),
            worker(redis_server.url, crawl_name) as (other, _),
        ):
            await client.rpush(f"{crawl_name}:start", b"http://localhost/")
            await cut_off.exchange(8)
            lease = cut_off.protocol.leases.take(0.0)
            assert lease is not None
            expand(cut_off.protocol, lease)  # Redis cannot be reached from it
            frontier, dead, now = other.frontier, cut_off.protocol.id, other.protocol
            await frontier.fence(dead, now.epoch, now.run)
            await frontier.drain(dead, now.epoch, now.run, 100, 3)
            await work(other, crawled, 14)
            assert sorted(crawled) == [b"child 1", b"child 2"]
            for _ in range(3):
                await cut_off.exchange(0)  # it can be reached again: RESYNC, rejoin, and what is left
            await work(other, crawled, 4)
        return crawled

    assert sorted(asyncio.run(scenario())) == [b"child 1", b"child 2"]
