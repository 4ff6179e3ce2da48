"""A worker of several shards at its work: heartbeats, leases, pauses, log lines, notices."""

from __future__ import annotations

import threading
from unittest.mock import AsyncMock, call, patch

import pytest

from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.model import Census, FrontierUnavailable
from scrapy_dq.sharding.pace import share
from support.waiting import patience
from worker.engine import Engine, until
from worker.spread import SHARDS, SPREAD, Spread, leased, of, place, stored


async def test_a_worker_has_one_thread_for_the_heartbeats_in_all_shards(spread: Spread) -> None:
    """Each shard still gets its beats."""
    before = threading.active_count()
    async with spread.engine(ttl_s=0.6):
        beats = [spread.key(shard, "beats") for shard in range(SHARDS)]
        await until(lambda: all(int(spread.redis.hvals(each)[0]) > 1 for each in beats), "beats")
        assert threading.active_count() == before + 1


async def test_a_pause_releases_the_buffers_of_all_shards(spread: Spread) -> None:
    """Only home gets the command. The worker also releases leases that arrive later from other shards."""
    spread.crawl.size = 300
    async with spread.engine(concurrency=12) as worker:
        worker.seed(range(100))
        dialogues = worker.parts
        await until(lambda: all(each.leases.buffered for each in dialogues), "leases")
        steer(spread.redis, spread.crawl.name, Command.PAUSE)
        await until(lambda: worker.worker.on_hold, "the pause")
        assert not any(each.leases.buffered for each in dialogues)
        await until(lambda: not any(each.leases for each in dialogues), "releases")
        assert spread.peek().census.waiting == 100


async def test_a_line_about_a_shard_other_than_home_names_it(
    spread: Spread, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "scrapy_dq")
    async with Engine(spread.crawl, identity=SPREAD) as worker:
        for shard, each in enumerate(worker.parts):
            spread.fence(shard, each.id)
            each.dialogue.outage.began(FrontierUnavailable("no answer"))
        worker.seed(map(of, range(SHARDS)))
        for each in worker.parts:
            await until(lambda: not each.protocol.outbox, "the worker has registered again in this shard")  # noqa: B023
    lines = [record.getMessage() for record in caplog.records if "frontier.worker" in record.name]
    for number in range(SHARDS):
        label = f"Shard {number} of crawl {spread.crawl.name!r}: " if number else ""
        for text in ("no answer. The crawl continues", "Redis is back after", "Worker "):
            assert any(line.startswith(label + text) for line in lines), (label, text)


def test_a_worker_with_fewer_slots_than_shards_asks_every_shard() -> None:
    """Even a worker without a free slot asks for one lease, so that no shard waits forever."""
    assert share(0, 0, 0.5) == 1
    assert share(4, 2, 0.5) == 4
    assert share(1, 0, 0.1) == 1


async def test_shards_are_served_in_proportion_to_their_backlogs(spread: Spread) -> None:
    """If the shards took turns, the small shard would be empty after a fifth of the run.

    Each shard's share is rounded up, so the small shard may be served slightly too early.
    """
    spread.crawl.size = 0
    many, few = ([n for n in range(1000, 3000) if place(n) == shard] for shard in (0, 1))
    async with spread.engine(concurrency=16) as worker:
        worker.seed([*many[:600], *few[:60]])
        await until(lambda: stored(worker.worker.census) >= 660, "all is stored", patience(10))
        shards: list[int] = []
        while len(shards) < 660:
            lease = await leased(worker)
            shards.append(place(int(lease.payload)))
            worker.worker.ack(lease.entry_id)
    assert shards[:220].count(1) < 60


async def test_dead_letters_and_outages_of_other_shards_are_known_to_the_worker(spread: Spread) -> None:
    """DQ_NOTIFY_URL needs the counts of all shards, and home knows only its own."""
    async with spread.engine() as worker:
        with patch.object(worker.home.frontier, "notices", AsyncMock(return_value=None)) as notices:
            await worker.worker.notices()
            for each in worker.parts:
                each.protocol.census = Census(dead=2)
                each.dialogue.counting.answered(0.0, 70.0)
            await worker.worker.notices()
        assert notices.mock_calls == [call(0, 0.0), call(2 * (SHARDS - 1), 70.0)]
