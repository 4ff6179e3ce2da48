"""A worker registers in all shards of a crawl and brings them into one run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.model import FrontierRefused, Gone, Status
from worker.engine import Engine, until
from worker.spread import SHARDS, SPREAD, Spread, cut_off, fail_one, of


async def test_a_worker_whose_run_ends_while_it_joins_takes_no_part(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a worker begins no run in a cleared shard, and leaves the shards that it has joined."""
    async with spread.engine() as early, spread.engine(join=False) as late:
        join = late.worker.parts[0].membership.join

        async def join_late(new_epoch: str) -> Joined:
            joined = await join(new_epoch)
            spread.set(0, phase="finished")
            spread.set(1, cleared=1)
            return joined

        monkeypatch.setattr(late.worker.parts[0].membership, "join", join_late)
        async with cut_off(early.home):  # `early` is seeding, and would open the run again
            joined = await late.join()
        assert (joined.status, joined.run, joined.ended_s) == (Status.FINISHED, 0, None)
        assert (late.worker.over, late.worker.pending) == (True, False)
        await late.stop()
        assert spread.get("cleared", 1) == b"1"
        assert spread.members() == [1, 1, 1]


async def test_a_worker_that_cannot_join_a_shard_leaves_the_others(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise home would count the worker as seeding, and later its start() as interrupted.

    But this start() has never run.
    """
    identity = replace(SPREAD, starts="*one")
    async with spread.engine() as other, Engine(spread.crawl, identity=identity, join=False) as worker:

        async def refuse(*args: Any) -> Joined:
            raise FrontierRefused("no")

        monkeypatch.setattr(worker.parts[2].membership, "join", refuse)
        with pytest.raises(FrontierRefused):
            await worker.join()
        assert spread.members() == [1, 1, 1]
        assert await other.worker.parts[0].frontier.interrupted_starts() == []


async def test_a_request_that_comes_while_home_registers_a_worker_opens_the_run(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a request for another shard, which the rejoin at home does not report."""
    async with spread.engine() as worker:
        await fail_one(worker, of(1))
        home = worker.parts[0]
        rejoin = home.frontier.rejoin

        async def meanwhile(*args: Any) -> Any:
            monkeypatch.undo()
            worker.put(of(2))
            return await rejoin(*args)

        monkeypatch.setattr(home.frontier, "rejoin", meanwhile)
        spread.forget(0, worker, phase="finished")
        worker.home.ask()
        await worker.until_stored()
        assert not worker.worker.over


async def test_a_worker_that_home_moves_into_the_next_run_joins_the_other_shards_again(
    spread: Spread, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise no answer of these shards would show the end, and the worker would never end."""
    async with spread.engine() as worker:
        await fail_one(worker, of(1))
        worker.put(of(2))
        await worker.until_stored()
        shard = worker.parts[1]
        before = shard.id
        spread.forget(1, worker, run=1)
        await until(lambda: shard.protocol.finished, "the answer of the shard")
        spread.set(0, run=1)
        await until(lambda: worker.worker.run == 1, "the next run at home")
        await until(lambda: shard.id != before, "the next run in the shard")
        assert spread.redis.smembers(spread.key(1, "members")) == {shard.id.encode()}
    assert "rolled back further" not in caplog.text


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_worker_brings_all_shards_into_its_latest_run(spread: Spread, ahead: int) -> None:
    """All shards were rolled back, and the worker that brought one of them into the latest run has died.

    A worker that is a member of that shard takes the other shards along.
    """
    spread.crawl.size = 60
    async with spread.engine(concurrency=0) as worker:
        worker.seed(range(20, 60))  # without children, as shards forget fingerprints of the previous run
        await worker.until_stored(40)
        spread.set(ahead, run=1)
        await until(lambda: set(spread.metas("run")) == {b"1"}, "one run")
        worker.slots = worker.capacity = 4
        for each in worker.parts:
            each.dialogue.kick()
        await worker.run()
        assert spread.crawl.done == dict.fromkeys(range(20, 60), 1)
        assert worker.worker.ending == "finished"


async def test_a_worker_that_leaves_brings_all_shards_into_its_latest_run(
    spread: Spread,
) -> None:
    """The worker learns of the later run only as it leaves.

    If it left the other shards in the earlier run, the next join would delete their entries.
    """
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1), of(2)])
        await worker.until_stored(2)
        await until(lambda: not worker.worker._level.needed(), "the puts are certain")
        for each in worker.parts:
            each.dialogue.pace.due_at = lambda *of: float("inf")  # type: ignore[method-assign]
            await until(lambda: not each.protocol.under_way, "no exchange")  # noqa: B023
        spread.set(0, run=1)
        worker.home.dialogue.note(Gone(1, 0))
        await worker.stop()
    assert spread.metas("run") == [b"1"] * SHARDS


async def test_a_worker_does_not_wait_for_a_shard_that_is_in_the_next_run(spread: Spread) -> None:
    """Home was rolled back to the previous run, which cannot end without the shard."""
    async with spread.engine() as worker:
        shard = worker.parts[1]
        await until(lambda: shard.protocol.applied, "an exchange")
        spread.forget(1, worker, run=1)
        await until(lambda: shard.protocol.finished, "the answer of the shard")
        assert worker.worker.pending
        worker.seed([])
        await until(lambda: not worker.worker.pending, "the end")
        assert worker.worker.ending == "run_over"
