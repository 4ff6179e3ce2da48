"""A whole crawl is dumped, and loaded as a new crawl with another order, kind of seen or number of shards.

A dump consists of a header, and of parts with entries or other data.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.archive.dump import dump
from scrapy_dq.frontier.archive.header import change_marker, header_of
from scrapy_dq.frontier.archive.load import Loaded, load
from scrapy_dq.frontier.archive.parts import Header, Part, Shape
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import (
    FrontierRefused,
    FrontierUnavailable,
    Limits,
    Order,
    Seen,
    StartQueue,
)
from scrapy_dq.frontier.records import Entry
from support import sharded_crawl, stored
from support.live_frontier import HandWorker, put
from support.sharded_crawl import HOSTS, Crawl, filled, known_again, sums

pytestmark = pytest.mark.usefixtures("_quick_disks")

PLAIN = (Order.FIFO, Order.LIFO)
Archive = tuple[Header, list[Part]]


def dumped(crawl: Crawl, shards: int) -> Archive:
    """Return the dump of a crawl. Check that the crawl did not change."""

    async def read(frontiers: list[Frontier]) -> Archive:
        frontiers = frontiers[:shards]
        before = await change_marker(frontiers)
        header = await header_of(frontiers)
        found = [part async for part in dump(frontiers, header)]
        assert await change_marker(frontiers) == before
        return header, found

    return crawl.with_frontiers(read)


def loaded(crawl: Crawl, shards: int, archive: Archive, priority_of: Callable[[bytes], int] = int) -> Loaded:
    header, found = archive

    async def given() -> AsyncIterator[Part]:
        for part in found:
            yield part

    async def store(frontiers: list[Frontier]) -> Loaded:
        target = Shape(crawl.order, crawl.seen, shards)
        return await load(frontiers[:shards], header, given(), target, priority_of=priority_of)

    return crawl.with_frontiers(store)


KINDS = [
    (before, after) for before in Seen for after in Seen if before is after or before is not Seen.COMPACT
]


@pytest.mark.parametrize(
    ("before", "after", "partitioned"),
    [(1, 4, True), (4, 1, True), (4, 4, True), (1, 1, False), (3, 2, False)],
)
@pytest.mark.parametrize(("seen", "as_seen"), KINDS)
def test_a_crawl_is_dumped_and_loaded_completely(
    crawl_of: Callable[..., Crawl], crawl_name: str, seen: Seen, as_seen: Seen, before: int, after: int,
    partitioned: bool,
) -> None:  # fmt: skip
    """In the new crawl, all entries keep their states and all requests are seen. The old one is unchanged."""
    old, new = crawl_of(seen, partitioned), crawl_of(as_seen, partitioned, name=f"{crawl_name}-2")
    known = filled(old, before)
    entries, whole = old.entries(), [stored.dump(old.redis, Shard(old.name, n)) for n in range(before)]
    archive = dumped(old, before)
    assert [stored.dump(old.redis, Shard(old.name, n)) for n in range(before)] == whole
    assert sum(entries.values()) == archive[0].entries
    done = loaded(new, after, archive)
    assert (done.before, done.doubts, done.entries) == (False, [], sum(entries.values()))
    assert new.entries() == entries
    new.check(after)
    assert sums(new, after) == sums(old, before)
    new.numbers = old.numbers
    new.join(after)
    assert known_again(new, known) == 0


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("as_order", list(Order))
@pytest.mark.parametrize("shards", [1, 3])
def test_a_backlog_loaded_into_another_order_is_served_in_that_order(
    crawl_of: Callable[..., Crawl], crawl_name: str, order: Order, as_order: Order, shards: int
) -> None:
    """Returned entries also follow this order. Only orders with priorities mark start requests."""
    old, new, always = (
        crawl_of(Seen.EXACT, True, each, f"{crawl_name}-{n}")
        for n, each in enumerate((order, as_order, as_order))
    )
    draw = random.Random(7)
    starts = [StartQueue.SHARED] if order in PLAIN else list(StartQueue)
    puts = [(draw.choice([-2, 0, 0, 5]), draw.choice(starts), draw.choice(HOSTS[:3])) for _ in range(60)]
    for crawl in (old, always):
        crawl.join(1)
        for n, (priority, start, host) in enumerate(puts):
            payload = b"%d" % priority
            crawl.exchange(crawl.workers[0], put(n, priority, start=start, partition=host, payload=payload))
    taken = old.exchange(old.workers[0], want=7)
    assert len(taken) == 7
    old.leave()  # the leased entries come back
    loaded(new, shards, dumped(old, 1))
    new.join(shards)
    for host in HOSTS[:3]:
        served = [served_of(crawl, host) for crawl in (new, always)]
        assert served[0] == served[1]


def served_of(crawl: Crawl, host: bytes) -> list[bytes]:
    worker = crawl.worker_of(host, b"")
    for other in HOSTS[:3]:
        worker.live.call("limit", other, block_s=0.0 if other == host else 1000.0)
    found: list[bytes] = []
    while more := crawl.exchange(worker, want=1):
        found += more
    return found


@pytest.mark.parametrize("late", [True, False])
def test_a_load_that_fails_at_any_step_loses_and_doubles_nothing(
    crawl_of: Callable[..., Crawl], crawl_name: str, killed_at: Callable[[int, bool], None], late: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One script call after another fails, and the load is repeated. No worker can join a half-loaded crawl.

    If the load is already complete, a repeat changes nothing.
    """
    monkeypatch.setattr("scrapy_dq.frontier.archive.load._PART", 15)
    old, new = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, name=f"{crawl_name}-2")
    filled(old, 1)
    archive, kills = dumped(old, 1), 0
    while True:
        killed_at(kills + 1, late)
        try:
            loaded(new, 3, archive)
        except FrontierUnavailable:
            kills += 1
        else:
            break
        killed_at(0, False)
        if b">" in (new.redis.hget(keys.meta(new.name), "shards") or b""):
            for begin in (new.join, new.move):
                with pytest.raises(FrontierRefused, match=r"half imported: `scrapy dq import` with the same"):
                    begin(3)
    killed_at(0, False)
    assert kills > 20
    assert new.entries() == old.entries()
    new.check(3)
    assert sums(new, 3) == sums(old, 1)
    assert loaded(new, 3, archive).before
    assert new.entries() == old.entries()


@pytest.mark.parametrize("kind", ["waiting", "delayed", "seen", "failed"])
def test_a_repeated_load_restores_the_data_that_a_rolled_back_shard_lost(
    crawl_of: Callable[..., Crawl], crawl_name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_dq.frontier.archive.load._PART", 1)
    old, new = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, name=f"{crawl_name}-2")
    filled(old, 1)
    header, found = dumped(old, 1)
    there = Shard(new.name, 1)

    async def rolled_back() -> AsyncIterator[Part]:
        for part in found:
            before = stored.dump(new.redis, there)
            yield part
            if part.kind == kind:
                stored.roll_back(new.redis, there, before)

    async def store(frontiers: list[Frontier]) -> Loaded:
        target = Shape(new.order, new.seen, 2)
        return await load(frontiers[:2], header, rolled_back(), target, priority_of=int)

    with pytest.raises(FrontierRefused, match="repeat the command"):
        new.with_frontiers(store)
    loaded(new, 2, (header, found))
    assert new.entries() == old.entries()
    new.check(2)


def test_a_load_that_is_not_possible_is_refused_and_changes_nothing(
    crawl_of: Callable[..., Crawl], crawl_name: str, killed_at: Callable[[int, bool], None]
) -> None:
    """A load must not replace a crawl, or turn a compact `seen` into an exact one.

    After a load that failed midway, only the same file and the same number of shards are accepted.
    """
    old, new = crawl_of(Seen.COMPACT, True), crawl_of(Seen.EXACT, True, name=f"{crawl_name}-2")
    filled(old, 1)
    archive = dumped(old, 1)
    with pytest.raises(FrontierRefused, match=r"does not hold whole fingerprints.*Set DQ_SEEN = 'compact'"):
        loaded(new, 1, archive)
    assert stored.dump(new.redis, new.name) == {}
    new.seen = Seen.COMPACT
    killed_at(6, True)
    with pytest.raises(FrontierUnavailable):
        loaded(new, 2, archive)
    killed_at(0, False)
    half = stored.dump(new.redis, new.name)
    with pytest.raises(FrontierRefused, match="half imported, from another export"):
        loaded(new, 2, dumped(old, 1))
    with pytest.raises(FrontierRefused, match="half imported with DQ_SHARDS = 2: use this number"):
        loaded(new, 3, archive)
    assert stored.dump(new.redis, new.name) == half
    with pytest.raises(FrontierRefused, match="half imported"):
        dumped(new, 1)
    loaded(new, 2, archive)
    with pytest.raises(FrontierRefused, match="already exists: delete it"):
        loaded(new, 2, dumped(old, 1))
    assert new.entries() == old.entries()


def test_leases_of_dead_workers_are_loaded_as_returned_entries(
    crawl_of: Callable[..., Crawl], crawl_name: str
) -> None:
    old, new = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, name=f"{crawl_name}-2")
    old.join(2)
    for _ in range(30):
        old.put()
    taken = [each for worker in old.workers for each in old.exchange(worker, want=4)]
    loaded(new, 1, dumped(old, 2))
    found = new.entries()
    assert {each for label, each in found if label == "returned"} == set(taken)
    assert sum(found.values()) == 30
    new.check(1)


def test_a_worker_that_has_come_and_gone_is_noticed(crawl_of: Callable[..., Crawl]) -> None:
    """The change marker differs even if a worker that came during the dump has left all counts as before.

    Such a worker may have moved entries to places that the dump had already read, and back.
    """
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)

    async def stands(frontiers: list[Frontier]) -> list[Any]:
        return await change_marker(frontiers[:1])

    before = crawl.with_frontiers(stands)
    assert crawl.with_frontiers(stands) == before
    visitor = HandWorker(crawl.workers[0].live, "visitor", crawl.workers[0].crawl)
    joined = crawl.with_frontiers(stands)
    visitor.leave()
    assert before not in (joined, crawl.with_frontiers(stands))


def test_expired_fingerprints_are_not_dumped(crawl_of: Callable[..., Crawl], crawl_name: str) -> None:
    """The other fingerprints are loaded with their ages."""
    old = crawl_of(Seen.EXPIRING, True)
    filled(old, 1)
    prefix = keys.prefix(old.name)
    ages = dict(old.redis.zrange(prefix + "seen", 0, -1, withscores=True))
    gone = sorted(ages)[:50]
    old.redis.hset(prefix + "meta", "seen_since", int(min(ages.values())) - 1000)
    old.redis.zadd(prefix + "seen", dict.fromkeys(gone, 1))
    archive = dumped(old, 1)
    for kind in (Seen.EXPIRING, Seen.EXACT):
        new = crawl_of(kind, True, name=f"{crawl_name}-{kind.value}")
        loaded(new, 1, archive)
        name = keys.prefix(new.name) + "seen"
        count: Any = new.redis.zcard(name) if kind is Seen.EXPIRING else new.redis.scard(name)
        assert count == 130
        if kind is Seen.EXPIRING:
            there = dict(new.redis.zrange(name, 0, -1, withscores=True))
            assert all(there[each] == ages[each] for each in ages if each not in gone)
            assert new.redis.hget(keys.meta(new.name), "seen_since") == old.redis.hget(
                prefix + "meta", "seen_since"
            )


@pytest.mark.parametrize("field", [("run", 1), ("cleared", 1)])
def test_a_shard_that_is_a_run_behind_is_reported(
    crawl_of: Callable[..., Crawl], field: tuple[str, int]
) -> None:
    """A worker was killed while it joined. So the shard has not begun home's run."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    crawl.redis.hset(keys.meta(Shard(crawl.name, 0 if field[0] == "run" else 1)), *field)
    with pytest.raises(
        FrontierRefused, match=r"shard 1 of crawl .* has not begun the run of home: start a wor"
    ):
        dumped(crawl, 2)


def test_a_crawl_of_another_version_is_reported(crawl_of: Callable[..., Crawl]) -> None:
    """Records of another version may have other fields."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    crawl.redis.hset(keys.meta(crawl.name), "schema", "1")
    with pytest.raises(FrontierRefused, match="was stored by another version"):
        dumped(crawl, 1)


def test_a_partition_of_many_priorities_is_read_in_parts(
    crawl_of: Callable[..., Crawl], crawl_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part has about 3,000 bytes at most. The new crawl serves the entries in the order of their puts."""
    monkeypatch.setattr("scrapy_dq.frontier.reader._MAX_LISTS", 20)
    monkeypatch.setattr("scrapy_dq.frontier.archive.parts._PART_BYTES", 3000)
    old = crawl_of(Seen.EXACT, True, Order.PRIORITY_FIFO)
    new = crawl_of(Seen.EXACT, True, Order.FIFO, f"{crawl_name}-2")
    old.join(1)
    draw = random.Random(3)
    for first in range(0, 1200, 60):
        puts = [
            put(n, draw.randrange(90), partition=HOSTS[n % 2], payload=b"%200d" % n)
            for n in range(first, first + 60)
        ]
        old.exchange(old.workers[0], *puts)
    old.leave()
    header, found = dumped(old, 1)
    waiting = [part for part in found if part.kind == "waiting"]
    assert sum(len(part.items) for part in waiting) == 1200
    assert max(sum(len(item.payload) for item in part.items) for part in waiting) <= 3200
    loaded(new, 1, (header, found))
    new.join(1)
    served = served_of(new, HOSTS[0])
    assert served == sorted(served)
    assert len(served) == 600


def test_a_part_with_more_items_than_lua_can_unpack_is_loaded(crawl_of: Callable[..., Crawl]) -> None:
    """A part may have any number of items, because another program may have written the file."""
    new = crawl_of(Seen.EXACT, True)
    header = dumped(crawl_with_one(new), 1)[0]
    new.close()
    new = crawl_of(Seen.EXACT, True)
    items = [Entry("waiting", b"%012d" % n, HOSTS[0], b"x", sequence=n) for n in range(20_000)]
    loaded(new, 1, (header, [Part("waiting", 0, items)]))
    assert sums(new, 1)[0] == 20_000
    new.check(1)


def crawl_with_one(crawl: Crawl) -> Crawl:
    crawl.join(1)
    crawl.put()
    crawl.leave()
    return crawl


def test_manual_limits_apply_in_the_new_shard_of_their_partition(
    crawl_of: Callable[..., Crawl], crawl_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shards store the limits of the settings. The load takes the limits in the partition's shard.

    If a user has reset a limit to the default, the limit stays reset.
    """
    hosts = HOSTS[:12]
    own = {host.decode(): (5.0, 3) for host in hosts}
    limits = replace(sharded_crawl.IDENTITY, limits=Limits(0.0, 0, own))
    monkeypatch.setattr(sharded_crawl, "IDENTITY", limits)
    for before, after in ((1, 1), (2, 3), (3, 2)):
        old = crawl_of(Seen.EXACT, True, Order.FIFO, f"{crawl_name}-{before}-{after}")
        new = crawl_of(Seen.EXACT, True, Order.FIFO, f"{crawl_name}-{before}-{after}-2")
        old.join(before)
        for n, host in enumerate(hosts):
            by_hand = {"delay_s": 60.0, "concurrency": 1} if n % 2 else {"delay_s": -1.0, "concurrency": -1}
            old.worker_of(host, b"").live.call("limit", host, **by_hand)
        found = [old.worker_of(host, b"").live.call("limit", host)[:2] for host in hosts]
        old.leave()
        loaded(new, after, dumped(old, before))
        new.join(after)
        assert [new.worker_of(host, b"").live.call("limit", host)[:2] for host in hosts] == found
