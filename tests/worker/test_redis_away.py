"""While Redis is away, a worker loses moves that wait on its disk, or has to stop at its deadline."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from pathlib import Path

import pytest

from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker import outbox
from support.proxy import RedisProxy
from support.waiting import Stopwatch
from worker.engine import Crawl, Engine, entries, until
from worker.faults import State, fence_and_drain, messages

pytestmark = pytest.mark.usefixtures("no_long_pauses")


def cut_in_half(spill_dir: Path) -> None:
    [file] = spill_dir.glob("*/moves/q*")
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("whose", ["children", "children of a page at work", "seeds"])
async def test_moves_lost_on_disk_cause_repeats_but_lose_no_entry(
    crawl: Crawl,
    proxy: RedisProxy,
    state: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    whose: str,
) -> None:
    """The worker releases the parents of the lost moves, even parents that are done, and they run again.

    If requests of start() are lost, the run stays open.
    """
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
        await until(lambda: at_work or crawl.done[0], "the ack of the parent is in the outbox")
        await until(lambda: list(tmp_path.glob("*/moves/q*")), "children wait on disk")
        cut_in_half(tmp_path)
        proxy.pass_through()
        await until(lambda: engine.counts["rejoin"], "the worker rejoined")
        if at_work:
            await until(lambda: engine.worker.census.in_flight, "the worker has the lease again")
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
    """The worker stops at the deadline with one ERROR about its moves; another worker repeats the work."""
    async with Engine(crawl, url=proxy.url, timeout_s=0.2) as engine:
        engine.may_end.clear()
        engine.seed()
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.works, "the entry is in work")
        await until(lambda: engine.counts[Put] == 4, "the children are stored")
        getattr(proxy, away)()
        engine.may_end.set()
        await until(lambda: crawl.done[0], "the ack of the parent is in the outbox")
        caplog.clear()
        began, clock = time.monotonic(), Stopwatch()
        await engine.stop(0.5)
        assert time.monotonic() - began >= 0.5
        assert clock.seconds < 4
        [line] = messages(caplog, logging.ERROR)
        assert engine.worker.id in line
        assert "Moves that were not stored: " in line
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
    """The worker has more puts than it can store in time, so it logs their number and stops."""
    async with Engine(crawl, url=proxy.url) as engine:
        await until(lambda: engine.counts["exchange"], "an exchange is answered")
        proxy.set_delay(0.1)
        engine.seed(range(15_000))
        began = Stopwatch()
        await engine.stop(0.5)
        assert began.seconds < 1.5
    [line] = messages(caplog, logging.ERROR)
    assert "takes too long" in line
    assert re.search(r"not stored: \d{4,}\.", line)
