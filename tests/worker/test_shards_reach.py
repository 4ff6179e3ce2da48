"""If only one worker cannot reach a shard, others finish its pages. In an outage, all workers wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from scrapy_dq.frontier.answers import Member
from scrapy_dq.frontier.model import Census
from scrapy_dq.frontier.moves import Release
from scrapy_dq.sharding.reach import Reach
from worker.engine import until
from worker.spread import Spread, cut_off, leased, of

TTL_S = 0.6


@pytest.mark.parametrize("lost", [0, 1], ids=["home", "another one"])
async def test_pages_with_links_into_an_unreachable_shard_are_given_back(spread: Spread, lost: int) -> None:
    """The page's link cannot be stored. Another worker gets the page, and this worker leases no more."""
    spread.crawl.size = 0
    async with spread.engine(ttl_s=TTL_S) as worker, spread.engine(ttl_s=TTL_S) as other:
        other.capacity = 0
        other.seed([])
        page = of(2)
        worker.seed([page])
        lease = await leased(worker)
        async with cut_off(worker.parts[lost]):
            worker.put(of(lost), parent=lease.entry_id)
            worker.worker.ack(lease.entry_id)
            other.capacity = 4
            again = await leased(other)
            assert (again.entry_id, int(again.payload)) == (lease.entry_id, page)
            assert worker.counts[Release] == 1
            assert worker.worker.room_of(worker.parts[2]) == 0
        await until(lambda: worker.worker.room_of(worker.parts[2]) > 0, "the shard is back")
        other.worker.ack(again.entry_id)


@pytest.mark.parametrize("lost", [0, 1], ids=["home", "another one"])
async def test_a_worker_that_is_cut_off_from_a_shard_leaves_the_others_at_once(
    spread: Spread, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The lost shard gets one more try, so that the other shards get the worker's remaining time."""
    async with spread.engine(ttl_s=TTL_S) as worker, spread.engine(ttl_s=TTL_S) as other:
        other.seed([])
        worker.seed([])
        async with cut_off(worker.parts[lost]) as exchange:
            worker.put(of(lost))
            await until(lambda: worker.worker.room_of(worker.parts[2]) == 0, "the shard is given up")
            caplog.clear()
            await worker.worker.parts[lost].membership.dialogue.stop_exchanging()
            exchange.reset_mock()
            await worker.stop(60)
        assert exchange.call_count == 1
        assert [count for shard, count in enumerate(spread.members()) if shard != lost] == [1, 1]
        (record,) = [each for each in caplog.records if each.levelname in {"WARNING", "ERROR"}]
        assert "Moves that were not stored: 1" in record.getMessage()


class Looks:
    """A worker of three shards; the last one does not answer. A look reads the members of a shard."""

    def __init__(self) -> None:
        self.members = AsyncMock()
        self.outbox = SimpleNamespace(parentless=0)
        frontier = SimpleNamespace(members=self.members, crawl="crawl")
        self.outages = [SimpleNamespace(unanswered=None) for _ in range(3)]
        parts: Any = [
            SimpleNamespace(
                id="own",
                outage=shard == 2,
                frontier=frontier,
                dialogue=SimpleNamespace(outage=outage),
                protocol=SimpleNamespace(outbox=self.outbox, stays_raised=lambda: False),
                census=Census(),
            )
            for shard, outage in enumerate(self.outages)
        ]
        self.deferred, self.end = Mock(), Mock()
        self.deferred.give_up_on.return_value = [(0, b"lease")]
        self.listener = Mock()
        self.reach = Reach(parts, 30.0, self.deferred, self.end, self.listener)
        self.outages[2].unanswered = (100.0, 131.0)

    async def look(self, *others: Member) -> None:
        self.members.return_value = [Member("own", {}, False, 1, beat=1), *others]
        await self.reach._check()


def other(beat: int, waits_for: str = "") -> Member:
    return Member("other", {}, fenced=False, in_flight=0, beat=beat, waits_for=waits_for)


async def test_a_shard_is_given_up_only_if_a_live_worker_does_not_wait_for_it() -> None:
    """Another worker proves nothing if it also waits for the shard, or if its heartbeat stands still."""
    looks = Looks()
    for beat in (1, 2, 3):
        await looks.look(other(beat, waits_for="no answer"))
        await looks.look(other(beat))
    assert looks.reach.lost == frozenset()
    await looks.look()
    await looks.look(other(4))
    await looks.look(other(5))
    assert looks.reach.lost == frozenset()  # this worker has not tried the shard again since the last look
    looks.outages[2].unanswered = (100.0, 133.0)
    await looks.look(other(6, waits_for="no answer"))
    await looks.look(other(7))
    assert looks.reach.lost == frozenset()
    looks.outages[2].unanswered = (100.0, 135.0)
    await looks.look(other(8))
    assert looks.reach.lost == {2}
    looks.deferred.give_up_on.assert_called_once_with(2)
    looks.end.assert_called_once_with(0, Release(b"lease"))
    await looks.look(other(9))
    looks.end.assert_called_once()
    looks.listener.cut_off.assert_not_called()
    looks.outbox.parentless = 1
    await looks.look(other(10))
    looks.listener.cut_off.assert_called_once_with()
    looks.outages[2].unanswered = None
    await looks.look()
    assert looks.reach.lost == frozenset()


async def test_a_shard_that_is_silent_for_a_short_time_is_not_given_up() -> None:
    looks = Looks()
    looks.outages[2].unanswered = (100.0, 130.0)
    for beat in range(3):
        await looks.look(other(beat))
    assert looks.reach.lost == frozenset()
    looks.members.assert_not_called()
