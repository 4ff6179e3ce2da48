"""A worker that is out of step with Redis: fenced, away, forgotten, or behind a roll-back."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis

from scrapy_dq.frontier.moves import Ack, Put
from support import stored
from support.proxy import RedisProxy
from worker.engine import Crawl, Engine, call_of, entries, held_by, until
from worker.faults import State, fence_and_drain, messages, next_exchange, put_out_of_step

pytestmark = pytest.mark.usefixtures("no_long_pauses")


@pytest.mark.parametrize("learns", ["before its ack", "by its ack"])
async def test_a_fenced_worker_keeps_only_its_own_leases(crawl: Crawl, state: State, learns: str) -> None:
    """The worker rejoins under a new id. Its ack of a lease that went to another worker settles nothing."""
    crawl.size = 1
    async with Engine(crawl) as frozen, Engine(crawl, concurrency=0) as other:
        frozen.may_end.clear()
        other.may_end.clear()
        frozen.seed()
        other.seed([])
        ends = asyncio.gather(frozen.run(), other.run())
        await until(lambda: frozen.works, "the entry is at work")
        old_id = frozen.worker.id
        frozen.capacity = 0
        await fence_and_drain(other, old_id)
        if learns == "by its ack":
            frozen.may_end.set()
        await until(lambda: frozen.counts["rejoin"], "the worker rejoined")
        assert frozen.worker.id != old_id
        other.slots = other.capacity = 4
        other.take()
        await until(lambda: other.works, "the other worker has the entry")
        frozen.may_end.set()
        await until(lambda: crawl.done[0] == 1, "the first worker's work is done")
        await next_exchange(frozen)
        await next_exchange(frozen)
        assert set(entries(state(), other.worker.id)) == {0}
        assert (frozen.counts[Ack], state()["done"]) == (0, 0)
        other.may_end.set()
        await ends
        assert (crawl.done, state()["done"]) == ({0: 2}, 1)


@pytest.mark.parametrize("start", ["failed", "exhausted"])
@pytest.mark.parametrize("late", ["of a page", "of engine.crawl()"])
async def test_a_worker_that_was_away_until_the_next_run_began_ends(
    crawl: Crawl, proxy: RedisProxy, state: State, caplog: pytest.LogCaptureFixture, start: str, late: str
) -> None:
    """Other workers declared the worker dead and did its work. It stores nothing more, logs this and ends.

    Other workers found the requests of its pages again, but its requests without a parent are lost. The
    close reason is not `finished`, because a new run keeps no record of how the previous one ended.
    """
    caplog.set_level(logging.INFO)
    crawl.size = 2
    async with Engine(crawl, url=proxy.url) as away:
        away.may_end.clear()
        away.put(0)
        away.worker.seeded(failed=start == "failed")
        running = asyncio.ensure_future(away.run())
        await until(lambda: away.worker.census.in_flight == 2, "the entry is in work, and two are in flight")
        proxy.refuse()
        async with Engine(crawl) as other:
            await fence_and_drain(other, away.worker.id)
            other.seed([])
            await other.run()
        async with Engine(crawl, join=False) as next_one:
            await next_one.join()
        before = state()
        away.put(1000, parent=b"of a work there" if late == "of a page" else None)
        away.may_end.set()
        proxy.pass_through()
        await running
        assert not away.worker.pending
        assert not away.put(1001)
        await away.stop()
        assert state() == before
        assert away.told_lost == 0
        assert away.worker.ending == "run_over"
    (error,) = messages(caplog, logging.ERROR)
    assert ("no record of this worker" in error) == (late == "of a page")
    assert "1 requests" in next(line for line in caplog.messages if "The run is over" in line)


@pytest.mark.parametrize("horizon_s", [60, 0.001])
async def test_a_worker_that_is_no_longer_known_does_not_report_finished(
    crawl: Crawl, proxy: RedisProxy, caplog: pytest.LogCaptureFixture, horizon_s: float
) -> None:
    """Other workers cleared the run, so this worker cannot know whether all its puts were done."""
    crawl.size = 1
    async with Engine(crawl, url=proxy.url, rollback_horizon_s=horizon_s) as away:
        away.may_end.clear()
        away.seed()
        running = asyncio.ensure_future(away.run())
        await until(lambda: away.worker.census.in_flight == 1, "the entry is in work")
        while horizon_s < 1 and away.worker.parts[0].protocol.log.parentless:
            await next_exchange(away)
        proxy.refuse()
        async with Engine(crawl) as other:
            await fence_and_drain(other, away.worker.id, gone=True)
            other.seed([])
            await other.run()
        away.may_end.set()
        proxy.pass_through()
        await running
        assert away.worker.ending == "run_over"
    (error,) = messages(caplog, logging.ERROR)
    assert "may be missing" in error


async def test_a_granted_entry_that_is_already_in_progress_is_not_started_again(
    crawl: Crawl, state: State
) -> None:
    """The lease was reclaimed and comes back to the same worker, which must not start the entry twice."""
    crawl.size = 1
    async with Engine(crawl) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "the entry is in work")
        await fence_and_drain(engine, engine.worker.id)
        await until(lambda: engine.counts["rejoin"], "the worker rejoined")
        engine.take()  # the engine is hungry, so the worker takes any waiting entry
        await until(lambda: set(entries(state(), engine.worker.id)) == {0}, "the worker has the entry again")
        await asyncio.sleep(0.05)
        engine.take()
        assert len(engine.works) == 1
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == {0: 1}
        assert (state()["done"], engine.counts[Ack]) == (1, 1)


async def test_leases_released_during_a_rejoin_are_given_back(
    crawl: Crawl, proxy: RedisProxy, client: redis.Redis, state: State
) -> None:
    """The engine pauses during a rejoin that keeps the buffer, so the release must follow the rejoin."""
    crawl.fan_out = crawl.size
    async with Engine(crawl, url=proxy.url, concurrency=2) as engine:
        engine.may_end.clear()
        engine.capacity = 10
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(entries(state(), engine.worker.id)) >= 8, "leases are buffered")
        fault = proxy.cut_next_reply(containing=call_of("rejoin"))
        put_out_of_step(engine, client)
        await until(lambda: fault.fired, "the answer to the rejoin is lost")
        engine.capacity = 0
        await until(lambda: engine.counts["rejoin"], "the rejoin is answered")
        await until(lambda: len(entries(state(), engine.worker.id)) == 2, "the buffer is given back")
        await until(lambda: engine.held == held_by(state(), engine.worker.id), "the answer is read")
        engine.capacity = 2
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == crawl.once


async def test_a_parentless_put_while_a_rejoin_is_under_way_is_not_dropped(
    crawl: Crawl, proxy: RedisProxy, client: redis.Redis, state: State
) -> None:
    """The repeated rejoin does not report the new put and gets FINISHED. A further rejoin reports the put."""
    async with Engine(crawl, url=proxy.url) as engine:
        engine.seed()
        await engine.run()
        fault = proxy.cut_next_reply(containing=call_of("rejoin"))
        put_out_of_step(engine, client)
        await until(lambda: fault.fired, "the answer to the rejoin is lost")
        assert engine.put(1000)
        await engine.run()
        assert crawl.done == crawl.once | {1000: 1}
        assert (state()["phase"], state()["done"]) == ("finished", crawl.size + 1)


@pytest.mark.parametrize("forgotten", ["a seed", "a child"])
async def test_a_put_that_redis_forgot_is_stored_again_by_its_process(
    crawl: Crawl, client: redis.Redis, state: State, forgotten: str
) -> None:
    """A roll-back lost the confirmed put, and its parent does not run again to yield it."""
    crawl.size = 2
    async with Engine(crawl, concurrency=1) as engine:
        engine.may_put.clear()
        engine.may_end.clear()
        if forgotten == "a child":
            engine.put(0)
        else:
            engine.slots = 0  # an entry that is in work here would not be forgotten
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(engine.works) == engine.slots, "the parent is at work")
        await next_exchange(engine)
        snapshot = stored.dump(client, crawl.name)
        stored_before = engine.counts[Put]
        if forgotten == "a seed":
            engine.put(0)
        engine.may_put.set()
        await until(lambda: engine.counts[Put] > stored_before, "the put is confirmed")
        stored.roll_back(client, crawl.name, snapshot)
        await until(lambda: engine.counts["rejoin"], "the worker rejoined")
        engine.slots = 1
        engine.take()
        engine.worker.seeded()
        engine.may_end.set()
        await running
        assert set(crawl.done) == {0, 1}
        assert state()["phase"] == "finished"


async def test_a_frontier_that_is_gone_is_lost_and_never_finished(
    crawl: Crawl, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """After a FLUSHALL, the worker logs one CRITICAL line, notifies its owner once and writes nothing."""
    async with Engine(crawl) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "the entry is in work")
        stored.roll_back(client, crawl.name, {})
        await running
        engine.may_end.set()
        await until(lambda: not engine.works, "the work is done")
        assert engine.worker.lost
        assert engine.worker.pending
        await asyncio.sleep(0.05)
        assert engine.told_lost == 1
        assert engine.told_finished == 0
        await engine.stop()
        assert engine.worker.pending
    [line] = messages(caplog, logging.CRITICAL)
    assert crawl.name in line
    assert "frontier_lost" in line
    assert not stored.crawl_keys(client, crawl.name)
