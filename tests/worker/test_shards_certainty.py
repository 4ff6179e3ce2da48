"""Ends of leases in one shard wait until the puts of these leases in other shards are retired."""

from __future__ import annotations

import asyncio
import gc
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import MAX_MOVES, Admission, Lease
from scrapy_dq.frontier.moves import Ack, Bury, Defer, Ending, Put
from scrapy_dq.frontier.worker.child_tokens import ChildTokens
from scrapy_dq.sharding.deferred_ends import DeferredEnds
from worker.engine import until
from worker.spread import HORIZON_S, SHARDS, Spread, cut_off, leased, of, place, stored


async def test_a_page_waits_for_an_earlier_put_of_its_link_until_that_is_certain(spread: Spread) -> None:
    """Most links were put long ago and are certain, that is, retired.

    If pages with such links also waited, the kill of a worker would repeat many pages.
    """
    spread.crawl.size = 0
    links, at_home = ([n for n in range(1000, 2000) if place(n) == shard] for shard in (1, 0))
    async with spread.engine(concurrency=10) as worker:
        inner = worker.worker
        worker.seed(at_home[:4])
        first, second, third, fourth = [(await leased(worker)).entry_id for _ in range(4)]
        link = Put(b"of the first", Admission.SEEN, b"%d" % links[0], 0, 0, b"", first)
        assert inner.put(link)
        inner.ack(first)
        inner.depends([second], link.reference)
        inner.ack(second)
        inner.ack((await leased(worker)).entry_id)
        await until(lambda: inner.parts[1].protocol.retired == link.number, "the link is certain")
        assert worker.counts[Defer] == 2
        worker.put(links[1])
        inner.depends([third], link.reference)
        inner.ack(third)
        inner.depends([fourth], inner.last_references[1])
        inner.ack(fourth)
        inner.ack((await leased(worker)).entry_id)
        await until(lambda: not inner.pending, "the end")
        assert (worker.counts[Defer], worker.counts[Ack]) == (3, 6)


async def test_the_token_of_a_fed_request_is_deleted_when_its_payload_cannot_return(spread: Spread) -> None:
    """For a horizon after the end of its lease, a roll-back may bring the payload back.

    The worker that gets the payload then must find the token.
    """
    admitted = spread.key(1, "admitted")
    async with spread.engine() as worker:
        spread.crawl.size = 0
        worker.seed([of(0)])
        leases: list[Lease] = []
        await until(lambda: leases or leases.extend(filter(None, [worker.worker.take()])), "a payload")
        number = b"%d" % of(1)
        put = Put(b"its child...", Admission.ID, number, 0, False, number, leases[0].entry_id)
        put.token = put.entry_id = next(
            token for n in range(99) if shard_of(b"", token := b"%012d" % n, SHARDS) == 1
        )
        home = worker.parts[0].protocol
        worker.worker.put(put)
        worker.worker.note_fed(put)
        worker.worker.ack(leases[0].entry_id)
        await until(lambda: spread.redis.sismember(admitted, put.token), "the put is stored")
        while home.leases.owned:
            assert spread.redis.sismember(admitted, put.token)
            await asyncio.sleep(0.01)
        ended = time.monotonic()
        worker.worker.listen(True)
        await until(lambda: not spread.redis.sismember(admitted, put.token), "the token is deleted")
        assert time.monotonic() - ended > 0.8 * HORIZON_S


@pytest.mark.parametrize("lost", ["never", "before its end is confirmed", "after"])
def test_tokens_of_an_ended_lease_are_released_unless_it_was_lost(lost: str) -> None:
    home = SimpleNamespace(
        id="a", outbox=SimpleNamespace(appended=5, confirmed=4),
        leases=SimpleNamespace(owned={b"x", b"y"}), log=SimpleNamespace(certain_until=0.0),
    )  # fmt: skip
    forgotten: list[bytes] = []
    other = SimpleNamespace(log=SimpleNamespace(forgettable=forgotten))
    fed = ChildTokens(cast("Any", home), cast("Any", [home, other]))
    fed.exchanged(0.0)
    for lease in (b"x", b"y"):
        fed.put(lease, 1, b"of " + lease)
    fed.ends(b"x")
    fed.released(b"y")
    fed.ends(b"y")
    fed.exchanged(1.0)
    home.id = "b" if lost == "before its end is confirmed" else "a"
    home.outbox.confirmed = 5
    fed.exchanged(2.0)
    home.id = "a" if lost == "never" else "b"
    home.log.certain_until = 1.9
    fed.exchanged(3.0)
    assert not forgotten
    home.log.certain_until = 2.0
    fed.exchanged(4.0)
    assert forgotten == ([b"of x"] if lost == "never" else [])


def test_a_lease_that_was_lost_and_is_held_again_waits_for_its_new_puts() -> None:
    protocols = [SimpleNamespace(retired=0) for _ in range(3)]
    deferred = DeferredEnds(cast("Any", protocols))

    def held(*puts: int) -> bool:
        for shard, number in enumerate(puts, 1):
            deferred.depends(b"x", shard, number)
        return deferred.defers(0, Ack(b"x"))

    assert held(5)
    assert held(8, 3)
    protocols[1].retired, protocols[2].retired = 5, 3
    assert list(deferred.due(1)) == list(deferred.due(2)) == []
    protocols[1].retired = 8
    assert list(deferred.due(1)) == [(0, Ack(b"x"))]


def test_ends_that_wait_for_a_horizon_are_no_work_for_the_garbage_collector() -> None:
    """A busy worker has tens of thousands of waiting ends."""
    protocols = [SimpleNamespace(retired=0) for _ in range(3)]
    deferred = DeferredEnds(cast("Any", protocols))
    ends: list[Ending] = [Ack(b"%d" % number) for number in range(1000)]
    ends.append(Bury(b"other", "why"))
    for end in ends:
        deferred.depends(end.entry_id, 1, 1)
        deferred.depends(end.entry_id, 2, 1)
    gc.collect()
    before = len(gc.get_objects())
    assert all(deferred.defers(0, end) for end in ends)
    del end, ends
    gc.collect()
    assert len(gc.get_objects()) - before < 500
    protocols[1].retired = protocols[2].retired = 1
    assert list(deferred.due(1)) == []
    found = list(deferred.due(2))
    assert len(found) == 1001
    assert (0, Bury(b"other", "why")) in found
    assert (0, Ack(b"7")) in found


async def test_a_request_for_another_shard_waits_while_home_does_not_answer(spread: Spread) -> None:
    """At home, other workers may have declared this worker dead and finished the run."""
    async with spread.engine() as worker:
        worker.seed([of(1)])  # it waits, so the run stays open and the level of seeding stays raised
        shard = worker.parts[2]
        await worker.until_stored(1)
        async with cut_off(worker.parts[0]):
            worker.put(of(2))
            asked = shard.protocol.applied
            await until(lambda: shard.protocol.applied > asked + 1, "exchanges")
            assert (shard.protocol.outbox.parentless, stored(shard.protocol.census)) == (1, 0)
        await until(lambda: stored(shard.protocol.census) == 1, "the put is stored")


async def test_a_shard_is_not_asked_again_and_again_while_its_moves_wait_for_home(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the moves fill an exchange; they are sent when home is back."""
    full = [n for n in range(9000) if shard_of(b"", b"%d" % n, SHARDS) == 2][:MAX_MOVES]
    spread.crawl.size = 0
    async with spread.engine(concurrency=0) as worker:
        shard, dues = worker.parts[2], []
        due_at = shard.dialogue.pace.due_at

        def noted(want: int, moves: int, full: bool, *rest: Any) -> float:
            if shard.protocol.held_back and shard.protocol.waits_to_seed:
                dues.append((moves, full))
                return float("inf")
            return due_at(want, moves, full, *rest)

        monkeypatch.setattr(shard.dialogue.pace, "due_at", noted)
        async with cut_off(worker.parts[0]):
            worker.seed(full)
            assert shard.protocol.outbox.full
            await until(lambda: dues, "an exchange without moves")
            assert set(dues) == {(0, False)}
        await until(lambda: stored(shard.protocol.census) == len(full), "all is stored")


async def test_home_is_asked_at_once_for_a_put_made_during_its_exchange(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put needs a raised level of seeding, but the exchange under way lowers the level."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(0)])
        home = worker.parts[0]
        await until(lambda: home.protocol.raised_at is None, "the level is lowered")
        exchange, due_at, dues = home.frontier.exchange, home.dialogue.pace.due_at, []

        async def meanwhile(*args: Any) -> Any:
            monkeypatch.setattr(home.frontier, "exchange", exchange)
            receipt = await exchange(*args)
            worker.put(of(1))
            monkeypatch.setattr(
                home.dialogue.pace, "due_at", lambda *of: dues.append(due_at(*of)) or dues[-1]
            )
            return receipt

        monkeypatch.setattr(home.frontier, "exchange", meanwhile)
        await until(lambda: dues, "the answer")
        assert dues[0] == 0
