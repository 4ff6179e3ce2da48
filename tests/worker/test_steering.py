"""A worker obeys commands within two seconds; a command costs at most one additional exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from scrapy_dq.frontier.admin.control import Command, limit, steer
from scrapy_dq.frontier.model import Hold, Lease
from scrapy_dq.frontier.worker.pace import OneByOne
from support.waiting import Stopwatch
from worker.engine import Crawl, Engine, until

SOON_S = 2.0


@asynccontextmanager
async def busy(crawl: Crawl) -> AsyncIterator[tuple[Engine, asyncio.Future[None]]]:
    """Yield a worker with two endless entries in work and more in its buffer, and its running task."""
    crawl.size = 12
    async with Engine(crawl, concurrency=2) as engine:
        engine.may_end.clear()
        engine.seed(range(12))
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(engine.held) == 2, "two at work")
        await until(lambda: engine.worker.census.in_flight >= 3, "something in the buffer")
        yield engine, running


async def test_a_pause_gives_the_buffer_back_and_lets_work_end(crawl: Crawl, client: redis.Redis) -> None:
    """Entries in work are acked and the others wait in Redis; after `resume` each is done once."""
    async with busy(crawl) as (engine, running):
        said = Stopwatch()
        steer(client, crawl.name, Command.PAUSE)
        await until(lambda: engine.commands, "the command", SOON_S)
        await until(lambda: engine.worker.census.in_flight == 2, "the buffer given back", SOON_S)
        assert said.seconds < SOON_S
        engine.may_end.set()
        await until(lambda: engine.worker.census.in_flight == 0, "the entries in work are acked")
        done = sum(crawl.done.values())
        assert engine.worker.take() is None
        assert engine.worker.on_hold
        await asyncio.sleep(0.05)
        assert sum(crawl.done.values()) == done
        steer(client, crawl.name, Command.RESUME)
        await running
        assert [words.hold for words in engine.commands] == [Hold.PAUSED, Hold.NONE]
    assert crawl.done == crawl.once


async def test_draining_finishes_the_leases_of_a_worker(crawl: Crawl, client: redis.Redis) -> None:
    """The worker finishes its buffer; then nothing is in flight and the rest waits."""
    async with busy(crawl) as (engine, running):
        leased = engine.worker.census.in_flight
        before = sum(crawl.done.values())
        steer(client, crawl.name, Command.DRAIN)
        await until(lambda: engine.commands, "the command", SOON_S)
        engine.may_end.set()
        await until(lambda: engine.worker.census.in_flight == 0, "nothing in flight")
        assert sum(crawl.done.values()) >= before + leased
        assert engine.worker.census.waiting > 0
        running.cancel()


async def test_a_quiet_worker_learns_of_a_command_by_its_heartbeat(crawl: Crawl, client: redis.Redis) -> None:
    """With only delayed entries left, a worker exchanges every ten seconds; a command adds one exchange."""
    async with Engine(crawl) as engine:
        engine.put(1, after_s=60.0)
        engine.seed(())
        await until(lambda: engine.worker.census.only_delayed, "only delayed entries are left")
        await asyncio.sleep(0.1)
        exchanges = engine.counts["exchange"]
        said = Stopwatch()
        steer(client, crawl.name, Command.STOP)
        await until(lambda: engine.commands, "the command", SOON_S)
        assert said.seconds < SOON_S
        assert engine.commands[-1].stops == 1
        await asyncio.sleep(0.1)
        assert engine.counts["exchange"] == exchanges + 1


async def test_new_limits_apply_to_buffered_leases(crawl: Crawl, client: redis.Redis) -> None:
    """The worker releases its buffer and leases again under the new delay; it sends one request at most."""
    async with busy(crawl) as (engine, running):
        limit(client, crawl.name, "", delay_s=30)
        await until(lambda: engine.commands, "the command", SOON_S)
        await until(lambda: engine.worker.census.in_flight <= 3, "the buffer given back", SOON_S)
        sent = len(crawl.sent)
        engine.may_end.set()
        await until(lambda: not engine.works, "the entries in work are done")
        await asyncio.sleep(0.2)
        assert len(crawl.sent) <= sent + 1
        running.cancel()


@pytest.mark.parametrize("how", [Command.DRAIN, Command.PAUSE, None], ids=["drain", "pause", "close"])
async def test_in_strict_order_acks_do_not_wait_for_a_lease_that_never_comes(
    crawl: Crawl, client: redis.Redis, how: Command | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine asks for a lease after each page; on hold or while closing, it gets none."""
    async with Engine(crawl, pace=OneByOne()) as engine:
        engine.seed(range(3))
        leases: list[Lease] = []

        def take() -> int:
            leases.extend(filter(None, [engine.worker.take()]))
            return len(leases)

        await until(lambda: take() == 3, "all leased")
        if how is not None:
            steer(client, crawl.name, how)
            await until(lambda: engine.worker.on_hold, "the command")
        for lease in leases:
            engine.worker.ack(lease.entry_id)
            assert engine.worker.take() is None
        if how is not None:
            await until(lambda: engine.worker.census.in_flight == 0, "the acks stored")
        await engine.stop(5)
    assert not caplog.text
