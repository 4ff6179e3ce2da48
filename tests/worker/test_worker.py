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
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import Admission, Status
from scrapy_dq.frontier.wire import NO_TERMS, pack_moves
from scrapy_dq.frontier.worker import outage, outbox, pace
from support import stored
from support.proxy import RedisProxy
from support.redis_server import Kind, RedisServer
from support.waiting import Stopwatch
from worker.engine import Crawl, Engine, call_of, entries, held_by, script, until

State = Callable[[], dict[str, Any]]
NAMED_RUN = Identity("fingerprinter", "spider", "{}", run_name="nightly")


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
        assert a.counts["ack"] + b.counts["ack"] == 200
        assert min(a.counts["ack"], b.counts["ack"]) > 20
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


async def test_a_parentless_put_after_the_end_opens_the_run_again(crawl: Crawl, state: State) -> None:
    """`engine.crawl()` from a timer or from spider_idle: the worker continues, in the same run."""
    async with Engine(crawl) as engine:
        engine.seed()
        await engine.run()
        assert not engine.worker.pending
        assert engine.put(1000)
        assert engine.worker.pending
        await engine.run()
        assert crawl.done == crawl.once | {1000: 1}
        assert (state()["phase"], state()["run"], engine.counts["rejoin"]) == ("finished", 0, 0)


async def test_join_on_a_finished_run_of_the_same_name_has_nothing_to_do(crawl: Crawl, state: State) -> None:
    """A container that restarts after the end learns that its run is over: not pending, no put, no member."""
    async with Engine(crawl, identity=NAMED_RUN) as engine:
        engine.seed()
        await engine.run()
    async with Engine(crawl, join=False, identity=NAMED_RUN) as late:
        before = state()
        joined = await late.join()
        assert joined.status is Status.FINISHED
        assert not late.worker.pending
        assert not late.put(0)
        assert late.worker.take() is None
        await late.run()
        await late.stop()
        assert state() == before
    async with Engine(crawl, identity=Identity("fingerprinter", "spider", "{}", run_name="weekly")) as other:
        assert (other.worker.run, other.worker.pending) == (1, True)


async def test_a_stopping_worker_gives_its_leases_back_at_once_and_uncharged(
    crawl: Crawl, state: State
) -> None:
    """SIGTERM: the other worker has them without waiting for the TTL, and finishes the crawl alone."""
    async with Engine(crawl, concurrency=8) as a, Engine(crawl, concurrency=8) as b:
        a.may_end.clear()
        a.seed([0])
        running = asyncio.ensure_future(a.run())
        a.put(1000), a.put(1001)
        await until(lambda: len(a.works) >= 2, "a works at some")
        b.seed([])
        began = Stopwatch()
        await a.stop()
        assert not entries(state(), a.worker.id)
        assert a.worker.id not in state()["members"]
        await b.run()
        assert began.seconds < 3
        assert crawl.done == crawl.once | {1000: 1, 1001: 1}
        assert not any(crawl.attempts.values())
        running.cancel()


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


async def test_capacity_0_gives_the_buffer_back(crawl: Crawl, state: State) -> None:
    """A paused or closing engine keeps what it works at, and nothing else, from the others."""
    crawl.fan_out = crawl.size
    async with Engine(crawl, concurrency=2) as engine:
        engine.may_end.clear()
        engine.capacity = 10
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(entries(state(), engine.worker.id)) >= 8, "leases are buffered")
        await until(lambda: len(engine.works) == 2, "their exchange is answered")
        engine.capacity = 0
        await until(lambda: len(entries(state(), engine.worker.id)) == 2, "the buffer is given back")
        await until(lambda: engine.held == held_by(state(), engine.worker.id), "the answer is read")
        assert not any(attempts for _, attempts, _, _ in state()["entries"].values())
        engine.capacity = 2
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == crawl.once


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


async def test_a_join_whose_reply_is_lost_is_repeated(crawl: Crawl, proxy: RedisProxy, state: State) -> None:
    """A busy Redis is no reason not to start; the repeat registers nobody else."""
    async with Engine(crawl, url=proxy.url, join=False) as engine:
        fault = proxy.cut_next_reply(containing=call_of("join"))
        await engine.join()
        assert fault.fired
        assert engine.counts["error"] == 1
        assert set(state()["members"]) == {engine.worker.id}
        engine.seed()
        await engine.run()
        assert crawl.done == crawl.once


@pytest.mark.usefixtures("quick")
async def test_a_lost_reply_of_leave_is_repeated(crawl: Crawl, proxy: RedisProxy, state: State) -> None:
    """The run is cleared once, and a run that others began meanwhile is not touched."""
    async with Engine(crawl, url=proxy.url) as engine:
        engine.seed()
        await engine.run()
        fault = proxy.cut_next_reply(containing=call_of("leave"))
        leaving = asyncio.ensure_future(engine.stop())
        await until(lambda: fault.fired, "the reply of leave is lost")
        async with Engine(crawl) as next_one:
            next_one.put(1000)
            await leaving
            await until(lambda: next_one.counts["put"], "the next run goes on")
            assert (state()["run"], set(state()["members"])) == (1, {next_one.worker.id})


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


@pytest.mark.usefixtures("quick")
async def test_a_tenth_of_all_replies_is_lost_and_each_entry_is_worked_at_once(
    crawl: Crawl, proxy: RedisProxy, state: State
) -> None:
    """Several hundred exchanges of two workers; no entry is lost, and none is done twice."""
    crawl.size = 400
    async with (
        Engine(crawl, url=proxy.url, concurrency=1, work_s=0.004) as a,
        Engine(crawl, url=proxy.url, concurrency=1, work_s=0.004) as b,
    ):
        proxy.set_loss(0.1, seed=7)
        a.seed()
        b.seed()
        await asyncio.gather(a.run(), b.run())
        proxy.set_loss(0)
        counts = a.counts + b.counts
        assert counts["exchange"] >= 200
        assert counts["error"] >= 15
        assert crawl.started == crawl.done == crawl.once
        assert (state()["done"], counts["rejoin"], counts["ack"]) == (400, 0, 400)


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
        assert (frozen.counts["ack"], state()["done"]) == (0, 0)
        other.may_end.set()
        await ends
        assert (crawl.done, state()["done"]) == ({0: 2}, 1)


async def test_a_fenced_worker_in_the_middle_of_a_crawl_loses_no_entry(crawl: Crawl, state: State) -> None:
    """Fenced twice, with leases and an outbox: all is processed, at most once more than there were fences."""
    crawl.size = 150
    async with Engine(crawl, work_s=0.01) as a, Engine(crawl, work_s=0.01) as b:
        a.seed()
        b.seed([])
        ends = asyncio.gather(a.run(), b.run())
        held = 0
        for turn in (1, 2):
            await until(lambda: sum(crawl.done.values()) > 30 * turn and a.works, "a is in the middle")  # noqa: B023
            old_id = a.worker.id
            await b.frontier.fence(old_id, b.worker.epoch, b.worker.run)
            held += len(entries(state(), old_id))
            await fence_and_drain(b, old_id)
            await until(lambda: a.counts["rejoin"] == turn, "a rejoined")  # noqa: B023
        await ends
        assert set(crawl.done) == set(crawl.once)
        assert sum(crawl.started.values()) - crawl.size <= held
        assert (state()["done"], state()["phase"]) == (crawl.size, "finished")


async def test_a_fenced_workers_buffer_is_not_started(crawl: Crawl, state: State) -> None:
    """Leases that it has not started belong to others now: starting them would be a useless repeat."""
    crawl.fan_out = crawl.size
    async with Engine(crawl, concurrency=1) as frozen, Engine(crawl, concurrency=0) as other:
        frozen.may_end.clear()
        frozen.capacity = 10
        frozen.seed()
        other.seed([])
        ends = asyncio.gather(frozen.run(), other.run())
        await until(lambda: len(entries(state(), frozen.worker.id)) >= 8, "leases are buffered")
        frozen.capacity = 0
        await fence_and_drain(other, frozen.worker.id)
        await until(lambda: frozen.counts["rejoin"], "it rejoined")
        frozen.slots = 10
        frozen.take()
        assert (len(frozen.works), crawl.started) == (1, {0: 1})
        other.slots = other.capacity = 10
        frozen.may_end.set()
        other.take()
        await ends
        assert crawl.started == crawl.once | {0: 2}
        assert state()["done"] == crawl.size


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
        while horizon_s < 1 and away.worker.home.protocol.vouches:
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


async def test_a_worker_that_was_away_while_the_run_ended_stores_what_is_new(
    crawl: Crawl, proxy: RedisProxy, state: State
) -> None:
    """It was declared dead, others did its work and left: only what it alone has is crawled now."""
    crawl.size = 2
    async with Engine(crawl, url=proxy.url) as away:
        away.may_end.clear()
        away.put(0)
        away.worker.seeded()
        running = asyncio.ensure_future(away.run())
        await until(lambda: away.worker.census.in_flight == 2, "it works, and knows of two in flight")
        proxy.refuse()
        async with Engine(crawl) as other:
            await fence_and_drain(other, away.worker.id)
            other.seed([0])
            await other.run()
        assert state()["phase"] == "finished"
        started = dict(crawl.started)
        away.put(0)
        away.put(1000)
        away.may_end.set()
        proxy.pass_through()
        await running
        assert away.worker.ending == "finished"
        assert {page for page, times in crawl.started.items() if times > started.get(page, 0)} == {1000}
    assert state()["phase"] == "finished"


async def test_an_undrained_former_self_is_reclaimed(crawl: Crawl, state: State) -> None:
    """Fenced and not drained, because the reclaimer died: the worker drains its own former id, and ends."""
    crawl.size = 1
    async with Engine(crawl, ttl_s=1.0) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "it works")
        old_id = engine.worker.id
        await engine.frontier.fence(old_id, engine.worker.epoch, engine.worker.run)
        await until(lambda: engine.counts["rejoin"], "it rejoined")
        assert set(state()["members"]) == {old_id, engine.worker.id}
        engine.may_end.set()
        await running
        assert crawl.done == {0: 2}
        assert engine.counts["reclaim"] == 1
        assert set(state()["members"]) == {engine.worker.id}


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
        assert (state()["done"], engine.counts["ack"]) == (1, 1)


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


async def test_a_lease_count_that_differs_is_found_and_mended(
    crawl: Crawl, client: redis.Redis, state: State
) -> None:
    """A late copy of an exchange took leases: the worker rejoins and keeps its own; the rest waits again."""
    crawl.size = 0
    async with Engine(crawl, concurrency=2) as engine:
        engine.may_end.clear()
        engine.seed([1000, 1001, 1002, 1003, 1004, 1005, 1006])
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(engine.works) == 2, "it works")
        await until(lambda: engine.counts["put"] == 7, "all is stored")
        await next_exchange(engine)
        worker, held = engine.worker, engine.held
        meant, last_seq = len(entries(state(), worker.id)), state()["members"][worker.id][1]
        # What a delayed copy does to a Redis that stepped back: the sequence fits, the leases go to nobody.
        script("exchange").call_blocking(
            client, keys.fixed(crawl.name), worker.id, worker.epoch, 0, last_seq + 1, 2, 0, meant, 1000, 0,
            NO_TERMS, pack_moves([]), 0,
        )  # fmt: skip
        client.hset(keys.prefix(crawl.name) + f"worker:{worker.id}", "last_seq", last_seq)
        assert len(entries(state(), worker.id)) == meant + 2
        await until(lambda: engine.counts["rejoin"], "it rejoined")
        await until(lambda: engine.held <= set(state()["entries"]), "it goes on")
        assert engine.held == held
        assert all(state()["entries"][i][0] == engine.worker.id for i in held)
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == dict.fromkeys(range(1000, 1007), 1)
        assert not any(crawl.attempts.values())
        assert (state()["done"], engine.counts["rejoin"]) == (7, 1)


async def test_a_rolled_back_redis_costs_repeats_and_no_entry(
    start_redis: Callable[..., RedisServer], crawl_name: str, redis_kind: Kind
) -> None:
    """Rolled back by about half a second under two live workers: everything is processed, and it ends."""
    server = start_redis(redis_kind, appendonly=True)
    crawl = Crawl(server.url, crawl_name, size=300)
    async with Engine(crawl, work_s=0.02) as a, Engine(crawl, work_s=0.02) as b:
        a.seed()
        b.seed([])
        ends = asyncio.gather(a.run(), b.run())
        await until(lambda: sum(crawl.done.values()) > 30, "the crawl is under way")
        snapshot = await asyncio.to_thread(server.snapshot)
        before = sum(crawl.done.values())
        await until(lambda: sum(crawl.done.values()) > before + 100, "half a second's work is done")
        await asyncio.to_thread(server.roll_back, snapshot)
        await ends
        assert set(crawl.done) == set(crawl.once)
        assert a.counts["rejoin"] + b.counts["rejoin"] >= 1
        with server.client() as client:
            assert peek(client, crawl_name).phase == "finished"


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
        stored_before = engine.counts["put"]
        if forgotten == "a seed":
            engine.put(0)
        engine.may_put.set()
        await until(lambda: engine.counts["put"] > stored_before, "it is confirmed")
        stored.roll_back(client, crawl.name, snapshot)
        await until(lambda: engine.counts["rejoin"], "it rejoined")
        engine.slots = 1
        engine.take()
        engine.worker.seeded()
        engine.may_end.set()
        await running
        assert set(crawl.done) == {0, 1}
        assert state()["phase"] == "finished"


async def test_a_put_after_the_end_that_redis_forgets_is_stored_again(
    crawl: Crawl, client: redis.Redis, state: State
) -> None:
    """Redis is rolled back to the end of the run: the run is opened once more."""
    async with Engine(crawl) as engine:
        engine.seed()
        await engine.run()
        snapshot = stored.dump(client, crawl.name)
        engine.may_put.clear()  # at work until the end, so that nothing else opens the run
        engine.slots = 0
        stored_before = engine.counts["put"]
        engine.put(1000)
        await until(lambda: engine.counts["put"] > stored_before, "it is confirmed")
        stored.roll_back(client, crawl.name, snapshot)
        await until(lambda: engine.counts["rejoin"], "it rejoined")
        engine.slots = 4
        engine.may_put.set()
        await engine.run()
        assert crawl.done == crawl.once | {1000: 1}
        assert (state()["phase"], state()["run"]) == ("finished", 0)


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


async def test_another_frontier_in_the_place_of_ours_is_not_touched(
    crawl: Crawl, client: redis.Redis, state: State
) -> None:
    """An empty replica was promoted and a new crawl was started: the old worker is lost and harmless."""
    async with Engine(crawl) as old:
        old.may_end.clear()
        old.seed()
        running = asyncio.ensure_future(old.run())
        await until(lambda: old.works, "it works")
        stored.roll_back(client, crawl.name, {})
        async with Engine(crawl) as new:
            new.seed([1000])
            await running
            await old.stop()
            await new.run()
            assert set(state()["members"]) == {new.worker.id}
            assert state()["done"] == 1


# Redis away


async def test_an_outage_is_logged_once_and_its_end_once(
    crawl: Crawl, proxy: RedisProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile the worker serves its leases and keeps new puts; then exchanges continue."""
    caplog.set_level(logging.INFO, "scrapy_dq")
    async with Engine(crawl, url=proxy.url, concurrency=1) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "it works")
        proxy.refuse()
        engine.may_end.set()
        await until(lambda: engine.counts["error"] >= 3, "it tries, and tries again")
        assert crawl.done[0] == 1
        assert engine.worker.pending
        proxy.pass_through()
        await running
    assert crawl.started == crawl.done == crawl.once
    [warning] = [line for line in messages(caplog, logging.WARNING) if "has no AOF" not in line]
    assert "Redis does not answer" in warning
    assert len([line for line in messages(caplog, logging.INFO) if "Redis is back" in line]) == 1
    assert not messages(caplog, logging.ERROR)


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
        await until(lambda: engine.counts["put"] == 4, "the children are stored")
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


async def test_stop_hands_in_what_is_done_when_redis_comes_back_in_time(
    crawl: Crawl, proxy: RedisProxy, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage shorter than the grace costs nothing: outbox confirmed, leases given back, no member left."""
    async with Engine(crawl, url=proxy.url) as engine:
        engine.seed()
        proxy.refuse()
        leaving = asyncio.ensure_future(engine.stop(5))
        await until(lambda: engine.counts["error"] >= 2, "it tries")
        assert not leaving.done()
        proxy.pass_through()
        await leaving
    assert not messages(caplog, logging.ERROR)
    assert set(entries(state(), "backlog")) == {0}
    assert not state()["members"]
