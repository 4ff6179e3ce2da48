"""Partitions and times in workers: handing out leases, reporting sendings, waking workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import redis

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Lease, Limits
from scrapy_dq.frontier.worker import pace
from support.proxy import RedisProxy
from support.waiting import Stopwatch
from worker.engine import IDENTITY, Crawl, Engine, call_of, until

A, B = b"a.com", b"b.com"
EARLY_S = 0.005
"""Tolerance in seconds: times are sent in whole milliseconds, and come from two clocks."""


def limited(delay_s: float = 0, concurrency: int = 0) -> dict[str, object]:
    """Return the Engine options of a crawl with limits."""
    return {"identity": replace(IDENTITY, limits=Limits(delay_s, concurrency))}


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker that nothing wakes exchange only every ten minutes, so not within a test."""
    for name in ("IDLE_FIRST_S", "IDLE_LONGEST_S", "QUIET_LONGEST_S"):
        monkeypatch.setattr(pace, name, 600.0)


@pytest.fixture
def far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers take leases up to a second ahead, as from a distant Redis."""
    monkeypatch.setattr(pace, "MIN_AHEAD_S", 1.0)


def in_redis(client: redis.Redis, crawl: Crawl) -> Callable[[str], int]:
    """Return a function that counts the fields of one of the crawl's hashes."""
    return lambda name: client.hlen(keys.prefix(crawl.name) + name)  # type: ignore[no-any-return, return-value]


# Times of sending


@pytest.mark.usefixtures("far_ahead", "seldom")
async def test_a_lease_is_not_handed_out_before_its_time_and_its_owner_is_woken_then(
    crawl: Crawl,
) -> None:
    """Four leases come with one exchange, and the worker itself remembers the time of each."""
    crawl.size = 0
    async with Engine(crawl, **limited(0.25)) as engine:
        for number in range(4):
            engine.put(number, partition=A)
        engine.seed(())
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.worker.parts[0].leases.buffered >= 2, "leases ahead")
        await running
        assert [sending.number for sending in crawl.sent] == [0, 1, 2, 3]
        assert min(crawl.gaps(A)) >= 0.25 - EARLY_S


@pytest.mark.usefixtures("far_ahead", "seldom")
async def test_leases_that_wait_for_a_late_request_are_sent_after_it(crawl: Crawl) -> None:
    """The sending of the late request wakes the worker, so no lease waits for the end of a download."""
    crawl.size = 0
    async with Engine(crawl, **limited(0.2)) as engine:
        engine.may_send.clear()
        engine.may_end.clear()
        for number in range(3):
            engine.put(number, partition=A)
        engine.seed(())
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "the first request is held back")
        await asyncio.sleep(0.5)
        assert len(engine.works) == 1
        engine.may_send.set()
        await until(lambda: len(crawl.sent) == 3, "all are sent")
        assert min(crawl.gaps(A)) >= 0.2 - EARLY_S
        engine.may_end.set()
        await running


@pytest.mark.usefixtures("seldom")
async def test_the_sending_of_a_request_is_reported_at_once(crawl: Crawl, client: redis.Redis) -> None:
    """Other workers wait for the report, however rarely this worker exchanges."""
    crawl.size = 0
    unsent = in_redis(client, crawl)
    async with Engine(crawl, **limited(0.1)) as engine:
        engine.may_send.clear()
        engine.may_end.clear()
        engine.put(0, partition=A)
        engine.seed(())
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "the entry is in work")
        await asyncio.sleep(0.1)
        assert unsent("unsent") == 1
        engine.may_send.set()
        await until(lambda: not unsent("unsent"), "the sending is reported")
        engine.may_end.set()
        await running


# Free slots


async def test_room_that_appears_is_used_at_once(crawl: Crawl) -> None:
    """A download ends while its callback continues. The free slot must be used before the next exchange."""
    crawl.size = 0
    async with Engine(crawl, concurrency=20, limit=lambda partition: 1, max_per_partition=1) as engine:
        engine.may_end.clear()
        for number in range(20):
            engine.put(number, partition=A)
        engine.seed(())
        running = asyncio.ensure_future(engine.run())
        await until(lambda: crawl.sent, "the first request is sent")
        answered = engine.counts["exchange"]
        await until(lambda: engine.counts["exchange"] > answered + 6, "the worker has backed off")
        began = Stopwatch()
        for count in range(1, 5):
            await until(lambda c=count: len(crawl.sent) >= c, "the next request is sent")
            [entry_id] = engine.downloading
            engine.downloaded(entry_id)
        assert began.seconds < 0.5
        engine.may_end.set()
        while not running.done():
            for entry_id in list(engine.downloading):
                engine.downloaded(entry_id)
            await asyncio.sleep(0.01)


# Blocks


async def test_a_block_gives_the_buffer_back_and_reaches_the_other_worker(
    crawl: Crawl, client: redis.Redis
) -> None:
    """No worker starts an entry of the partition before the end of the block. Then all entries are done."""
    crawl.size = 0
    count = in_redis(client, crawl)
    async with Engine(crawl, concurrency=2) as a, Engine(crawl, concurrency=2) as b:
        for engine in (a, b):
            engine.capacity = 10
            engine.may_end.clear()
        for number in range(30):
            a.put(number, partition=A)
        a.put(100, partition=B)
        a.seed(()), b.seed(())
        ends = asyncio.gather(a.run(), b.run())
        held = {engine: f"in-flight:{engine.worker.id}" for engine in (a, b)}
        await until(lambda: all(count(name) >= 6 for name in held.values()), "both have a buffer")
        blocked_at = time.monotonic()
        a.worker.block(A, 3.0)
        assert a.worker.take() is None
        await until(lambda: all(count(name) <= 3 for name in held.values()), "both gave the buffer back")
        assert time.monotonic() - blocked_at < 3.0
        told_at = time.monotonic()
        for engine in (a, b):
            engine.may_end.set()
        await ends
        late = [sending.at for sending in crawl.sent if sending.partition == A and sending.at > told_at]
        assert len(late) >= 26
        assert min(late) >= blocked_at + 3.0 - EARLY_S
        assert crawl.done == dict.fromkeys([*range(30), 100], 1)
        assert not any(crawl.attempts.values())


async def test_leases_of_one_time_are_sent_together(crawl: Crawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases may have the same time, as after a block. Each waits until the previous request is sent."""
    crawl.size = 0
    async with Engine(crawl, concurrency=4) as engine:
        engine.may_end.clear()
        send_at, grant = time.monotonic() + 0.3, engine.worker.parts[0].leases.grant

        def at_one_time(lease: Lease) -> None:
            lease.send_at = send_at
            grant(lease)

        monkeypatch.setattr(engine.worker.parts[0].leases, "grant", at_one_time)
        for number in range(4):
            engine.put(number, partition=A)
        engine.seed(())
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(crawl.sent) == 4, "all are sent, and none has ended")
        assert crawl.sent[0].at >= send_at
        engine.may_end.set()
        await running


async def test_a_block_also_applies_to_leases_on_their_way(
    crawl: Crawl, proxy: RedisProxy, client: redis.Redis
) -> None:
    """Redis granted the leases before it knew of the block, but this worker knows it."""
    crawl.size = 0
    async with Engine(crawl, url=proxy.url) as engine:
        engine.seed(())
        await until(lambda: engine.worker.census.seen == 0 and engine.counts["exchange"] > 1, "exchanges")
        fault = proxy.hold_next_command(containing=call_of("exchange"))
        engine.put(0, partition=A)
        running = asyncio.ensure_future(engine.run())
        await until(lambda: fault.fired, "an exchange that brings a lease is under way")
        engine.worker.block(A, 0.5)
        blocked_at = time.monotonic()
        fault.release()
        await running
        [sending] = crawl.sent
        assert sending.at - blocked_at >= 0.5 - EARLY_S


# Due times


async def polled(crawl: Crawl, workers: int, after_s: float) -> tuple[int, float]:
    """Let idle workers wait for one delayed entry; return their exchanges and its lateness in seconds."""
    crawl.size = 0
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Engine(crawl)) for _ in range(workers)]
        engines[0].put(0, after_s=after_s)
        due_at, clock = time.monotonic() + after_s, Stopwatch()
        for engine in engines:
            engine.seed(())
        ends = asyncio.gather(*(engine.run() for engine in engines))
        await until(lambda: engines[0].worker.census.delayed == 1, "the entry is stored")
        await asyncio.sleep(0.3)
        begun = sum(engine.counts["exchange"] for engine in engines)
        await until(lambda: crawl.sent, "the entry is sent", after_s + 5)
        late_s = clock.seconds - after_s
        exchanges = sum(engine.counts["exchange"] for engine in engines) - begun
        await ends
        assert crawl.done == {0: 1}
        assert crawl.sent[0].at >= due_at - EARLY_S
        return exchanges, late_s


@pytest.mark.parametrize("workers", [1, 3])
async def test_idle_workers_sleep_until_the_next_entry_is_due(
    crawl: Crawl, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """With these pauses, polling would take 25 exchanges per worker, and the crawl would end no earlier."""
    monkeypatch.setattr(pace, "IDLE_LONGEST_S", 0.05)
    exchanges, late_s = await polled(crawl, workers, 1.5)
    assert exchanges <= 4 * workers
    assert late_s < 0.2
