"""The end of a run in a crawl of several shards, and the fate of the requests that still wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Census
from scrapy_dq.frontier.moves import Release
from scrapy_dq.frontier.worker.listener import Count
from scrapy_dq.sharding.closing import SimultaneousCheck, TerminationDetector
from scrapy_dq.sharding.worker import ShardedWorker
from worker.engine import Engine, until
from worker.spread import SPREAD, Spread, cut_off, fail_one, leased, of, stored


@pytest.mark.parametrize("first", [0, 1])
async def test_a_run_ends_as_soon_as_its_puts_and_level_are_certain(spread: Spread, first: int) -> None:
    """After the horizon, the worker asks the shard and home at once, not at the next regular exchange."""
    spread.crawl.size = 0
    async with spread.engine() as worker:
        worker.seed([of(first)])
        lease = await leased(worker)
        if not first:
            worker.put(of(2), lease.entry_id)
        worker.worker.ack(lease.entry_id)
        if not first:
            worker.worker.ack((await leased(worker)).entry_id)
        protocols = [each.protocol for each in worker.parts]
        await until(lambda: not any(each.outbox or each.under_way for each in protocols), "all is stored")
        for each in worker.parts:
            each.dialogue.pace.due_at = lambda *of, pace=each.dialogue.pace: (
                0.0 if pace.is_called else float("inf")
            )  # type: ignore[method-assign, misc]
            each.dialogue.kick()
        assert worker.worker.pending
        await until(lambda: not worker.worker.pending, "the end")
        assert worker.worker.ending == "finished"


async def test_losses_of_another_shard_are_counted_at_home(spread: Spread) -> None:
    """Home counts the loss once although both workers report it, and again after a roll-back of home."""
    async with spread.engine() as a, spread.engine() as b:
        a.worker.listen(True)
        spread.set(2, gone=3)
        a.seed([of(2)])
        b.seed()
        running = asyncio.gather(a.run(), b.run())
        await until(lambda: spread.get("gone") == b"3", "home counts the loss")
        await until(lambda: a.worker.census.gone == b.worker.census.gone == 3, "both workers know the loss")
        spread.redis.hdel(keys.meta(spread.crawl.name), "gone", "gone_elsewhere")
        spread.fence(0, a.worker.id)
        await until(lambda: spread.get("gone") == b"3", "home counts the loss again")
        a.worker.listen(False)
        await running
        assert (a.worker.ending, b.worker.ending) == ("frontier_damaged", "frontier_damaged")
    assert spread.get("gone") == b"3"


class Answered:
    """The part of a protocol that the termination detector uses."""

    def __init__(self, number: int) -> None:
        self.id = str(number)
        self.outbox, self.leases, self.lost, self.finished, self.finish_at = [], [], False, False, 0  # type: ignore[var-annotated]
        self.composed, self.applied, self.version, self.left, self.damage = 1, 1, number, 1, ""

    @property
    def census(self) -> Census:
        return Census(waiting=self.left, version=self.version)


def test_the_collect_starts_again_after_the_worker_has_registered_again() -> None:
    """After a roll-back, a census may by chance have the same version as before, though puts are missing."""
    shards = [Answered(number) for number in range(2)]
    asked: list[int] = []
    detector = TerminationDetector(cast("Any", shards), asked.append)
    for number, each in enumerate(shards):
        each.left = 0
        detector.step(number, quiet=True)
    assert asked == [0]
    shards[1].id = "another"
    detector.step(1, quiet=True)
    shards[0].applied += 1
    detector.step(0, quiet=True)
    assert asked == [0, 0]  # the questions begin again with home, so shard 1 was not asked


def test_the_collect_does_not_begin_while_a_shard_needs_an_audit() -> None:
    """The shard's counts may wrongly show that nothing is left."""
    shards = [Answered(number) for number in range(2)]
    asked: list[int] = []
    detector = TerminationDetector(cast("Any", shards), asked.append)
    for damage, questions in (("torn", []), ("", [0])):
        shards[1].damage = damage
        for number, each in enumerate(shards):
            each.left = 0
            detector.step(number, quiet=True)
        assert asked == questions


def test_each_shard_must_report_twice_that_only_entries_over_budget_are_left() -> None:
    """Work may move from a shard that has not answered to one that has answered. Second answers show this."""
    shards = [
        SimpleNamespace(
            census=Census(waiting=1, only_over_budget=1), applied=1, outbox=[], leases=[],
            common=SimpleNamespace(composed=3),
        )
        for _ in range(3)
    ]  # fmt: skip
    worker: Any = object.__new__(ShardedWorker)
    worker._protocols, worker._common = shards, shards[0].common
    worker._simultaneous = SimultaneousCheck(shards, worker._common)  # type: ignore[arg-type]
    assert not worker.only_over_budget()
    shards[0].applied, shards[1].applied = 4, 5
    assert not worker.only_over_budget()
    shards[2].applied, shards[1].census = 6, Census(waiting=2, only_over_budget=1, version=1)
    assert not worker.only_over_budget()
    for each in shards:
        worker._common.composed = each.applied = 9
    assert worker.only_over_budget()


async def test_a_worker_whose_run_is_over_waits_for_the_answers_of_all_shards(spread: Spread) -> None:
    """A shard may be rolled back further than the log reaches, and only this worker can report it."""
    async with spread.engine() as worker:
        # Home still has entries. So if it reports a finished run, the run is over for this worker.
        worker.seed([of(0), of(1)])
        home, leases = (each.protocol for each in worker.parts[:2])
        dialogue = worker.parts[2]
        await until(lambda: home.census.in_flight == leases.census.in_flight == 1, "the seeds in the buffer")
        async with cut_off(dialogue):
            spread.forget(0, worker, phase="finished", cleared=1, run=1)
            await until(lambda: worker.worker.over, "the end")
            assert (worker.worker.pending, worker.told_finished) == (True, 0)
            assert worker.worker.take() is None
            await until(lambda: leases.census.in_flight == 0 and leases.census.waiting == 1, "the release")
        await until(lambda: not worker.worker.pending, "the answer")
        assert (worker.worker.ending, worker.told_finished) == ("run_over", 1)


async def test_puts_waiting_for_home_are_kept_when_another_shard_is_in_the_next_run(
    spread: Spread,
) -> None:
    """Home stores these puts when this worker leaves, so a Queue must not put them again."""
    async with spread.engine() as worker:
        worker.seed([of(1)])
        await leased(worker)
        async with cut_off(worker.parts[0]):
            worker.put(of(0))
            spread.forget(1, worker, run=1)
            await until(lambda: worker.worker.over, "the end")
            assert worker.parts[0].protocol.outbox.parentless == 1
            assert b"%d" % of(0) not in [put.token for put in worker.worker.leftover_puts]


async def test_a_request_for_another_shard_is_missing_when_home_is_in_the_next_run(
    spread: Spread, caplog: pytest.LogCaptureFixture
) -> None:
    """The request waits until home confirms the level of seeding, which home does not do any more."""
    async with spread.engine() as worker:
        await fail_one(worker, of(2))
        spread.forget(0, worker, run=1)
        added = of(1)
        worker.put(added)
        await until(lambda: not worker.worker.pending, "the end")
        assert worker.worker.ending == "run_over"
        assert [put.token for put in worker.worker.leftover_puts] == [b"%d" % added]
        before = worker.counts[Count.EXCHANGE]
        await worker.stop()
        assert worker.counts[Count.EXCHANGE] - before < 20
    assert not spread.redis.exists(spread.key(1, "members"))
    assert "1 requests of start() or engine.crawl() that it could not store are dropped" in caplog.text


async def test_requests_of_other_shards_are_missing_when_home_has_forgotten_their_worker(
    spread: Spread,
) -> None:
    """Home was rolled back to before the worker joined, and other workers finished the run."""
    async with Engine(spread.crawl, identity=SPREAD) as worker:
        worker.seed([of(1)])
        shard = worker.parts[1].protocol
        await until(lambda: shard.census.in_flight == 1, "the seed is in the buffer")
        spread.forget(0, worker, phase="finished", cleared=1)
        await until(lambda: worker.worker.over, "the end")
        assert worker.worker.ending == "run_over"
        assert [put.token for put in worker.worker.leftover_puts] == [b"%d" % of(1)]


async def test_unconfirmed_puts_count_as_missing_when_another_shard_is_in_the_next_run(
    spread: Spread,
) -> None:
    """Only home's answer shows the reason with which the spider closes, so the worker waits for it."""
    async with spread.engine() as worker:
        await fail_one(worker, of(1))
        async with cut_off(worker.parts[0]):
            worker.put(of(2))
            spread.forget(1, worker, run=1)
            await until(lambda: worker.worker.over, "the end")
            assert worker.worker.pending
        await until(lambda: not worker.worker.pending, "the answer of home")
        assert worker.worker.ending == "run_over"


async def test_a_request_of_a_listening_worker_opens_a_finished_run(spread: Spread) -> None:
    """While home does not answer, the run is finished. This worker's request then opens the run again."""
    async with spread.engine() as worker:
        worker.worker.listen(True)
        worker.seed([])
        home, shard = (each.protocol for each in worker.parts[:2])
        await until(lambda: home.raised_at is None, "the level is lowered")
        async with cut_off(worker.parts[0]):
            worker.put(of(1))
            spread.set(0, phase="finished")
        await until(lambda: stored(shard.census) == 1, "the put is stored")
        assert not worker.worker.over
        worker.worker.listen(False)


async def test_a_run_is_not_over_because_another_shard_has_ended_it(spread: Spread) -> None:
    """A retry opened the run again at home, so the page from home continues and its requests are stored."""
    async with spread.engine() as worker:
        worker.seed([of(0)])
        lease = await leased(worker)
        shard = worker.parts[2]
        await until(lambda: not worker.parts[0].protocol.log.parentless, "the seed is certain")
        spread.forget(2, worker, phase="finished")
        worker.put(of(2), lease.entry_id)
        await until(lambda: stored(shard.protocol.census) == 1, "the put is stored")
        assert not worker.worker.over


async def test_the_page_of_a_worker_whose_run_is_over_is_released(spread: Spread) -> None:
    """Further puts of the page are dropped."""
    async with spread.engine() as worker:
        worker.seed([of(0)])
        lease = await leased(worker)
        home = worker.parts[0]
        home.protocol._finish(over=True)
        worker.worker.ack(lease.entry_id)
        assert [type(move) for move in home.protocol.outbox.prefix()] == [Release]
