"""A flush deletes all keys of a crawl, even keys of a wrong type, and no key of another crawl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import msgpack
import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.flush import flush_all, flush_others, purge
from scrapy_dq.frontier.answers import Flushed
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Admission, Limits, Order, Seen
from support import sharded_crawl
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, limited, put, puts
from support.sharded_crawl import Crawl


def filled(live: LiveFrontier) -> list[str]:
    """Fill all keys of a crawl. Return the ids of its workers."""
    worker = HandWorker(live, "worker", limited(delay_s=0.001, concurrency=9))
    worker.exchange(
        *puts(b"a", 3), put(3, 1, partition=b"a"), put(4, due_in=900.0),
        put(5, admission=Admission.SEEN, partition=b"b"), put(6, reason="odd", partition=b"b"), want=2,
    )  # fmt: skip
    live.redis.hset(live.key("stats"), "sum:n", 1)
    return ["worker"]


def delete(live: LiveFrontier, budget_s: float = inf) -> Flushed:
    """Delete the crawl, even if workers are alive."""

    async def by_force(home: Frontier) -> Flushed:
        return await home.flush([], force=True)

    async def of_shard(number: int) -> Frontier:
        return live.frontier

    (deleted,) = live.run(flush_all(by_force, of_shard, 1, budget_s))
    return deleted


def flushed(live: LiveFrontier) -> None:
    """Flush the crawl. Check that every key is deleted and that a new crawl begins."""
    assert not delete(live).left
    assert not live.key_names()
    assert HandWorker(live, "again").joined.run == 0


@pytest.mark.parametrize("kind", Seen)
@pytest.mark.parametrize("name", [name for name in keys.FIXED if name != "never"])
def test_a_flush_deletes_keys_of_any_type(
    open_frontier: Callable[..., LiveFrontier], name: str, kind: Seen
) -> None:
    """A flush is a user's last resort. So it also deletes keys that another program has replaced."""
    live = open_frontier(Order.FIFO, seen=kind)
    filled(live)
    live.redis.delete(live.key(name))
    live.redis.set(live.key(name), "not ours")
    flushed(live)


def test_a_flush_deletes_keys_that_are_in_no_index(live: LiveFrontier, worker: HandWorker) -> None:
    """The indexes are gone, so the flush searches for keys. Otherwise the next crawl would find old keys."""
    worker.exchange(*puts(b"a", 3), put(3, 1, partition=b"b"), put(4, admission=Admission.SEEN), want=2)
    live.redis.delete(*(live.key(name) for name in ("bands", "more_bands", "rotation", "members")))
    live.redis.hset(live.key("in-flight:long ago"), "id", "record")
    live.redis.set(live.key("backlog:0:never used"), "not ours")
    for n in range(3):
        live.redis.sadd(live.key(f"seen:lost:{n}"), n)
    others = [f"dq:{{{live.crawl}2}}:backlog:0:a", f"dq:{live.crawl}:backlog:0:a", f"{live.crawl}:start_urls"]
    for name in others:
        live.redis.rpush(name, "of others")
    delete(live)
    assert not live.key_names()
    assert live.redis.delete(*others) == 3


def test_a_flush_deletes_the_budget_counts_of_today(live: LiveFrontier) -> None:
    """The end of a run keeps these counts for the next run, but a flush deletes them."""
    worker = HandWorker(live, "worker", replace(IDENTITY, limits=Limits(budget=5, daily=True)))
    worker.exchange(put(0, partition=b"a"), want=1, seeding=1)
    worker.exchange(ack(0), seeding=1)
    assert "spent" in live.key_names()
    delete(live)
    assert not live.key_names()


def test_a_late_copy_of_a_flush_deletes_nothing_of_a_new_crawl(live: LiveFrontier) -> None:
    """The answer to a flush was lost, the user repeated the flush, and then a new crawl began."""
    HandWorker(live, "worker")
    epoch = live.redis.hget(live.key("meta"), "epoch")
    delete(live)
    assert live.call("_call", "flush", msgpack.packb([]), 1, epoch)[0] == b"OK"  # the repeated flush
    HandWorker(live, "another").exchange(put(0), seeding=1)
    before = live.dump()
    assert live.call("_call", "flush", msgpack.packb([]), 1, epoch) == [b"CHANGED"]
    assert live.dump() == before


def test_a_flush_leaves_the_other_shards_of_a_new_crawl_alone(crawl_of: Callable[..., Crawl]) -> None:
    """A new crawl began between the flush of home and the flush of the other shards."""
    crawl = crawl_of(Seen.EXACT, True)
    sharded_crawl.filled(crawl, 3)

    async def flush_late(frontiers: list[Frontier]) -> list[Flushed]:
        others = frontiers[1:3]
        epochs = [await each.epoch() for each in others]
        crawl.redis.hset(keys.meta(keys.Shard(crawl.name, 1)), "epoch", "another")
        return await flush_others(others, epochs)

    assert [each.deleted.waiting > 0 for each in crawl.with_frontiers(flush_late)] == [True]
    assert crawl.redis.exists(keys.meta(keys.Shard(crawl.name, 1)))
    assert not crawl.redis.exists(keys.meta(keys.Shard(crawl.name, 2)))


@pytest.mark.parametrize("kind", Seen)
def test_a_purge_deletes_nothing_of_a_new_crawl(
    open_frontier: Callable[..., LiveFrontier], kind: Seen
) -> None:
    """A flush deletes the known keys, and then a purge deletes unknown keys.

    A worker may join in between and begin a new crawl, so the purge spares the keys of that crawl.
    """
    live = open_frontier(Order.PRIORITY_FIFO, seen=kind)
    filled(live)
    live.redis.rpush(live.key("backlog:0:lost"), "of the crawl before")
    before = live.dump()
    assert live.run(purge([live.frontier])) == 1
    assert live.dump() == {name: value for name, value in before.items() if b"lost" not in name}


def test_a_flush_at_the_start_stops_its_search_in_time(
    live: LiveFrontier, worker: HandWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """If Redis has very many other keys, the flush stops searching after some time, and logs a warning."""
    worker.exchange(*puts(b"a", 3))
    live.redis.delete(live.key("bands"))
    delete(live, budget_s=0.0)
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "scrapy dq clear" in line
    assert HandWorker(live, "again").joined.run == 0
