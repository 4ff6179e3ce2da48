"""A crawl over several shards of one Redis: docs/internals/shards.md."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, patch

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from scrapy_dq.frontier import Frontier, keys
from scrapy_dq.frontier.admin.control import Word, steer
from scrapy_dq.frontier.admin.overview import Overview, peek
from scrapy_dq.frontier.admin.producer import Producer
from scrapy_dq.frontier.admin.retry import retry, retry_records
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import (
    MAX_MOVES,
    Admission,
    Census,
    FrontierRefused,
    FrontierUnavailable,
    Gone,
    Joined,
    Lease,
    Seeding,
    Status,
)
from scrapy_dq.frontier.moves import Ack, Bury, Defer, Ending, Put, Release
from scrapy_dq.frontier.worker import dialogue, durability
from scrapy_dq.frontier.worker.child_tokens import ChildTokens
from scrapy_dq.frontier.worker.closing import TerminationDetector
from scrapy_dq.frontier.worker.deferred_ends import DeferredEnds
from scrapy_dq.frontier.worker.dialogue import Dialogue
from scrapy_dq.frontier.worker.listener import Count
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue.pace import OnDemand
from support.waiting import patience
from worker.engine import IDENTITY, ORDER, Crawl, Engine, until

SHARDS = 3
SPREAD = replace(IDENTITY, shards=SHARDS)
HORIZON_S = 0.3


@asynccontextmanager
async def cut_off(dialogue: Dialogue) -> AsyncIterator[None]:
    """No exchange of this dialogue gets through, and it has noticed."""
    with patch.object(dialogue._frontier, "exchange", side_effect=FrontierUnavailable("cut off")):
        await until(lambda: dialogue.outage.reason, "the outage")
        yield


class Spread:
    """A crawl of SHARDS shards, and what is stored there, past its workers."""

    def __init__(self, crawl: Crawl, redis: Redis) -> None:
        self.crawl, self.redis = crawl, redis

    def engine(self, **options: Any) -> Engine:
        """Return a worker whose puts are soon certain."""
        return Engine(self.crawl, identity=SPREAD, rollback_horizon_s=HORIZON_S, **options)

    def key(self, shard: int, name: str = "meta") -> str:
        return keys.prefix(keys.Shard(self.crawl.name, shard)) + name

    def get(self, field: str, shard: int = 0) -> bytes | None:
        return self.redis.hget(self.key(shard), field)  # type: ignore[return-value]

    def set(self, shard: int, **meta: Any) -> None:
        self.redis.hset(self.key(shard), mapping=meta)

    def metas(self, field: str) -> list[bytes | None]:
        """Return what all shards say of their run."""
        return [self.get(field, shard) for shard in range(SHARDS)]

    def members(self) -> list[int]:
        """Return how many members each shard has."""
        return [self.redis.scard(self.key(shard, "members")) for shard in range(SHARDS)]  # type: ignore[misc]

    def peek(self) -> Overview:
        return peek(self.redis, self.crawl.name)

    def retry(self) -> int:
        """Retry all that failed; return how many."""
        return retry(self.redis, self.crawl.name, self.peek(), failed=lambda record: True).failed

    def fence(self, shard: int, worker_id: str) -> None:
        self.redis.hset(self.key(shard, f"worker:{worker_id}"), "fenced", 1)

    def forget(self, shard: int, worker: Engine, **meta: Any) -> None:
        """As `forget_id`, of a worker's id there."""
        self.forget_id(shard, worker.dialogues[shard].id, **meta)

    def forget_id(self, shard: int, worker_id: str, **meta: Any) -> None:
        """Change what a shard says of its run; it has no record of the worker any more.

        At once: an exchange that saw half of it would be answered otherwise.
        """
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.hset(self.key(shard), mapping=meta)
            pipe.srem(self.key(shard, "members"), worker_id)
            pipe.delete(self.key(shard, f"worker:{worker_id}"))
            pipe.execute()


@pytest.fixture
def spread(crawl: Crawl, client: Redis) -> Spread:
    return Spread(crawl, client)


async def test_a_worker_has_one_thread_for_the_heartbeats_in_all_shards(spread: Spread) -> None:
    """And each shard has its beats."""
    before = threading.active_count()
    async with spread.engine(ttl_s=0.6):
        beats = [spread.key(shard, "beats") for shard in range(SHARDS)]
        await until(lambda: all(int(spread.redis.hvals(each)[0]) > 1 for each in beats), "beats")
        assert threading.active_count() == before + 1


async def test_a_worker_whose_run_ends_while_it_joins_takes_no_part(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins nothing in a shard that is cleared, and leaves those that it has joined."""
    async with spread.engine() as early, spread.engine(join=False) as late:
        join = late.worker.home.join

        async def join_late(new_epoch: str) -> Joined:
            joined = await join(new_epoch)
            spread.set(0, phase="finished")
            spread.set(1, cleared=1)
            return joined

        monkeypatch.setattr(late.worker.home, "join", join_late)
        async with cut_off(early.home):  # it is seeding, and would open the run again
            joined = await late.join()
        assert (joined.status, joined.run, joined.ended_s) == (Status.FINISHED, 0, None)
        assert (late.worker.over, late.worker.pending) == (True, False)
        await late.stop()
        assert spread.get("cleared", 1) == b"1"
        assert spread.members() == [1, 1, 1]


@pytest.mark.parametrize("first", [0, 1])
async def test_a_run_ends_as_soon_as_what_it_waits_for_is_certain(spread: Spread, first: int) -> None:
    """No idle exchange is needed: a shard, and home for the level, are asked when the horizon is over."""
    spread.crawl.size = 0
    async with spread.engine() as worker:
        worker.seed([of(first)])
        lease = await leased(worker)
        if not first:
            worker.put(of(2), lease.entry_id)
        worker.worker.ack(lease.entry_id)
        if not first:
            worker.worker.ack((await leased(worker)).entry_id)
        protocols = [each.protocol for each in worker.dialogues]
        await until(lambda: not any(each.outbox or each.under_way for each in protocols), "all is stored")
        for each in worker.dialogues:
            each.pace.due_at = lambda *of, pace=each.pace: 0.0 if pace.is_called else float("inf")  # type: ignore[method-assign, misc]
            each.kick()
        assert worker.worker.pending
        await until(lambda: not worker.worker.pending, "the end")
        assert worker.worker.ending == "finished"


async def test_a_page_waits_for_a_link_that_was_put_before_only_until_that_is_certain(spread: Spread) -> None:
    """Most links of most pages were put long before: else most pages would be crawled again after a kill."""
    spread.crawl.size = 0
    links, at_home = ([n for n in range(1000, 2000) if place(n) == shard] for shard in (1, 0))
    async with spread.engine(concurrency=10) as worker:
        inner = worker.worker
        worker.seed(at_home[:4])
        first, second, third, fourth = [(await leased(worker)).entry_id for _ in range(4)]
        link = Put(b"of the first", Admission.SEEN, b"%d" % links[0], 0, 0, b"", first)
        assert inner.put(link)
        inner.ack(first)
        inner.depends([second], inner.reference(link))
        inner.ack(second)
        inner.ack((await leased(worker)).entry_id)
        await until(lambda: inner.dialogues[1].protocol.retired == link.number, "the link is certain")
        assert worker.counts[Defer] == 2
        worker.put(links[1])
        inner.depends([third], inner.reference(link))
        inner.ack(third)
        inner.depends([fourth], inner.last_references[1])
        inner.ack(fourth)
        inner.ack((await leased(worker)).entry_id)
        await until(lambda: not inner.pending, "the end")
        assert (worker.counts[Defer], worker.counts[Ack]) == (3, 6)


async def test_a_worker_that_cannot_join_a_shard_has_left_the_others(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as seeding, and then as one whose start() was interrupted: it has not begun."""
    identity = replace(SPREAD, starts="*one")
    async with spread.engine() as other, Engine(spread.crawl, identity=identity, join=False) as worker:

        async def refuse(*args: Any) -> Joined:
            raise FrontierRefused("no")

        monkeypatch.setattr(worker.dialogues[2], "join", refuse)
        with pytest.raises(FrontierRefused):
            await worker.join()
        assert spread.members() == [1, 1, 1]
        assert await other.worker.home._frontier.interrupted_starts() == []


async def test_the_disks_of_all_shards_are_waited_for_at_once(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With appendfsync everysec each takes a second: a worker, and a process that only puts."""
    waiting = 0

    async def wait_for_all(*args: Any) -> str:
        nonlocal waiting
        waiting += 1
        await until(lambda: waiting >= SHARDS, "all")
        return ""

    monkeypatch.setattr(durability, "wait_until_durable", wait_for_all)
    async with spread.engine() as worker:
        await worker.worker.wait_until_durable(AsyncMock(), time.monotonic() + 5)
    waiting = 0
    async with producing(spread.crawl, durable=True):
        pass


def place(number: int) -> int:
    """Return the shard of an entry."""
    return shard_of(b"", b"%d" % number, SHARDS)


def of(shard: int) -> int:
    """Return an entry of a shard, which no link leads to."""
    return next(n for n in range(1000, 2000) if place(n) == shard)


async def leased(worker: Engine) -> Lease:
    """Wait for a lease, and take it."""
    found: list[Lease] = []
    await until(lambda: found.extend(filter(None, [worker.worker.take()])) or found, "lease")
    return found[0]


async def fail_one(worker: Engine, number: int) -> None:
    """Seed one request, and let it fail; then nothing is left."""
    worker.seed([number])

    def failed() -> bool:
        lease = worker.worker.take()
        if lease is not None:
            worker.worker.fail(lease.entry_id, "no", "url")
        return lease is not None

    await until(failed, "lease")
    await until(lambda: not worker.worker.pending, "end")


async def test_a_retry_while_the_last_worker_leaves_loses_nothing(spread: Spread) -> None:
    """It has heard that the run is finished, and the retry opens it again."""
    async with spread.engine() as worker:
        await fail_one(worker, of(2))
        spread.retry()
        await worker.stop()
    left = spread.peek()
    assert (left.phase, left.census.waiting, left.census.failed) == ("open", 1, 0)


async def test_a_retry_opens_the_run_for_each_part(spread: Spread, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has moved before may be done meanwhile, and the run finished again."""
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


async def test_what_a_retry_needs_stays_in_all_shards(spread: Spread) -> None:
    """Otherwise links into shards without failed requests would be new, and so what is below them."""
    spread.crawl.size = 60
    async with spread.engine() as worker:
        worker.seed()
        await worker.run()
        await fail_one(worker, of(1))
        await worker.stop()
    for shard in range(SHARDS):
        assert spread.get("cleared", shard) in (b"0", "0")
        assert spread.redis.exists(spread.key(shard, "seen"))


async def test_a_worker_that_home_takes_for_dead_stores_all_before_it_leaves(spread: Spread) -> None:
    """A put without a parent waits for home; meanwhile its shard is not asked without a pause."""
    spread.crawl.size = 1
    async with spread.engine() as worker:
        worker.seed()
        await worker.run()
        home = worker.home
        spread.fence(0, home.id)
        worker.put(of(1))
        before = worker.counts[Count.EXCHANGE]
        await worker.stop()
        assert worker.counts[Count.EXCHANGE] - before < 100
    assert spread.peek().census.waiting == 1


async def test_home_knows_what_is_gone_from_another_shard(spread: Spread) -> None:
    """Once, though both workers tell it; and again, when home was rolled back."""
    async with spread.engine() as a, spread.engine() as b:
        a.worker.listen(True)
        spread.set(2, gone=3)
        a.seed([of(2)])
        b.seed()
        running = asyncio.gather(a.run(), b.run())
        await until(lambda: spread.get("gone") == b"3", "home knows it")
        await until(lambda: a.worker.census.gone == b.worker.census.gone == 3, "both know it")
        spread.redis.hdel(keys.meta(spread.crawl.name), "gone", "gone_elsewhere")
        spread.fence(0, a.worker.id)
        await until(lambda: spread.get("gone") == b"3", "home knows it again")
        a.worker.listen(False)
        await running
        assert (a.worker.ending, b.worker.ending) == ("frontier_damaged", "frontier_damaged")
    assert spread.get("gone") == b"3"


async def test_a_pause_releases_the_buffers_of_all_shards(spread: Spread) -> None:
    """At once, and what comes late, too: only home hears of the pause."""
    spread.crawl.size = 300
    async with spread.engine(concurrency=12) as worker:
        worker.seed(range(100))
        dialogues = worker.dialogues
        await until(lambda: all(each.leases.buffered for each in dialogues), "leases")
        steer(spread.redis, spread.crawl.name, Word.PAUSE)
        await until(lambda: worker.worker.on_hold, "the pause")
        assert not any(each.leases.buffered for each in dialogues)
        await until(lambda: not any(each.leases for each in dialogues), "releases")
        assert spread.peek().census.waiting == 100


async def test_a_line_about_another_shard_than_home_names_it(
    spread: Spread, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "scrapy_dq")
    async with Engine(spread.crawl, identity=SPREAD) as worker:
        for shard, each in enumerate(worker.dialogues):
            spread.fence(shard, each.id)
            each.outage.began(FrontierUnavailable("no answer"))
        worker.seed(map(of, range(SHARDS)))
        for each in worker.dialogues:
            await until(lambda: not each.protocol.outbox, "it has registered again")  # noqa: B023
    lines = [record.getMessage() for record in caplog.records if "frontier.worker" in record.name]
    for number in range(SHARDS):
        label = f"Shard {number} of crawl {spread.crawl.name!r}: " if number else ""
        for text in ("no answer. The crawl continues", "Redis is back after", "Worker "):
            assert any(line.startswith(label + text) for line in lines), (label, text)


async def test_the_token_of_a_fed_request_goes_when_its_payload_cannot_come_back(spread: Spread) -> None:
    """Not before: until a horizon after the end of its lease, the next worker must find the token."""
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
        home = worker.home.protocol
        worker.worker.put(put)
        worker.worker.note_fed(put)
        worker.worker.ack(leases[0].entry_id)
        await until(lambda: spread.redis.sismember(admitted, put.token), "it is stored")
        while home.leases.owned:
            assert spread.redis.sismember(admitted, put.token)
            await asyncio.sleep(0.01)
        ended = time.monotonic()
        worker.worker.listen(True)
        await until(lambda: not spread.redis.sismember(admitted, put.token), "its token has gone")
        assert time.monotonic() - ended > 0.8 * HORIZON_S


@pytest.mark.parametrize("lost", ["never", "before its end is confirmed", "after"])
def test_a_lease_that_ended_lets_its_tokens_go_unless_it_was_lost(lost: str) -> None:
    home = SimpleNamespace(
        id="a", outbox=SimpleNamespace(appended=5, confirmed=4),
        leases=SimpleNamespace(owned={b"x", b"y"}), log=SimpleNamespace(certain_until=0.0),
    )  # fmt: skip
    forgotten: list[bytes] = []
    fed = ChildTokens(cast("Any", [home, SimpleNamespace(log=SimpleNamespace(forgettable=forgotten))]), 0)
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


def test_what_was_held_and_lost_and_is_held_again_waits_for_its_new_puts() -> None:
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


def test_what_waits_for_a_horizon_costs_the_garbage_collector_nothing() -> None:
    """Of a busy worker that is tens of thousands."""
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


def test_a_worker_with_fewer_slots_than_shards_asks_each() -> None:
    """Also one that is full: no shard is passed over for ever."""
    assert Pace().share(8, 8, 0, 0.5) == 1
    assert Pace().share(8, 4, 2, 0.5) == 4
    assert OnDemand(bool, bool).share(1, 5, 0, 0.1) == 1


async def test_shards_are_worked_at_in_proportion_to_what_waits_in_them(spread: Spread) -> None:
    """With whole leases, rounded up. By turns, the small one would be empty when a fifth of all is done."""
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


class Answered:
    """What the detector of the end uses of a protocol."""

    def __init__(self, number: int) -> None:
        self.id = str(number)
        self.outbox, self.leases, self.lost, self.finished, self.finish_at = [], [], False, False, 0  # type: ignore[var-annotated]
        self.composed, self.applied, self.version, self.left, self.damage = 1, 1, number, 1, ""

    @property
    def census(self) -> Census:
        return Census(waiting=self.left, version=self.version)


def test_the_questions_are_asked_anew_when_the_worker_has_registered_again() -> None:
    """A shard was rolled back: its version may be the same by chance, and what was put is missing."""
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
    assert asked == [0, 0]  # from the beginning: 1 was not asked again


def test_the_end_is_not_asked_for_while_an_audit_of_a_shard_is_due() -> None:
    """Its counts may say that nothing is left."""
    shards = [Answered(number) for number in range(2)]
    asked: list[int] = []
    detector = TerminationDetector(cast("Any", shards), asked.append)
    for damage, questions in (("torn", []), ("", [0])):
        shards[1].damage = damage
        for number, each in enumerate(shards):
            each.left = 0
            detector.step(number, quiet=True)
        assert asked == questions


def test_only_what_is_over_budgets_is_left_when_each_shard_has_said_so_twice() -> None:
    """A page may move to a shard that has answered from one that answers later: then the first differs."""
    shards = [
        SimpleNamespace(
            census=Census(waiting=1, only_over_budget=1), applied=1, outbox=[], leases=[],
            together=SimpleNamespace(composed=3),
        )
        for _ in range(3)
    ]  # fmt: skip
    worker: Any = object.__new__(Worker)
    worker._protocols, worker._witness, worker.home = shards, None, SimpleNamespace(protocol=shards[0])
    assert not worker.only_over_budget()
    shards[0].applied, shards[1].applied = 4, 5
    assert not worker.only_over_budget()
    shards[2].applied, shards[1].census = 6, Census(waiting=2, only_over_budget=1, version=1)
    assert not worker.only_over_budget()
    for each in shards:
        each.together.composed = each.applied = 9
    assert worker.only_over_budget()


async def test_dead_letters_and_outages_of_other_shards_are_known_to_the_worker(spread: Spread) -> None:
    """For DQ_NOTIFY_URL: home alone can tell only of its own."""
    async with spread.engine() as worker:
        assert worker.worker.elsewhere == (0, 0.0)
        for each in worker.dialogues:
            each.protocol.census = Census(dead=2)
            each.counting.answered(0.0, 70.0)
        assert worker.worker.elsewhere == (2 * (SHARDS - 1), 70.0)


def stored(census: Census) -> int:
    return census.waiting + census.in_flight


async def test_a_worker_whose_run_is_over_waits_for_the_answers_of_all_shards(spread: Spread) -> None:
    """One may have been rolled back further than the log reaches: then only this worker can tell."""
    async with spread.engine() as worker:
        # While something is left at home, a finished run there is over for this worker.
        worker.seed([of(0), of(1)])
        home, leases = (each.protocol for each in worker.dialogues[:2])
        dialogue = worker.dialogues[2]
        await until(lambda: home.census.in_flight == leases.census.in_flight == 1, "the seeds in the buffer")
        async with cut_off(dialogue):
            spread.forget(0, worker, phase="finished", cleared=1, run=1)
            await until(lambda: worker.worker.over, "the end")
            assert (worker.worker.pending, worker.told_finished) == (True, 0)
            assert worker.worker.take() is None
            await until(lambda: leases.census.in_flight == 0 and leases.census.waiting == 1, "it goes back")
        await until(lambda: not worker.worker.pending, "the answer")
        assert (worker.worker.ending, worker.told_finished) == ("run_over", 1)


async def test_what_waits_for_home_is_not_dropped_when_another_shard_is_in_the_next_run(
    spread: Spread,
) -> None:
    """Home takes it when this worker leaves; a Queue must not put it again."""
    async with spread.engine() as worker:
        worker.seed([of(1)])
        await leased(worker)
        async with cut_off(worker.home):
            worker.put(of(0))
            spread.forget(1, worker, run=1)
            await until(lambda: worker.worker.over, "the end")
            assert worker.home.protocol.outbox.parentless == 1
            assert b"%d" % of(0) not in [put.token for put in worker.worker.left_over]


async def test_a_request_that_waits_for_another_shard_is_missing_when_home_is_in_the_next_run(
    spread: Spread, caplog: pytest.LogCaptureFixture
) -> None:
    """Home will not confirm the level that it needs."""
    async with spread.engine() as worker:
        await fail_one(worker, of(2))
        spread.forget(0, worker, run=1)
        added = of(1)
        worker.put(added)
        await until(lambda: not worker.worker.pending, "the end")
        assert worker.worker.ending == "run_over"
        assert [put.token for put in worker.worker.left_over] == [b"%d" % added]
        before = worker.counts[Count.EXCHANGE]
        await worker.stop()
        assert worker.counts[Count.EXCHANGE] - before < 20
    assert not spread.redis.exists(spread.key(1, "members"))
    assert "1 requests of start() or engine.crawl() that it could not store are dropped" in caplog.text


async def test_requests_of_other_shards_are_missing_when_home_has_no_record_of_their_worker(
    spread: Spread,
) -> None:
    """It was rolled back to before that one joined, and others have finished the run."""
    async with Engine(spread.crawl, identity=SPREAD) as worker:
        worker.seed([of(1)])
        shard = worker.dialogues[1].protocol
        await until(lambda: shard.census.in_flight == 1, "the seed is in the buffer")
        spread.forget(0, worker, phase="finished", cleared=1)
        await until(lambda: worker.worker.over, "the end")
        assert worker.worker.ending == "run_over"
        assert [put.token for put in worker.worker.left_over] == [b"%d" % of(1)]


async def test_what_home_has_not_confirmed_is_missing_when_another_shard_is_in_the_next_run(
    spread: Spread,
) -> None:
    """The owner closes with the reason of that moment: it waits until home has said what it knows."""
    async with spread.engine() as worker:
        await fail_one(worker, of(1))
        async with cut_off(worker.home):
            worker.put(of(2))
            spread.forget(1, worker, run=1)
            await until(lambda: worker.worker.over, "the end")
            assert worker.worker.pending
        await until(lambda: not worker.worker.pending, "the answer of home")
        assert worker.worker.ending == "run_over"


async def test_a_worker_whose_run_is_over_leaves_what_a_retry_has_brought_since(spread: Spread) -> None:
    """It makes no more exchanges with home, so it would take the retry for what is left of its run."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        worker.home.protocol._finish(over=True)
        await worker.stop()
    assert spread.peek().census.waiting == 1


async def test_a_worker_that_leaves_keeps_what_the_next_run_has_in_a_shard(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard was rolled back, and another worker has taken it, with this one, into the run after."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1)])
        home, shard = (each.protocol for each in worker.dialogues[:2])
        await worker.until_stored()
        await until(lambda: not worker.worker._level.needed(), "it is certain")
        async with cut_off(worker.home):
            spread.set(1, run=1)
            await until(lambda: shard.run == 1, "the next run in the shard")
            spread.forget(0, worker, run=1)
        await until(lambda: home.finished, "the end at home")
        await worker.stop()
    assert spread.peek().census.waiting == 1


async def test_a_worker_that_is_over_at_home_keeps_what_a_retry_needs(spread: Spread) -> None:
    """A page may have failed there since: what was seen elsewhere is known to nobody else."""
    async with spread.engine() as worker:
        await fail_one(worker, of(0))
        home = worker.home.protocol
        home.census = Census()
        home._finish(over=True)
        await worker.stop()
    assert spread.get("cleared", 1) != b"1"


async def test_a_request_of_a_worker_that_listens_opens_the_run_that_has_ended(spread: Spread) -> None:
    """Others took it for dead. The request, for another shard, came after what hears of the end."""
    async with spread.engine() as worker:
        worker.worker.listen(True)
        worker.seed([])
        home, shard = (each.protocol for each in worker.dialogues[:2])
        await until(lambda: home.raised_at is None, "the level is lowered")
        async with cut_off(worker.home):
            worker.put(of(1))
            spread.set(0, phase="finished")
        await until(lambda: stored(shard.census) == 1, "it is stored")
        assert not worker.worker.over
        worker.worker.listen(False)


async def test_a_worker_that_leaves_opens_the_run_of_what_it_has_put_elsewhere(spread: Spread) -> None:
    """Others took it for dead, and have finished the run: the next one would delete it."""
    async with Engine(spread.crawl, identity=SPREAD, concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        spread.forget(0, worker, phase="finished")
        await worker.worker.stop(10, durable=False)
    assert spread.get("phase") == b"open"


async def test_a_worker_leaves_if_its_puts_become_certain_meanwhile(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its exchange lowers the level, which is never raised again."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        level = worker.worker._level
        await until(lambda: not level.needed(), "it is certain")
        answers = iter([True])
        monkeypatch.setattr(level, "needed", lambda: next(answers, False))
        stopping = asyncio.create_task(worker.worker.stop(10, durable=False))
        await until(stopping.done, "the end")


async def test_a_page_whose_links_become_certain_while_its_worker_leaves_is_done(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own shard has been waited for by then."""
    spread.crawl.size = 0
    async with spread.engine(concurrency=1) as worker:
        worker.seed([of(0)])
        lease = await leased(worker)
        worker.put(of(1), lease.entry_id)
        worker.worker.ack(lease.entry_id)
        home, other, _ = (each.protocol for each in worker.dialogues)
        await until(lambda: not (other.outbox or other.under_way), "the link is stored")
        handed_in = asyncio.Event()

        async def on_disk(dialogue: Dialogue, verify: Any, deadline: float) -> str:
            if dialogue.protocol is other:
                await handed_in.wait()
                # It may be certain by now, on a busy machine: then there is no such moment.
                await asyncio.sleep(min(max(0.0, other.certain_at - time.monotonic()), HORIZON_S))
            await verify()
            if dialogue.protocol is home:
                handed_in.set()
            return ""

        monkeypatch.setattr(Dialogue, "wait_until_durable", on_disk)
        await worker.worker.stop(10, durable=True)
        assert worker.counts[Defer] == 1
    census = spread.peek().census
    assert (census.done, census.waiting) == (1, 1)


async def test_a_run_is_not_over_because_another_shard_has_ended_it(spread: Spread) -> None:
    """A retry has opened it again at home: the page there goes on, and what it leads to is stored."""
    async with spread.engine() as worker:
        worker.seed([of(0)])
        lease = await leased(worker)
        shard = worker.dialogues[2]
        await until(lambda: not worker.home.protocol.log.parentless, "the seed is certain")
        spread.forget(2, worker, phase="finished")
        worker.put(of(2), lease.entry_id)
        await until(lambda: stored(shard.protocol.census) == 1, "it is stored")
        assert not worker.worker.over


async def test_a_request_that_comes_while_home_registers_a_worker_opens_the_run(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one for another shard: home was asked as if there were none."""
    async with spread.engine() as worker:
        await fail_one(worker, of(1))
        home = worker.home
        rejoin = home._frontier.rejoin

        async def meanwhile(*args: Any) -> Any:
            monkeypatch.undo()
            worker.put(of(2))
            return await rejoin(*args)

        monkeypatch.setattr(home._frontier, "rejoin", meanwhile)
        spread.forget(0, worker, phase="finished")
        worker.worker.ask(0)
        await worker.until_stored()
        assert not worker.worker.over


async def test_a_request_is_kept_from_another_shard_while_home_does_not_answer(spread: Spread) -> None:
    """There others may have declared this worker dead, and finished the run."""
    async with spread.engine() as worker:
        worker.seed([of(1)])  # waits: the run stays open, and so does the level
        shard = worker.dialogues[2]
        await worker.until_stored(1)
        async with cut_off(worker.home):
            worker.put(of(2))
            asked = shard.protocol.applied
            await until(lambda: shard.protocol.applied > asked + 1, "exchanges")
            assert (shard.protocol.outbox.parentless, stored(shard.protocol.census)) == (1, 0)
        await until(lambda: stored(shard.protocol.census) == 1, "it is stored")


async def test_a_shard_is_not_asked_without_a_pause_while_what_it_is_to_get_waits_for_home(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that fills an exchange; it is sent when home is back."""
    full = [n for n in range(9000) if shard_of(b"", b"%d" % n, SHARDS) == 2][:MAX_MOVES]
    spread.crawl.size = 0
    async with spread.engine(concurrency=0) as worker:
        shard, dues = worker.dialogues[2], []
        due_at = shard.pace.due_at

        def noted(want: int, moves: int, full: bool, *rest: Any) -> float:
            if shard.protocol.held_back and shard.protocol.waits_to_seed:
                dues.append((moves, full))
                return float("inf")
            return due_at(want, moves, full, *rest)

        monkeypatch.setattr(shard.pace, "due_at", noted)
        async with cut_off(worker.home):
            worker.seed(full)
            assert shard.protocol.outbox.full
            await until(lambda: dues, "an exchange without moves")
            assert set(dues) == {(0, False)}
        await until(lambda: stored(shard.protocol.census) == len(full), "all is stored")


async def test_home_is_asked_at_once_for_a_put_that_comes_while_it_is_asked(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That exchange lowers the level, which the put needs in its shard."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(0)])
        home = worker.home
        await until(lambda: home.protocol.raised_at is None, "the level is lowered")
        exchange, due_at, dues = home._frontier.exchange, home.pace.due_at, []

        async def meanwhile(*args: Any) -> Any:
            monkeypatch.setattr(home._frontier, "exchange", exchange)
            receipt = await exchange(*args)
            worker.put(of(1))
            monkeypatch.setattr(home.pace, "due_at", lambda *of: dues.append(due_at(*of)) or dues[-1])
            return receipt

        monkeypatch.setattr(home._frontier, "exchange", meanwhile)
        await until(lambda: dues, "the answer")
        assert dues[0] == 0


async def test_a_worker_leaves_though_home_is_in_the_next_run_and_has_not_confirmed_its_level(
    spread: Spread,
) -> None:
    """Its start() has failed, so that nothing of the run before is left: home never confirms it."""
    async with Engine(spread.crawl, identity=SPREAD) as worker:
        worker.seed([of(1)])
        shard = worker.dialogues[1]
        worker.worker.ack((await leased(worker)).entry_id)
        await until(lambda: shard.protocol.census.done == 1, "the request is done")
        async with cut_off(worker.home):
            worker.home.protocol.seeding = Seeding.FAILED
            spread.forget(0, worker, run=1)
            worker.home.protocol.census = Census()
        await until(lambda: worker.home.protocol.finished, "the answer of home")
        leaving = asyncio.create_task(worker.worker.stop(30, durable=False))
        await until(leaving.done, "it has left")
        assert worker.home.protocol.over


async def test_a_worker_that_is_stopped_while_all_shards_register_it_leaves_in_all(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another shard may have to get its puts again: home confirms the level for them first."""
    async with Engine(spread.crawl, identity=SPREAD, concurrency=0) as worker:
        worker.seed([of(1)])
        await worker.until_stored()
        home, shard = worker.dialogues[:2]
        rejoin = type(home._frontier).rejoin

        async def when_leaving(*args: Any) -> Any:
            if not worker.worker._leaving:
                raise FrontierUnavailable("later")
            return await rejoin(home._frontier, *args)

        async def after_home(*args: Any) -> Any:
            if not home.handed_in:
                raise FrontierUnavailable("later")
            return await rejoin(shard._frontier, *args)

        monkeypatch.setattr(home._frontier, "rejoin", when_leaving)
        monkeypatch.setattr(shard._frontier, "rejoin", after_home)
        for number, each in enumerate((home, shard)):
            name = keys.prefix(keys.Shard(spread.crawl.name, number))
            spread.redis.hset(f"{name}worker:{each.id}", "fenced", 1)
            spread.redis.delete(f"{name}in-flight:{each.id}")
        await until(lambda: home.outage.reason and shard.outage.reason, "both register it")
        await worker.worker.stop(patience(5), durable=False)
        assert not any(each._gave_up for each in worker.dialogues)


async def test_a_start_is_complete_if_all_that_it_has_put_elsewhere_is_on_the_disks(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run waits for another worker with the same arguments, although nothing is missing."""
    started = replace(SPREAD, starts="*one")
    async with Engine(spread.crawl, identity=SPREAD, concurrency=0) as other:
        async with Engine(spread.crawl, identity=started, concurrency=0) as worker:
            worker.seed([of(1)])
            await worker.until_stored()

            async def on_disk(*args: Any) -> str:
                return ""

            monkeypatch.setattr(Dialogue, "wait_until_durable", on_disk)
            await worker.worker.stop(10, durable=True)
        assert await other.worker.home._frontier.interrupted_starts() == []


async def test_a_page_ends_unconfirmed_when_the_run_is_over_for_who_listened(spread: Spread) -> None:
    """What it would put is dropped."""
    async with spread.engine() as worker:
        worker.seed([of(0)])
        lease = await leased(worker)
        home = worker.home
        home.protocol._finish(over=True)
        worker.worker.ack(lease.entry_id)
        assert [type(move) for move in home.protocol.outbox.prefix()] == [Release]


async def test_a_worker_that_home_takes_into_the_next_run_registers_in_the_other_shards(
    spread: Spread, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it gets no answer there by which it could find the end, and waits for ever."""
    async with spread.engine() as worker:
        await fail_one(worker, of(1))
        worker.put(of(2))
        await worker.until_stored()
        shard = worker.dialogues[1]
        before = shard.id
        spread.forget(1, worker, run=1)
        await until(lambda: shard.protocol.finished, "the answer of the shard")
        spread.set(0, run=1)
        await until(lambda: worker.worker.run == 1, "the next run at home")
        await until(lambda: shard.id != before, "the next run in the shard")
        assert spread.redis.smembers(spread.key(1, "members")) == {shard.id.encode()}
    assert "rolled back further" not in caplog.text


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_worker_brings_all_shards_into_the_latest_run_in_which_it_is(
    spread: Spread, ahead: int
) -> None:
    """All were rolled back, and who has taken one into its run died: the others follow."""
    spread.crawl.size = 60
    async with spread.engine(concurrency=0) as worker:
        worker.seed(range(20, 60))  # without children: their shards forget what was seen in the run before
        await worker.until_stored(40)
        spread.set(ahead, run=1)
        await until(lambda: set(spread.metas("run")) == {b"1"}, "one run")
        worker.slots = worker.capacity = 4
        for each in worker.dialogues:
            each.kick()
        await worker.run()
        assert spread.crawl.done == dict.fromkeys(range(20, 60), 1)
        assert worker.worker.ending == "finished"


async def test_a_worker_that_leaves_brings_all_shards_into_the_latest_run_in_which_it_is(
    spread: Spread,
) -> None:
    """It learns of it as it leaves: the next worker to join would delete what the others have."""
    async with spread.engine(concurrency=0) as worker:
        worker.seed([of(1), of(2)])
        await worker.until_stored(2)
        await until(lambda: not worker.worker._level.needed(), "they are certain")
        for each in worker.dialogues:
            each.pace.due_at = lambda *of: float("inf")  # type: ignore[method-assign]
            await until(lambda: not each.protocol.under_way, "no exchange")  # noqa: B023
        spread.set(0, run=1)
        worker.home.note(Gone(1, 0))
        await worker.stop()
    assert spread.metas("run") == [b"1"] * SHARDS


async def test_a_worker_that_a_shard_has_left_behind_does_not_wait_for_its_answer(spread: Spread) -> None:
    """Home was rolled back: it is in the run before, and cannot end that without the shard."""
    async with spread.engine() as worker:
        shard = worker.dialogues[1]
        await until(lambda: shard.protocol.applied, "an exchange")
        spread.forget(1, worker, run=1)
        await until(lambda: shard.protocol.finished, "the answer of the shard")
        assert worker.worker.pending
        worker.seed([])
        await until(lambda: not worker.worker.pending, "the end")
        assert worker.worker.ending == "run_over"


@asynccontextmanager
async def producing(crawl: Crawl, *, durable: bool, shards: int = SHARDS) -> AsyncIterator[Producer]:
    async with AsyncRedis.from_url(crawl.url) as redis:
        producer = Producer(
            [Frontier(redis, crawl.name, ORDER, shard=n) for n in range(shards)],
            replace(SPREAD, shards=shards), WorkerOptions(ttl_s=60.0, rollback_horizon_s=HORIZON_S),
            connect=lambda shard: AsyncRedis.from_url(crawl.url), dropped=lambda put: None, durable=durable,
        )  # fmt: skip
        async with producer.joined():
            yield producer


async def test_a_push_whose_join_has_no_answer_joins_once(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats the join under the same id: another one would keep the run open until it counts as dead."""
    monkeypatch.setattr(dialogue, "JOIN_PATIENCE_S", 0.0)
    join, lost = Frontier.join, iter([True])

    async def without_answer(frontier: Frontier, *args: Any) -> Joined:
        joined = await join(frontier, *args)
        if next(lost, False):
            raise FrontierUnavailable("the answer is lost")
        return joined

    monkeypatch.setattr(Frontier, "join", without_answer)
    async with producing(spread.crawl, durable=False):
        assert spread.members()[0] == 1
    assert spread.members()[0] == 0


@pytest.mark.parametrize("cleared", [False, True])
async def test_a_push_opens_the_run_of_what_it_has_put_elsewhere(spread: Spread, cleared: bool) -> None:
    """Others have taken the push for dead, and have finished the run: what was cleared, it reports."""
    refused = pytest.raises(FrontierRefused, match="the crawl was deleted, or replaced")
    with refused if cleared else nullcontext():
        async with producing(spread.crawl, durable=False) as producer:
            meta = {"cleared": 1} if cleared else {}
            spread.forget_id(0, producer.members[0][1], phase="finished", **meta)
            token = b"%d" % of(2)
            await producer.put(Put(b"%012d" % 1, Admission.SEEN, token, 0, False, token, None))
            await producer.hand_in()
            assert spread.get("phase") == b"open"


async def test_a_push_ends_when_other_workers_have_finished_the_run(spread: Spread) -> None:
    """A finished run applies no exchange without moves: its answer is enough."""
    async with producing(spread.crawl, durable=False, shards=1) as producer:
        await producer.put(Put(b"%012d" % 1, Admission.SEEN, b"token", 0, False, b"payload", None))
        await producer.hand_in()
        spread.set(0, phase="finished")
    assert spread.get("phase") == b"finished"
