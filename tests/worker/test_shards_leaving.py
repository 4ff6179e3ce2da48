"""A worker leaves a crawl of several shards without losing its puts or entries of the next run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Census, FrontierUnavailable, Seeding
from scrapy_dq.frontier.moves import Defer
from scrapy_dq.frontier.worker.listener import Count
from scrapy_dq.frontier.worker.membership import Membership
from support.waiting import patience
from worker.engine import Engine, until
from worker.spread import HORIZON_S, SPREAD, Spread, cut_off, leased, of


async def test_a_worker_that_home_declared_dead_stores_all_puts_before_it_leaves(spread: Spread) -> None:
    """A put without a parent waits for home. During this time, the worker pauses between its exchanges."""
    spread.crawl.size = 1
    async with spread.engine() as worker:
        worker.seed()
        await worker.run()
        home = worker.parts[0]
        spread.fence(0, home.id)
        worker.put(of(1))
        before = worker.counts[Count.EXCHANGE]
        await worker.stop()
        assert worker.counts[Count.EXCHANGE] - before < 100
    assert spread.peek().census.waiting == 1


async def test_a_worker_that_leaves_keeps_entries_of_the_next_run_in_a_shard(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard was rolled back, and another worker moved it and this worker into the next run."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1)])
        home, shard = (each.protocol for each in worker.parts[:2])
        await worker.until_stored()
        await until(lambda: not worker.worker._level.needed(), "the put is certain")
        async with cut_off(worker.parts[0]):
            spread.set(1, run=1)
            await until(lambda: shard.run == 1, "the next run in the shard")
            spread.forget(0, worker, run=1)
        await until(lambda: home.finished, "the end at home")
        await worker.stop()
    assert spread.peek().census.waiting == 1


async def test_a_worker_that_leaves_opens_the_run_of_its_puts_in_other_shards(spread: Spread) -> None:
    """Other workers declared this worker dead and finished the run. The next run would delete the puts."""
    async with Engine(spread.crawl, identity=SPREAD, concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        spread.forget(0, worker, phase="finished")
        await worker.worker.stop(10, durable=False)
    assert spread.get("phase") == b"open"


async def test_a_worker_leaves_even_if_its_puts_become_certain_as_it_leaves(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange that was to raise the level of seeding lowers it then, and nothing raises it again."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        level = worker.worker._level
        await until(lambda: not level.needed(), "the put is certain")
        answers = iter([True])
        monkeypatch.setattr(level, "needed", lambda: next(answers, False))
        stopping = asyncio.create_task(worker.worker.stop(10, durable=False))
        await until(stopping.done, "the end")


async def test_a_page_is_done_if_its_links_become_certain_while_its_worker_leaves(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the links become certain, the worker no longer waits for the page's own shard."""
    spread.crawl.size = 0
    async with spread.engine(concurrency=1) as worker:
        worker.seed([of(0)])
        lease = await leased(worker)
        worker.put(of(1), lease.entry_id)
        worker.worker.ack(lease.entry_id)
        home, other, _ = (each.protocol for each in worker.parts)
        await until(lambda: not (other.outbox or other.under_way), "the link is stored")
        handed_in = asyncio.Event()

        async def on_disk(member: Membership, verify: Any, deadline: float) -> str:
            if member.dialogue.protocol is other:
                await handed_in.wait()
                # On a busy machine the link may already be certain. Then the tested moment does not occur.
                await asyncio.sleep(min(max(0.0, other.certain_at - time.monotonic()), HORIZON_S))
            await verify()
            if member.dialogue.protocol is home:
                handed_in.set()
            return ""

        monkeypatch.setattr(Membership, "wait_until_durable", on_disk)
        await worker.worker.stop(10, durable=True)
        assert worker.counts[Defer] == 1
    census = spread.peek().census
    assert (census.done, census.waiting) == (1, 1)


async def test_a_worker_leaves_although_home_in_the_next_run_confirms_no_level(
    spread: Spread,
) -> None:
    """The worker's start() failed, so nothing of its run is left.

    Home never confirms the level of seeding, for which a put would have to wait.
    """
    async with Engine(spread.crawl, identity=SPREAD) as worker:
        worker.seed([of(1)])
        shard = worker.parts[1]
        worker.worker.ack((await leased(worker)).entry_id)
        await until(lambda: shard.protocol.census.done == 1, "the request is done")
        async with cut_off(worker.parts[0]):
            worker.parts[0].protocol.seeding = Seeding.FAILED
            spread.forget(0, worker, run=1)
            worker.parts[0].protocol.census = Census()
        await until(lambda: worker.parts[0].protocol.finished, "the answer of home")
        leaving = asyncio.create_task(worker.worker.stop(30, durable=False))
        await until(leaving.done, "the worker has left")
        assert worker.parts[0].protocol.over


async def test_a_worker_that_is_stopped_during_a_rejoin_leaves_all_shards(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another shard may need the worker's puts again.

    These puts must wait until home confirms the level of seeding.
    """
    async with Engine(spread.crawl, identity=SPREAD, concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        home, shard = worker.parts[:2]
        rejoin = type(home.frontier).rejoin

        async def when_leaving(*args: Any) -> Any:
            if not worker.worker._leaving:
                raise FrontierUnavailable("later")
            return await rejoin(home.frontier, *args)

        async def after_home(*args: Any) -> Any:
            if not home.membership.handed_in:
                raise FrontierUnavailable("later")
            return await rejoin(shard.frontier, *args)

        monkeypatch.setattr(home.frontier, "rejoin", when_leaving)
        monkeypatch.setattr(shard.frontier, "rejoin", after_home)
        for number, each in enumerate((home, shard)):
            name = keys.prefix(keys.Shard(spread.crawl.name, number))
            spread.redis.hset(f"{name}worker:{each.id}", "fenced", 1)
            spread.redis.delete(f"{name}in-flight:{each.id}")
        await until(lambda: home.outage and shard.outage, "both shards register the worker")
        await worker.worker.stop(patience(5), durable=False)
        assert not any(each.membership.gave_up for each in worker.parts)


async def test_a_start_is_complete_if_its_puts_in_other_shards_are_on_disk(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the run would wait for a worker with the same arguments, although nothing is missing."""
    started = replace(SPREAD, starts="*one")
    async with Engine(spread.crawl, identity=SPREAD, concurrency=0) as other:
        async with Engine(spread.crawl, identity=started, concurrency=0) as worker:
            worker.seed([of(1)])
            await worker.until_stored()

            async def on_disk(*args: Any) -> str:
                return ""

            monkeypatch.setattr(Membership, "wait_until_durable", on_disk)
            await worker.worker.stop(10, durable=True)
        assert await other.worker.parts[0].frontier.interrupted_starts() == []
