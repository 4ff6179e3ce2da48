"""One worker's side of the protocol, without Scrapy: faults on the way to Redis, and the end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Admission
from scrapy_dq.frontier.moves import Ack, Put
from scrapy_dq.frontier.worker import outage, outbox, pace
from support import stored
from support.proxy import RedisProxy
from support.waiting import Stopwatch
from worker.engine import Crawl, Engine, call_of, entries, held_by, until

State = Callable[[], dict[str, Any]]


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle workers look in more often than in earnest."""
    monkeypatch.setattr(pace, "IDLE_LONGEST_S", 0.1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small exchanges, repeated after milliseconds: where each of many replies is lost."""
    monkeypatch.setattr(outage, "FIRST_S", 0.005)
    monkeypatch.setattr(pace, "LINGER_S", 0.001)


async def next_exchange(engine: Engine) -> None:
    """Wait until one more exchange is answered."""
    answered = engine.counts["exchange"]
    await until(lambda: engine.counts["exchange"] > answered, "an exchange is answered")


def cut_in_half(spill_dir: Path) -> None:
    [file] = spill_dir.glob("*/moves/q*")
    os.truncate(file, file.stat().st_size // 2)


def put_out_of_step(engine: Engine, client: redis.Redis) -> None:
    """Let Redis await another exchange than the worker's next: as after a rollback."""
    client.hset(keys.prefix(engine.crawl.name) + f"worker:{engine.worker.id}", "last_seq", 1_000_000)


# Without a fault


async def test_a_tree_is_crawled_by_two_workers_and_ends_for_both(crawl: Crawl, state: State) -> None:
    """Each entry once; both see the end; the last to leave clears up all but the tombstone."""
    crawl.size = 200
    async with Engine(crawl, work_s=0.002) as a, Engine(crawl, work_s=0.002) as b:
        a.seed()
        b.seed()
        await asyncio.gather(a.run(), b.run())
        assert crawl.started == crawl.done == crawl.once
        assert a.counts[Ack] + b.counts[Ack] == 200
        assert min(a.counts[Ack], b.counts[Ack]) > 20
        assert a.told_finished == b.told_finished == 1
        assert len(a.dropped) + len(b.dropped) == 1  # the seed, which both of them put
        assert state()["phase"] == "finished"
        await a.stop()
        assert state()["tokens"][Admission.SEEN]
        await b.stop()
    left = state()
    assert (left["phase"], left["done"], left["members"], left["tokens"][Admission.SEEN]) == (
        "finished",
        200,
        {},
        set(),
    )


async def test_the_owner_hears_again_that_nothing_is_left_after_a_duplicate(crawl: Crawl) -> None:
    """Its put has made it wait; the exchange that drops it as a duplicate leaves the run finished."""
    crawl.size = 1
    async with Engine(crawl) as engine:
        engine.seed()
        await engine.run()
        told = engine.told_finished
        engine.put(0)
        await until(lambda: engine.told_finished == told + 1, "it hears it again")


async def test_a_worker_that_is_still_seeding_keeps_the_others_from_finishing(crawl: Crawl) -> None:
    """The other one, with nothing to do, stays until start() of the first is exhausted and all is done."""
    crawl.size = 2
    async with Engine(crawl) as slow, Engine(crawl) as quick:
        quick.seed([])
        slow.put(0)
        ends = asyncio.gather(slow.run(), quick.run())
        await until(lambda: crawl.done[1], "the first seed's tree is done")
        await until(
            lambda: quick.worker.census.seeding == 1 and not quick.worker.census.in_flight, "all is empty"
        )
        await asyncio.sleep(0.05)
        assert quick.worker.pending
        assert not ends.done()
        slow.seed([1000])
        await ends
        assert crawl.done == {0: 1, 1: 1, 1000: 1}


async def test_a_failed_start_ends_the_worker_but_not_the_run(crawl: Crawl, state: State) -> None:
    """What was yielded is crawled, the run stays open, and the next worker resumes it and finishes it."""
    async with Engine(crawl) as engine:
        engine.put(0)
        engine.worker.seeded(failed=True)
        await engine.run()
        assert crawl.done == crawl.once
        await engine.stop()
    assert (state()["phase"], state()["members"]) == ("open", {})
    async with Engine(crawl, join=False) as again:
        joined = await again.join()
        assert (joined.run, joined.resumed) == (0, True)
        again.seed()
        await again.run()
        assert state()["phase"] == "finished"
    assert crawl.done == crawl.once


# Lost replies


@pytest.mark.usefixtures("quick")
async def test_lost_replies_of_exchanges_lose_and_double_nothing(
    crawl: Crawl, proxy: RedisProxy, state: State
) -> None:
    """Every second exchange is applied and its reply lost: a repeat brings the stored one."""
    async with Engine(crawl, url=proxy.url, concurrency=2, work_s=0.005) as engine:
        faults = [proxy.cut_next_reply(containing=call_of("exchange"))]
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        while not running.done():
            if faults[-1].fired:
                await next_exchange(engine)
                faults.append(proxy.cut_next_reply(containing=call_of("exchange")))
            await asyncio.sleep(0.001)
        await running
        assert sum(fault.fired for fault in faults) >= 5
        assert crawl.started == crawl.done == crawl.once
        assert (state()["done"], engine.counts["rejoin"]) == (crawl.size, 0)
        proxy.drop_connections()


@pytest.mark.usefixtures("quick")
async def test_a_lost_reply_of_rejoin_is_repeated(
    crawl: Crawl, proxy: RedisProxy, client: redis.Redis, state: State
) -> None:
    """The same answer comes again: one member, the same leases, nothing lost or doubled."""
    async with Engine(crawl, url=proxy.url) as engine:
        engine.may_end.clear()
        engine.seed([0, 1000])
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(engine.works) >= 2, "two are at work")
        old_id, held = engine.worker.id, engine.held
        fault = proxy.cut_next_reply(containing=call_of("rejoin"))
        put_out_of_step(engine, client)
        await until(lambda: engine.counts["rejoin"], "it rejoined")
        assert fault.fired
        assert engine.worker.id != old_id
        assert set(state()["members"]) == {engine.worker.id}
        assert {i for i, entry in state()["entries"].items() if entry[0] == engine.worker.id} >= held
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == crawl.once | {1000: 1}
        assert (state()["done"], engine.counts["rejoin"]) == (crawl.size + 1, 1)


# Out of step


async def fence_and_drain(by: Engine, worker_id: str, gone: bool = False) -> None:
    """Do what other workers do with one whose heartbeat stands still, or whose process is gone."""
    assert (await by.frontier.fence(worker_id, by.worker.epoch, by.worker.run, gone))[0] == "OK"
    await by.frontier.drain(worker_id, by.worker.epoch, by.worker.run, 100, 3)


@pytest.mark.parametrize("learns", ["before its ack", "by its ack"])
async def test_a_fenced_worker_keeps_nothing_that_is_not_its_own(
    crawl: Crawl, state: State, learns: str
) -> None:
    """It rejoins under a new id; its ack of a lease that went to another worker settles nothing there."""
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
        await until(lambda: frozen.counts["rejoin"], "it rejoined")
        assert frozen.worker.id != old_id
        other.slots = other.capacity = 4
        other.take()
        await until(lambda: other.works, "the other works at the entry")
        frozen.may_end.set()
        await until(lambda: crawl.done[0] == 1, "the first one's work is done")
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
    """It was declared dead and others did its work: it stores nothing any more, logs this, and ends.

    What a page yielded was found again by others; what had no parent is lost. It is not called `finished`: if
    the next run has begun, nothing shows how its own one ended.
    """
    caplog.set_level(logging.INFO)
    crawl.size = 2
    async with Engine(crawl, url=proxy.url) as away:
        away.may_end.clear()
        away.put(0)
        away.worker.seeded(failed=start == "failed")
        running = asyncio.ensure_future(away.run())
        await until(lambda: away.worker.census.in_flight == 2, "it works, and knows of two in flight")
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
    assert ("no record of what" in error) == (late == "of a page")
    assert "1 requests" in next(line for line in caplog.messages if "The run is over" in line)


@pytest.mark.parametrize("horizon_s", [60, 0.001])
async def test_a_worker_that_nobody_knows_any_more_does_not_say_finished(
    crawl: Crawl, proxy: RedisProxy, caplog: pytest.LogCaptureFixture, horizon_s: float
) -> None:
    """The others took it for gone, and cleared the run: whether all that it had put was done is not known."""
    crawl.size = 1
    async with Engine(crawl, url=proxy.url, rollback_horizon_s=horizon_s) as away:
        away.may_end.clear()
        away.seed()
        running = asyncio.ensure_future(away.run())
        await until(lambda: away.worker.census.in_flight == 1, "it works")
        while horizon_s < 1 and away.worker.home.protocol.log.parentless:
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


async def test_a_granted_entry_that_is_at_work_here_is_adopted(crawl: Crawl, state: State) -> None:
    """Its lease was reclaimed and comes back to this worker: it is not started twice, and its ack counts."""
    crawl.size = 1
    async with Engine(crawl) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "it works")
        await fence_and_drain(engine, engine.worker.id)
        await until(lambda: engine.counts["rejoin"], "it rejoined")
        engine.take()  # hungry: it takes whatever waits
        await until(lambda: set(entries(state(), engine.worker.id)) == {0}, "the entry is its own again")
        await asyncio.sleep(0.05)
        engine.take()
        assert len(engine.works) == 1
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == {0: 1}
        assert (state()["done"], engine.counts[Ack]) == (1, 1)


async def test_what_is_released_while_a_rejoin_is_under_way_is_given_back(
    crawl: Crawl, proxy: RedisProxy, client: redis.Redis, state: State
) -> None:
    """A pause in that moment: the rejoin kept the buffer, so its release has to be sent after it."""
    crawl.fan_out = crawl.size
    async with Engine(crawl, url=proxy.url, concurrency=2) as engine:
        engine.may_end.clear()
        engine.capacity = 10
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(entries(state(), engine.worker.id)) >= 8, "leases are buffered")
        fault = proxy.cut_next_reply(containing=call_of("rejoin"))
        put_out_of_step(engine, client)
        await until(lambda: fault.fired, "it rejoins, and does not know it")
        engine.capacity = 0
        await until(lambda: engine.counts["rejoin"], "it knows it")
        await until(lambda: len(entries(state(), engine.worker.id)) == 2, "the buffer is given back")
        await until(lambda: engine.held == held_by(state(), engine.worker.id), "the answer is read")
        engine.capacity = 2
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == crawl.once


async def test_a_parentless_put_while_a_rejoin_is_under_way_is_not_dropped(
    crawl: Crawl, proxy: RedisProxy, client: redis.Redis, state: State
) -> None:
    """The rejoin that is repeated says nothing of it and is answered FINISHED: one that does follows."""
    async with Engine(crawl, url=proxy.url) as engine:
        engine.seed()
        await engine.run()
        fault = proxy.cut_next_reply(containing=call_of("rejoin"))
        put_out_of_step(engine, client)
        await until(lambda: fault.fired, "it rejoins, and does not know the answer")
        assert engine.put(1000)
        await engine.run()
        assert crawl.done == crawl.once | {1000: 1}
        assert (state()["phase"], state()["done"]) == ("finished", crawl.size + 1)


@pytest.mark.parametrize("forgotten", ["a seed", "a child"])
async def test_what_redis_forgets_is_stored_again_by_the_process_that_put_it(
    crawl: Crawl, client: redis.Redis, state: State, forgotten: str
) -> None:
    """Confirmed and then rolled back, while its parent, which would yield it again, is not run again."""
    crawl.size = 2
    async with Engine(crawl, concurrency=1) as engine:
        engine.may_put.clear()
        engine.may_end.clear()
        if forgotten == "a child":
            engine.put(0)
        else:
            engine.slots = 0  # once it is at work here, it is not forgotten
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(engine.works) == engine.slots, "the parent is at work")
        await next_exchange(engine)
        snapshot = stored.dump(client, crawl.name)
        stored_before = engine.counts[Put]
        if forgotten == "a seed":
            engine.put(0)
        engine.may_put.set()
        await until(lambda: engine.counts[Put] > stored_before, "it is confirmed")
        stored.roll_back(client, crawl.name, snapshot)
        await until(lambda: engine.counts["rejoin"], "it rejoined")
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
    """FLUSHALL: one CRITICAL line, one notice to the owner, `pending` stays True, nothing is rewritten."""
    async with Engine(crawl) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "it works")
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


# Redis away


@pytest.mark.parametrize("whose", ["children", "children of a page at work", "seeds"])
async def test_moves_that_the_disk_has_lost_cost_repeats_and_no_entry(
    crawl: Crawl,
    proxy: RedisProxy,
    state: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    whose: str,
) -> None:
    """Their parents are given back, even those that are through, and run again. Lost seeds keep it open."""
    monkeypatch.setattr(outbox, "MEMORY_MOVES", 10)
    monkeypatch.setattr(outbox, "CHUNK_MOVES", 5)
    crawl.size, crawl.fan_out = 60, 59
    async with Engine(crawl, url=proxy.url, concurrency=2, spill_dir=str(tmp_path)) as engine:
        engine.may_put.clear()
        engine.put(0)
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "the parent is at work")
        proxy.refuse()
        await until(lambda: engine.counts["error"], "the outage is seen")
        if whose == "seeds":
            engine.seed(range(1000, 1060))
        at_work = whose == "children of a page at work"
        if at_work:
            engine.may_end.clear()
        engine.may_put.set()
        await until(lambda: at_work or crawl.done[0], "its ack is in the outbox")
        await until(lambda: list(tmp_path.glob("*/moves/q*")), "its children wait on disk")
        cut_in_half(tmp_path)
        proxy.pass_through()
        await until(lambda: engine.counts["rejoin"], "it rejoined")
        if at_work:
            await until(lambda: engine.worker.census.in_flight, "its lease has come back to it")
            engine.may_end.set()
        engine.worker.seeded()
        if whose != "seeds":
            await running
            assert set(crawl.done) == set(crawl.once)
            assert crawl.started[0] == 2
            assert engine.counts["outbox lost"] == 1
            assert state()["phase"] == "finished"
        else:
            assert engine.counts["outbox lost, parentless"] == 1
            await engine.run()
            assert state()["phase"] == "open"
            running.cancel()
    assert os.listdir(tmp_path) == []
    [line] = messages(caplog, logging.ERROR)
    assert "cannot be read back" in line


@pytest.mark.parametrize("away", ["refuse", "black_hole"])
async def test_stop_gives_up_when_redis_stays_unavailable(
    crawl: Crawl, proxy: RedisProxy, state: State, caplog: pytest.LogCaptureFixture, away: str
) -> None:
    """After the deadline, with one ERROR that says what was not stored; another worker runs it again."""
    async with Engine(crawl, url=proxy.url, timeout_s=0.2) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "it works")
        await until(lambda: engine.counts[Put] == 4, "the children are stored")
        getattr(proxy, away)()
        engine.may_end.set()
        await until(lambda: crawl.done[0], "its ack is in the outbox")
        caplog.clear()
        began, clock = time.monotonic(), Stopwatch()
        await engine.stop(0.5)
        assert time.monotonic() - began >= 0.5
        assert clock.seconds < 4
        [line] = messages(caplog, logging.ERROR)
        assert engine.worker.id in line
        assert "moves were not stored" in line
        assert 0 in entries(state(), engine.worker.id)
        running.cancel()
        async with Engine(crawl) as other:
            await fence_and_drain(other, engine.worker.id)
            other.seed([])
            await other.run()
        assert set(crawl.done) == set(crawl.once)


async def test_stop_keeps_its_deadline_while_a_slow_redis_answers(
    crawl: Crawl, proxy: RedisProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """More was found than it takes in time: it says how much, and goes."""
    async with Engine(crawl, url=proxy.url) as engine:
        await until(lambda: engine.counts["exchange"], "it has begun")
        proxy.set_delay(0.1)
        engine.seed(range(15_000))
        began = Stopwatch()
        await engine.stop(0.5)
        assert began.seconds < 1.5
    [line] = messages(caplog, logging.ERROR)
    assert "takes too long" in line
    assert re.search(r"\d{4,} moves were not stored", line)
