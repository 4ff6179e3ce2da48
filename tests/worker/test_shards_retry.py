"""A retry of failed requests while a worker of several shards is present."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.model import Census
from worker.engine import until
from worker.spread import SHARDS, Spread, fail_one, leased, of


async def test_a_retry_while_the_last_worker_leaves_loses_nothing(spread: Spread) -> None:
    """The worker knows that the run is finished, and the retry opens it again."""
    async with spread.engine() as worker:
        await fail_one(worker, of(2))
        spread.retry()
        await worker.stop()
    left = spread.peek()
    assert (left.phase, left.census.waiting, left.census.failed) == ("open", 1, 0)


async def test_a_retry_opens_the_run_again_for_each_shard(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry treats one shard after another. Other workers may finish the run between two shards."""
    async with spread.engine() as worker:
        for shard in (1, 2):
            worker.seed([of(shard)])
            lease = await leased(worker)
            worker.worker.fail(lease.entry_id, "no", "url")
        await until(lambda: not worker.worker.pending, "end")
        await worker.stop()
    move = retry_records

    def finished_before(client: Any, shard: keys.Shard, *args: Any, **named: Any) -> Any:
        if shard.number:
            assert spread.get("phase") == b"open"
            spread.set(0, phase="finished")
        return move(client, shard, *args, **named)

    monkeypatch.setattr("scrapy_dq.frontier.admin.retry.retry_records", finished_before)
    assert spread.retry() == 2
    assert spread.get("phase") == b"open"


async def test_fingerprints_that_a_retry_needs_stay_in_all_shards(spread: Spread) -> None:
    """Otherwise links into shards without failed requests would be new, and so would their pages' links."""
    spread.crawl.size = 60
    async with spread.engine() as worker:
        worker.seed()
        await worker.run()
        await fail_one(worker, of(1))
        await worker.stop()
    for shard in range(SHARDS):
        assert spread.get("cleared", shard) in (b"0", "0")
        assert spread.redis.exists(spread.key(shard, "seen"))


async def test_a_worker_whose_run_is_over_leaves_the_entries_of_a_retry_alone(spread: Spread) -> None:
    """Such a worker no longer exchanges with home, so it could mistake the retry for leftovers of its run."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        worker.parts[0].protocol._finish(over=True)
        await worker.stop()
    assert spread.peek().census.waiting == 1


async def test_a_worker_whose_run_is_over_keeps_the_fingerprints_that_a_retry_needs(spread: Spread) -> None:
    """A page may have failed at home after the run was over. A retry needs the fingerprints in all shards."""
    async with spread.engine() as worker:
        await fail_one(worker, of(0))
        home = worker.parts[0].protocol
        home.census = Census()
        home._finish(over=True)
        await worker.stop()
    assert spread.get("cleared", 1) != b"1"
