"""A flush: it deletes a crawl whatever is stored, and no key of another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import msgpack
import pytest

from scrapy_dq.frontier import frontier, keys, peek
from scrapy_dq.frontier.admin.convert import convert_some
from scrapy_dq.frontier.admin.flush import flush, flush_all, flush_others, purge
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Admission, Flushed, FrontierRefused, Limits, Order, Seen
from support import sharded_crawl
from support.live_frontier import FOREIGN, IDENTITY, HandWorker, LiveFrontier, ack, limited, put, puts
from support.sharded_crawl import MOST, Crawl

KINDS_OF_SEEN = [kind.value for kind in Seen]
ODD = [
    b"", b"\xff\x1b[2J", b"9" * 400, b"-1", b"nan", b"1e300", b"finished", b"absent", b"a\0b", b"x" * 100_000,
]  # fmt: skip


def filled(live: LiveFrontier) -> list[str]:
    """Fill all keys of a crawl; return the ids of its workers."""
    worker = HandWorker(live, "worker", limited(delay_s=0.001, concurrency=9))
    worker.exchange(
        *puts(b"a", 3), put(3, 1, partition=b"a"), put(4, due_in=900.0),
        put(5, admission=Admission.SEEN, partition=b"b"), put(6, reason="odd", partition=b"b"), want=2,
    )  # fmt: skip
    live.redis.hset(live.key("stats"), "sum:n", 1)
    return ["worker"]


def delete(live: LiveFrontier, most_s: float = inf) -> Flushed:
    """Delete the crawl, even under workers."""

    async def by_force(home: Frontier) -> Flushed:
        return await home.flush([], force=True)

    async def of_shard(number: int) -> Frontier:
        return live.frontier

    (deleted,) = live.run(flush_all(by_force, of_shard, 1, most_s))
    return deleted


def flushed(live: LiveFrontier) -> None:
    """See to it that the crawl can be looked at for a flush, deleted with every key, and begun again.

    What may be left: the many buckets that the overwritten data says there are.
    """
    peek(live.redis, live.crawl, anyhow=True)
    done = delete(live)
    assert done.left == ("discarded" in live.key_names())
    assert done.left or not live.key_names()
    assert HandWorker(live, "again").joined.run == 0


@pytest.mark.parametrize("kind", Seen)
@pytest.mark.parametrize("type_", FOREIGN)
@pytest.mark.parametrize("name", [name for name in keys.FIXED if name != "never"])
def test_a_flush_deletes_keys_of_any_type(
    open_frontier: Callable[..., LiveFrontier], name: str, type_: str, kind: Seen
) -> None:
    """And of any content: it is the way out if nothing else works."""
    live = open_frontier(Order.FIFO, seen=kind)
    filled(live)
    live.redis.delete(live.key(name))
    FOREIGN[type_](live, name)
    flushed(live)


@pytest.mark.parametrize("kind", Seen)
def test_a_flush_deletes_whatever_a_field_contains(
    open_frontier: Callable[..., LiveFrontier], kind: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each field of each hash: of what describes the crawl, its workers, its leases and what was seen."""
    monkeypatch.setattr(frontier, "FLUSH_SWEEP_S", 0.0)
    live = open_frontier(Order.FIFO, seen=kind)
    filled(live)
    hashes = {
        name: live.redis.hkeys(live.key(name))
        for name in sorted(live.key_names())
        if live.redis.type(live.key(name)) == b"hash"
    }
    live.redis.delete(*(live.key(name) for name in live.key_names()))
    fields = b"hold", b"told", b"gone", b"events", b"seen_since", b"seen_for", b"ended", b"starts", b"shared"
    hashes["meta"] = sorted({*hashes["meta"], *fields})
    assert len(hashes) > 6
    for name, of_hash in hashes.items():
        for field in of_hash:
            for value in ODD:
                filled(live)
                live.redis.hset(live.key(name), field, value)
                flushed(live)
                live.redis.delete(*(live.key(each) for each in live.key_names()))


PAIRS = [f"{one}>{other}" for one in [*KINDS_OF_SEEN, "none"] for other in [*KINDS_OF_SEEN, "none"]]


@pytest.mark.parametrize("stored", ["", "none", ">", *PAIRS])
@pytest.mark.parametrize("kind", Seen)
@pytest.mark.parametrize("empty", [False, True])
def test_a_kind_of_seen_that_no_script_wrote(
    open_frontier: Callable[..., LiveFrontier], kind: Seen, stored: str, empty: bool
) -> None:
    """The crawl can be looked at, converted to the kind that its worker uses, and deleted."""
    live = open_frontier(Order.FIFO, seen=kind)
    worker = HandWorker(live, "worker")
    worker.exchange(*([] if empty else [put(1, admission=Admission.SEEN)]))
    live.redis.hset(live.key("meta"), "seen_kind", stored)
    if stored or kind is Seen.EXACT:
        assert peek(live.redis, live.crawl).census.seen == (not empty)
        to = stored.rpartition(">")[2] if empty and stored.rpartition(">")[2] in KINDS_OF_SEEN else kind.value
        while convert_some(live.redis, live.frontier.name, Seen(to), ["worker"]):
            pass
        assert live.redis.hget(live.key("meta"), "seen_kind") == to.encode()
        if to == kind.value:
            assert worker.exchange(put(1, admission=Admission.SEEN)).dropped == (() if empty else (0,))
    flushed(live)


def test_a_flush_deletes_what_nothing_leads_to(live: LiveFrontier, worker: HandWorker) -> None:
    """With the indexes deleted, the next crawl would find the entries of this one."""
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


def test_all_shards_are_searched_at_once(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one Redis, whose keys are read once; crawls whose names begin as this one's are of others."""
    crawl = crawl_of(Seen.EXACT, True)
    lost = [f"{keys.prefix(keys.Shard(crawl.name, shard))}backlog:0:lost" for shard in range(MOST)]
    others = [
        f"{keys.prefix(keys.Shard(crawl.name, MOST))}backlog:0:a",
        f"{keys.prefix(crawl.name + '2')}backlog:0:a",
    ]
    for name in (*lost, *others):
        crawl.redis.rpush(name, "an entry")
    cursors: list[int] = []

    async def purge_all(frontiers: list[Frontier]) -> int:
        client = frontiers[0].client
        scan = client.scan

        async def counted(cursor: int, **options: object) -> object:
            cursors.append(cursor)
            return await scan(cursor, **options)

        monkeypatch.setattr(client, "scan", counted)
        return await purge(frontiers)

    assert crawl.with_frontiers(purge_all) == MOST
    assert cursors.count(0) == 1
    assert crawl.redis.exists(*lost) == 0
    assert crawl.redis.delete(*others) == 2


def test_a_flush_deletes_what_was_spent_today(live: LiveFrontier) -> None:
    """A run that ends keeps it, for the next one."""
    worker = HandWorker(live, "worker", replace(IDENTITY, limits=Limits(budget=5, daily=True)))
    worker.exchange(put(0, partition=b"a"), want=1, seeding=1)
    worker.exchange(ack(0), seeding=1)
    assert "spent" in live.key_names()
    delete(live)
    assert not live.key_names()


def test_a_late_copy_of_a_flush_deletes_nothing_of_a_crawl_that_has_begun_since(live: LiveFrontier) -> None:
    """Of one whose answer was lost: it was repeated, and then there is another crawl."""
    HandWorker(live, "worker")
    epoch = live.redis.hget(live.key("meta"), "epoch")
    delete(live)
    assert live.call("_call", "flush", msgpack.packb([]), 1, epoch)[0] == b"OK"  # of two at once, the second
    HandWorker(live, "another").exchange(put(0), seeding=1)
    before = live.dump()
    assert live.call("_call", "flush", msgpack.packb([]), 1, epoch) == [b"CHANGED"]
    assert live.dump() == before


def test_a_flush_leaves_other_shards_to_a_crawl_that_has_begun_since(crawl_of: Callable[..., Crawl]) -> None:
    """Between the flush of home and theirs."""
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
def test_a_purge_deletes_nothing_of_a_crawl_that_has_begun_since(
    open_frontier: Callable[..., LiveFrontier], kind: Seen
) -> None:
    """A worker may join between the two steps of a flush."""
    live = open_frontier(Order.PRIORITY_FIFO, seen=kind)
    filled(live)
    live.redis.rpush(live.key("backlog:0:lost"), "of the crawl before")
    before = live.dump()
    assert live.run(purge([live.frontier])) == 1
    assert live.dump() == {name: value for name, value in before.items() if b"lost" not in name}


def test_a_flush_at_the_start_does_not_look_for_ever(
    live: LiveFrontier, worker: HandWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """In a Redis with very many keys of others it gives up, and says so."""
    worker.exchange(*puts(b"a", 3))
    live.redis.delete(live.key("bands"))
    delete(live, most_s=0.0)
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "scrapy dq clear" in line
    assert HandWorker(live, "again").joined.run == 0


def test_a_crawl_with_too_many_members_can_be_deleted(live: LiveFrontier, worker: HandWorker) -> None:
    """By force; else nobody could say whether one of them is alive."""
    worker.exchange(*puts(b"a", 3), want=2)
    live.redis.sadd(live.key("members"), *(f"stranger-{n}" for n in range(20_000)))
    assert peek(live.redis, live.crawl, anyhow=True).census.workers == 20_001
    with pytest.raises(FrontierRefused, match=r"20,001 workers.* clear --force"):
        live.run(flush(live.frontier, 0.0))
    delete(live)
    assert not live.key_names()
