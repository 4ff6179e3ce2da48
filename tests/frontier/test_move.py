"""A crawl without workers is moved to another shape (order, kind of seen, shards) or to another Redis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.frontier import forget, keys, peek
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.archive import new_crawl
from scrapy_dq.frontier.archive.load import shards_for_all_of
from scrapy_dq.frontier.archive.move import BETWEEN
from scrapy_dq.frontier.archive.parts import Shape
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import Shard, shard_of
from scrapy_dq.frontier.model import (
    Admission,
    FrontierRefused,
    FrontierUnavailable,
    Hold,
    Limits,
    Order,
    Seen,
)
from support import sharded_crawl, stored
from support.live_frontier import ack, partitions
from support.sharded_crawl import HOSTS, Crawl, filled, known_again, sums

quick = pytest.mark.usefixtures("_quick_disks")


@quick
@pytest.mark.parametrize(
    ("before", "after", "partitioned", "seen", "as_seen"),
    [
        (1, 3, True, Seen.EXACT, Seen.COMPACT), (3, 1, True, Seen.EXPIRING, Seen.EXACT),
        (3, 6, True, Seen.COMPACT, Seen.COMPACT), (2, 4, False, Seen.EXACT, Seen.EXPIRING),
    ],
)  # fmt: skip
def test_a_crawl_is_moved_completely(
    crawl_of: Callable[..., Crawl], elsewhere: str, seen: Seen, as_seen: Seen, before: int, after: int,
    partitioned: bool,
) -> None:  # fmt: skip
    """A crawl is moved to another shape in another Redis, and back. Requests stay seen, and entries wait."""
    crawl = crawl_of(seen, partitioned)
    known = filled(crawl, before)
    entries, counts = crawl.entries(), sums(crawl, before)
    assert {label for label, _ in entries} == {"backlog", "returned", "delayed", "dead", "failed"}
    there = crawl_of(as_seen, partitioned, url=elsewhere)
    done = crawl.move(after, elsewhere, seen=as_seen)
    assert (done.was, done.now) == (Shape(Order.FIFO, seen, before), Shape(Order.FIFO, as_seen, after))
    assert (done.entries, done.doubts) == (sum(entries.values()), [])
    crawl.check(0)
    assert there.entries() == entries
    assert there.move(after, crawl.url).entries == done.entries
    there.check(0)
    crawl.seen = as_seen
    assert crawl.entries() == entries
    assert sums(crawl, after) == counts
    crawl.check(after)
    crawl.join(after)
    assert known_again(crawl, known) == 0


@quick
@pytest.mark.parametrize("order", [Order.LIFO, Order.PRIORITY_FIFO])
def test_a_crawl_can_get_another_shape_in_the_same_redis(
    crawl_of: Callable[..., Crawl], order: Order
) -> None:
    """The move uses keys with a temporary name, and leaves none. A move to the present shape does nothing."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    entries, counts = crawl.entries(), sums(crawl, 2)
    before = stored.dump(crawl.redis, crawl.name)
    same = Shape(Order.FIFO, Seen.EXACT, 2)
    assert (crawl.move(2).was, crawl.move(2).now) == (same, same)
    assert stored.dump(crawl.redis, crawl.name) == before
    done = crawl.move(3, order=order, seen=Seen.COMPACT)
    assert (done.was, done.now) == (same, Shape(order, Seen.COMPACT, 3))
    assert crawl.entries() == entries
    assert sums(crawl, 3) == counts
    crawl.order = order
    crawl.check(3)
    between = crawl_of(Seen.EXACT, True, name=crawl.name + BETWEEN)
    between.check(0)


def test_tokens_go_to_the_new_shards_of_their_partitions() -> None:
    for before, after in ((1, 3), (2, 4), (3, 2), (4, 6), (6, 4)):
        for host in range(5000):
            partition = b"%d.example" % host
            shard = shard_of(partition, b"", before)
            assert shard_of(partition, b"", after) in shards_for_all_of(shard, before, after)


# Killed


@quick
@pytest.mark.parametrize(
    ("before", "after", "late", "partitioned", "away"),
    [(1, 3, True, False, False), (3, 2, False, True, True)],
)
def test_a_move_that_fails_at_any_step_loses_and_doubles_nothing(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None], monkeypatch: pytest.MonkeyPatch,
    elsewhere: str, before: int, after: int, late: bool, partitioned: bool, away: bool,
) -> None:  # fmt: skip
    """One script call after another fails, and the move is repeated. No worker can join a half-moved crawl.

    If the move is already complete, a repeat changes nothing.
    """
    monkeypatch.setattr("scrapy_dq.frontier.archive.load._PART", 40)
    crawl, kills = crawl_of(Seen.EXACT, partitioned), 0
    there = crawl_of(Seen.EXACT, partitioned, url=elsewhere) if away else crawl
    filled(crawl, before)
    entries, counts = crawl.entries(), sums(crawl, before)
    while True:
        killed_at(kills + 1, late)
        try:
            crawl.move(after, elsewhere if away else "")
        except FrontierUnavailable:
            kills += 1
        else:
            break
        killed_at(0, False)
        half = crawl.redis.hget(keys.meta(crawl.name), "shards") or b""
        if b">" in half:
            for shards in {before, after}:
                with pytest.raises(FrontierRefused, match=r"half imported|is being moved"):
                    crawl.join(shards)
    killed_at(0, False)
    assert kills > 20
    assert there.entries() == entries
    assert sums(there, after) == counts
    there.check(after)
    assert crawl.move(after, elsewhere if away else "").entries == 0
    assert there.entries() == entries
    if away:
        crawl.check(0)
    else:
        crawl_of(Seen.EXACT, partitioned, name=crawl.name + BETWEEN).check(0)


@quick
def test_a_repeated_move_restores_the_data_that_a_rolled_back_redis_lost(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    """A shard of the new crawl is rolled back before the end. So the move fails, and deletes nothing."""
    crawl, there = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 1)
    entries, whole = crawl.entries(), Shard(crawl.name, 0)
    begin, end = new_crawl.NewCrawl.begin, new_crawl.NewCrawl.end
    begun: stored.Dump = {}
    lost: list[int] = []

    async def noted(self: new_crawl.NewCrawl, *args: Any) -> None:
        await begin(self, *args)
        begun.update({} if begun else stored.dump(there.redis, Shard(there.name, 1)))

    async def rolled_back(self: new_crawl.NewCrawl, *args: int) -> None:
        if not lost:
            lost.append(1)
            stored.roll_back(there.redis, Shard(there.name, 1), begun)
        await end(self, *args)

    monkeypatch.setattr(new_crawl.NewCrawl, "begin", noted)
    monkeypatch.setattr(new_crawl.NewCrawl, "end", rolled_back)
    with pytest.raises(FrontierRefused, match=r"the Redis of shard 1 of .* rolled back, or emptied"):
        crawl.move(2, elsewhere)
    assert lost
    assert stored.dump(crawl.redis, whole)
    assert crawl.entries() == entries
    crawl.move(2, elsewhere)
    assert there.entries() == entries


@quick
def test_the_end_is_on_disk_before_anything_is_deleted(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None], monkeypatch: pytest.MonkeyPatch,
    elsewhere: str,
) -> None:  # fmt: skip
    """A move is killed before its end is on disk. The repeat waits for the disk before it deletes keys."""
    crawl = crawl_of(Seen.EXACT, True)
    crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 1)
    waits: list[str] = []

    async def killed(frontier: Frontier, write: Callable[[Frontier], Any], deadline: float) -> str:
        await write(frontier)
        meta = await frontier.client.hgetall(keys.meta(frontier.name))
        is_new = b"imported" in meta and b">" not in meta.get(b"shards", b"")
        waits.append("frozen" if not is_new else "ended" if b"load:stored" in meta else "tidied")
        if waits == ["frozen", "frozen", "ended"] or waits[-1] == "ended":
            raise ConnectionError
        return ""

    monkeypatch.setattr(new_crawl, "written", killed)
    with pytest.raises(ConnectionError):
        crawl.move(1, elsewhere)
    assert waits[-1] == "ended"
    assert crawl.redis.exists(keys.meta(crawl.name))
    waits.clear()
    crawl.move(1, elsewhere)
    assert waits == ["tidied"]
    crawl.check(0)


def test_moved_data_is_on_disk(crawl_of: Callable[..., Crawl]) -> None:
    """If Redis has an AOF, the move reports no doubts."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    assert crawl.move(3).doubts == []
    crawl.check(3)


# Data that moves along


@quick
def test_a_list_that_is_in_no_index_is_moved(crawl_of: Callable[..., Crawl], elsewhere: str) -> None:
    """Redis has evicted the index of the list. The audit before the move finds the list."""
    crawl, there = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 2)
    entries = crawl.entries()
    crawl.redis.delete(keys.prefix(Shard(crawl.name, 1)) + "bands")
    crawl.move(3, elsewhere)
    assert there.entries() == entries


@quick
def test_the_run_continues_after_a_move(crawl_of: Callable[..., Crawl], elsewhere: str) -> None:
    """The moved run keeps its number, name, hold, stats and history."""
    crawl, there = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 1)
    steer(crawl.redis, crawl.name, Command.PAUSE, by="somebody")
    crawl.redis.hset(
        keys.meta(crawl.name), mapping={"run": 7, "run_name": "monday", "gone": 3, "never_sent": 2}
    )
    prefix = keys.prefix(crawl.name)
    crawl.redis.hset(prefix + "stats", mapping={"item_scraped_count": 5, "other": 1})
    for name in ("samples", "minutes"):
        crawl.redis.rpush(prefix + name, *(b"\1%d" % n for n in range(1200)))
    kept = {name: crawl.redis.dump(prefix + name) for name in ("stats", "samples", "minutes", "journal")}
    values = {name: crawl.redis.lrange(prefix + name, 0, -1) for name in kept if name != "stats"}
    was = peek(crawl.redis, crawl.name)
    crawl.move(1, elsewhere)
    now = peek(there.redis, there.name)
    assert (now.run, now.phase, now.hold) == (7, "open", Hold.PAUSED)
    assert now.census == was.census
    assert there.redis.hgetall(prefix + "stats") == {b"item_scraped_count": b"5", b"other": b"1"}
    assert {name: there.redis.lrange(prefix + name, 0, -1) for name in values} == values
    assert there.redis.hget(keys.meta(there.name), "run_name") == b"monday"


@quick
@pytest.mark.parametrize("after", [1, 3])
def test_a_run_that_has_finished_stays_finished(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The kept fingerprints are converted to another kind of seen. The next run knows them."""
    monkeypatch.setattr(sharded_crawl, "IDENTITY", replace(sharded_crawl.IDENTITY, keep_seen=True))
    crawl = crawl_of(Seen.EXACT, True)
    crawl.join(1)
    known = [crawl.put(admission=Admission.SEEN) for _ in range(30)]
    while taken := crawl.exchange(crawl.workers[0], want=10):
        crawl.exchange(crawl.workers[0], *(replace(ack(0), entry_id=each) for each in taken))
    worker = crawl.workers[0]
    worker.exchange()
    worker.leave(keep_seen=True)
    assert peek(crawl.redis, crawl.name).phase == "finished"
    crawl.move(after, seen=Seen.COMPACT)
    now = peek(crawl.redis, crawl.name)
    assert (now.phase, now.run, now.census.done) == ("finished", 0, 30)
    assert now.census.seen == 30 * after  # each shard has a copy
    crawl.seen = Seen.COMPACT
    crawl.join(after)
    assert crawl.workers[0].run == 1
    assert known_again(crawl, known) == 0


@quick
def test_limits_budgets_and_waits_apply_in_the_new_shard(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manual limits and spent budgets stay, and no site gets a request before its time."""
    limits = replace(sharded_crawl.IDENTITY, limits=Limits(budget=2))
    monkeypatch.setattr(sharded_crawl, "IDENTITY", limits)
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    host, other = [host for host in HOSTS if shard_of(host, b"", 2)][:2]
    old = crawl.workers[0].live
    old.call("limit", host, delay_s=5.0, concurrency=1, budget=2)
    old.redis.hset(old.key("spent"), host, b"%d 2" % crawl.workers[0].run)
    due = 1000 * old.redis.time()[0] + 50_000
    old.redis.zadd(old.key("earliest"), {other: due})
    crawl.move(2)
    crawl.join(2)
    new = crawl.workers[1]
    assert new.live.call("limit", host) == (5.0, 1, 0.0, 2, 2)
    assert new.live.redis.zscore(new.live.key("earliest"), other) == due
    served = partitions(new.exchange(want=100))
    assert served
    assert not {host, other} & set(served)


@quick
def test_a_fingerprint_in_several_shards_is_forgotten_once(crawl_of: Callable[..., Crawl]) -> None:
    """Each new shard has a copy of the old seen set, but the fingerprint counts once."""
    crawl = crawl_of(Seen.EXACT, True)
    crawl.join(1)
    _, token = crawl.put(admission=Admission.SEEN)
    crawl.leave()
    crawl.move(3)
    assert forget(crawl.redis, crawl.name, [(token, b"-"), (b"another", b"-")]) == 1
