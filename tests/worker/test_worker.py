"""One worker's side of the protocol, without Scrapy: a whole crawl, and lost replies."""

from __future__ import annotations

import asyncio

import pytest
import redis

from scrapy_dq.frontier.model import Admission
from scrapy_dq.frontier.moves import Ack
from support.proxy import RedisProxy
from worker.engine import Crawl, Engine, call_of, until
from worker.faults import State, next_exchange, put_out_of_step

pytestmark = pytest.mark.usefixtures("no_long_pauses")

# Without a fault


async def test_two_workers_crawl_a_tree_and_both_see_its_end(crawl: Crawl, state: State) -> None:
    """Each entry is done once. The last worker to leave clears everything except the tombstone."""
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


async def test_the_owner_is_notified_again_after_a_duplicate_that_nothing_is_left(crawl: Crawl) -> None:
    """The owner waits for its put, which the exchange drops as a duplicate; the run stays finished."""
    crawl.size = 1
    async with Engine(crawl) as engine:
        engine.seed()
        await engine.run()
        told = engine.told_finished
        engine.put(0)
        await until(lambda: engine.told_finished == told + 1, "the owner is notified again")


async def test_a_worker_that_is_still_seeding_keeps_the_others_from_finishing(crawl: Crawl) -> None:
    """The idle worker stays until the other worker's start() has ended and all entries are done."""
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
    """The yielded requests are crawled and the run stays open; the next worker resumes and finishes it."""
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
    """Every second exchange is applied but its reply is lost. The repeat brings the stored reply."""
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
    """The repeat gets the same answer: one member, the same leases, nothing lost or doubled."""
    async with Engine(crawl, url=proxy.url) as engine:
        engine.may_end.clear()
        engine.seed([0, 1000])
        running = asyncio.ensure_future(engine.run())
        await until(lambda: len(engine.works) >= 2, "two are at work")
        old_id, held = engine.worker.id, engine.held
        fault = proxy.cut_next_reply(containing=call_of("rejoin"))
        put_out_of_step(engine, client)
        await until(lambda: engine.counts["rejoin"], "the worker rejoined")
        assert fault.fired
        assert engine.worker.id != old_id
        assert set(state()["members"]) == {engine.worker.id}
        assert {i for i, entry in state()["entries"].items() if entry[0] == engine.worker.id} >= held
        engine.may_end.set()
        await running
        assert crawl.started == crawl.done == crawl.once | {1000: 1}
        assert (state()["done"], engine.counts["rejoin"]) == (crawl.size + 1, 1)
