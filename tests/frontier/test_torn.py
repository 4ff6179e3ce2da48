"""A script may stop at any write. No entry is lost, and the run finishes only after an audit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.frontier import forget, keys, peek
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.admin.drop import drop
from scrapy_dq.frontier.admin.flush import purge
from scrapy_dq.frontier.admin.retry import retry
from scrapy_dq.frontier.archive.dump import dump
from scrapy_dq.frontier.archive.header import header_of
from scrapy_dq.frontier.archive.load import Loaded, load
from scrapy_dq.frontier.archive.parts import Part, Shape
from scrapy_dq.frontier.model import (
    Admission,
    Claim,
    FrontierRefused,
    Limits,
    Order,
    Seen,
    StartKeys,
    Status,
    Terms,
)
from scrapy_dq.frontier.worker.audit import audit
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    again,
    block,
    bury,
    decline,
    entry_id,
    fail,
    let_idle,
    limited,
    put,
    release,
)
from support.redis_server import RedisServer
from support.torn import BUG, DENIED, EachStop, crawl_on, filled, is_marked, repeat, slot, taken

HOW = pytest.mark.parametrize("words", [DENIED, BUG], ids=["denied", "error"])
MOVED = b"token 1626"
"""A token that a split of its bucket (in a compact `seen`) moves into another bucket."""
HASTY = limited(0.0, 3, **{"slot 1": (None, 1), "new": (0.001, None), "another": (0.001, None)})


@HOW
@pytest.mark.parametrize("identity", [IDENTITY, HASTY], ids=["unlimited", "limited"])
def test_an_exchange_that_was_stopped_loses_nothing(each_stop: EachStop, identity: Any, words: str) -> None:
    """The exchange has puts and settles of all kinds, and leases all waiting entries."""
    for live, stop in each_stop("exchange", words, least=20):
        worker, dying = HandWorker(live, "worker", identity), HandWorker(live, "dying", identity)
        worker.exchange(*(put(n, n % 2, partition=slot(n)) for n in range(24)), seeding=1)
        worker.exchange(put(90, partition=slot(1), due_in=100), seeding=1)
        dying.exchange(decline(dying.take(4)[0]))
        worker.reclaim("dying")
        held = taken(live, worker, 7)
        suspect = live.redis.hget(live.key("worker:worker"), "quarantined")
        suspects = [n for n in held if entry_id(n) == suspect]
        a, b, c, d, e, f, *_ = (n for n in held if n not in suspects)
        worker.exchange(release(a), seeding=1)
        live.advance(200)
        moves = [
            put(30, 1, partition=b"new"), put(31, partition=b"new", admission=Admission.SEED),
            put(32, 5, partition=slot(0)), put(33, partition=slot(1), due_in=50),
            put(34, reason="it makes no sense"),
            put(35, partition=b"another", admission=Admission.SEEN, token=b"token 35"),
            ack(b), fail(c), bury(d), again(e, as_number=36, due_in=100), decline(f),
            *(release(n) for n in suspects),
        ]  # fmt: skip
        terms = Terms(most=3, notes=(block(b"another", 10),))
        if stop(lambda w=worker, m=moves, t=terms: w.exchange(*m, want=12, terms=t, seeding=1)) is None:
            repeat(worker, moves)
        assert {entry_id(34), entry_id(d)} <= set(live.redis.hkeys(live.key("dead")))
        assert live.redis.exists(live.key("failed"))
        crawl_on(
            live, HandWorker(live, "other", identity), {*range(24), *range(30, 34), 35, 36, 90}, [b, c, d, e]
        )


@HOW
@pytest.mark.parametrize("seen", Seen)
def test_a_put_that_was_stopped_is_new_when_it_is_repeated(
    each_stop: EachStop, seen: Seen, words: str
) -> None:
    """The run was finished. The put opens the run before it stores the entry."""
    for live, stop in each_stop("exchange", words, seen, least=6):
        worker = HandWorker(live, "worker", replace(IDENTITY, seen_ttl_s=1000.0 * (seen is Seen.EXPIRING)))
        worker.exchange(put(9, admission=Admission.SEEN, token=MOVED), want=1)
        assert worker.exchange(ack(9)).status is Status.FINISHED
        moves = [
            put(n, n % 2, partition=slot(n), admission=Admission.SEEN, token=b"token %d" % n,
                due_in=50 * (n == 4), reason="it makes no sense" * (n == 5))
            for n in range(6)
        ]  # fmt: skip
        if stop(lambda w=worker, m=moves: w.exchange(*m)) is None:
            waits = live.redis.exists(*map(live.key, ("rotation", "bands", "delayed")))
            assert not waits or live.redis.hget(live.key("meta"), "phase") == b"open"
            repeat(worker, moves)
        assert live.redis.hkeys(live.key("dead")) == [entry_id(5)]
        assert worker.exchange(put(8, admission=Admission.SEEN, token=MOVED)).dropped
        crawl_on(live, worker, range(5))


@HOW
@pytest.mark.parametrize("kind", ["list", "set", "zset", "stream"])
def test_no_start_payload_is_lost(each_stop: EachStop, crawl_name: str, kind: str, words: str) -> None:
    """A payload stays in its start key until it is in flight."""
    name = keys.prefix(crawl_name) + "fed"
    for live, stop in each_stop("exchange", words, fed=StartKeys(kind, (name,), b"m"), least=4):
        live.redis.delete(name)
        for payload in (b"a", b"b", b"c"):
            {
                "list": lambda payload, live=live: live.redis.rpush(name, payload),
                "set": lambda payload, live=live: live.redis.sadd(name, payload),
                "zset": lambda payload, live=live: live.redis.zadd(name, {payload: 1}),
                "stream": lambda payload, live=live: live.redis.xadd(name, {"data": payload}),
            }[kind](payload)
        worker = HandWorker(live, "worker")
        terms = Terms(claim=Claim(kind, b"m", b"8 random"))
        receipt = stop(lambda w=worker, t=terms: w.exchange(want=5, terms=t)) or repeat(worker)
        if kind == "stream":
            let_idle(live, name)
        found = {lease.payload for lease in receipt.leases} | crawl_on(live, worker, terms=terms)
        assert found == {b"ma", b"mb", b"mc"}
        live.redis.delete(name)


@HOW
def test_an_offer_that_was_stopped_is_made_again(each_stop: EachStop, words: str) -> None:
    """A repeat of the exchange offers the declined entry, which only this worker can receive."""
    for live, stop in each_stop("exchange", words):
        first, worker = HandWorker(live, "first"), HandWorker(live, "worker")
        first.exchange(put(1), want=1)
        first.exchange(decline(1))
        first.leave()
        if stop(lambda w=worker: w.exchange(want=1)) is None:
            repeat(worker)
        crawl_on(live, worker, {1})


def test_an_exchange_that_was_stopped_spends_the_budget_once(each_stop: EachStop) -> None:
    """The budget of a domain counts each entry once."""
    for live, stop in each_stop("exchange", BUG, least=5):
        worker = HandWorker(live, "worker", replace(IDENTITY, limits=Limits(budget=100)))
        worker.exchange(*(put(n, partition=b"a") for n in range(6)))
        held = taken(live, worker, 6)
        moves = [*(ack(n) for n in held[:3]), fail(held[3]), release(held[4])]
        if stop(lambda w=worker, m=moves: w.exchange(*m, want=1)) is None:
            repeat(worker, moves)
        assert live.call("limit", b"a")[3:] == (100, 4)


@HOW
@pytest.mark.parametrize("what", ["leave", "leave, not repeated", "drain", "rejoin", "rejoin a later run"])
def test_leases_are_not_lost_if_their_transfer_is_stopped(each_stop: EachStop, what: str, words: str) -> None:
    identity = limited(0.0, 3)
    for live, stop in each_stop(what.replace(",", "").split()[0], words):
        worker, held = filled(live, identity)
        other = HandWorker(live, "other", identity)
        if what == "drain":
            other.fence("worker")
        if what == "rejoin a later run":
            worker.crawl = replace(HASTY, run_name="later")
        calls: dict[str, Callable[[], Any]] = {
            "leave": worker.leave,
            "leave, not repeated": worker.leave,
            "drain": lambda o=other: o.drain("worker"),
            "rejoin": lambda w=worker, k=held[:3]: w.rejoin("again", held=k),
            "rejoin a later run": lambda w=worker, k=held[:3]: w.rejoin("again", held=k, run=5),
        }
        if stop(calls[what]) is None and "not" not in what:
            calls[what]()
        if what.startswith("rejoin"):
            assert worker.held == {entry_id(n) for n in held[:3]}
        crawl_on(live, HandWorker(live, "another", worker.crawl), range(12))


@HOW
@pytest.mark.parametrize("what", ["retry failed", "retry dead", "drop"])
def test_a_retry_or_drop_that_was_stopped_loses_no_entry(each_stop: EachStop, what: str, words: str) -> None:
    for live, stop in each_stop(what.split()[0], words):
        worker, held = filled(live)
        worker.exchange(*(fail(n) for n in held[:2]), *(bury(n) for n in held[2:4]), release(held[4]))

        def go(live: LiveFrontier = live) -> Any:
            if what == "drop":
                return drop(live.redis, live.crawl, "slot 0")
            failed, dead = ((lambda _: True) if name in what else None for name in ("failed", "dead"))
            return retry(live.redis, live.crawl, peek(live.redis, live.crawl), failed=failed, dead=dead)

        if stop(go) is None:
            go()
        done = {"retry failed": held[2:4], "retry dead": held[:2], "drop": [*held[:4], 0, 3, 6, 9]}[what]
        crawl_on(live, worker, range(12), done)
        assert what == "drop" or not live.redis.exists(live.key(what.split()[1]))


@HOW
@pytest.mark.parametrize(("what", "finished"), [("join", False), ("join", True), ("leave", True)])
def test_a_run_begins_once(each_stop: EachStop, what: str, finished: bool, words: str) -> None:
    """A repeat of the call completes the description of the run, and begins no other run."""
    identity = replace(IDENTITY, limits=Limits(0.0, 3, {"a": (1.0, None)}))
    for live, stop in each_stop(what, words):
        if finished:
            worker, _ = filled(live)
            crawl_on(live, worker, range(12))
        if what == "leave" and stop(worker.leave) is None:
            worker.leave()

        def go(live: LiveFrontier = live) -> HandWorker:
            return HandWorker(live, "new", identity)

        new = (what == "join" and stop(go)) or go()
        assert new.run == int(finished)
        assert live.redis.hget(live.key("limits"), "a")
        new.exchange(*(put(n) for n in range(5)))
        crawl_on(live, new, range(5))


@pytest.mark.usefixtures("_quick_disks")
@HOW
def test_an_import_that_was_stopped_is_completed_by_the_repeat(
    each_stop: EachStop, redis_server: RedisServer, crawl_name: str, words: str
) -> None:
    """No worker can join before the repeat."""
    budgets = replace(IDENTITY, limits=Limits(concurrency=3, own_budgets={"b": 7}))
    with closing(LiveFrontier(redis_server.url, f"{crawl_name} old", Order.PRIORITY_LIFO)) as old:
        worker = HandWorker(old, "worker", budgets)
        worker.exchange(*(put(n, n % 3, partition=b"ab"[n % 2 :][:1]) for n in range(12)), seeding=1)

        async def read() -> Any:
            header = await header_of([old.frontier])
            return header, [part async for part in dump([old.frontier], header)]

        header, found = old.run(read())

    async def given() -> AsyncIterator[Part]:
        for part in found:
            yield part

    for live, stop in each_stop("load", words, least=20):

        def store(live: LiveFrontier = live) -> Loaded:
            target = Shape(live.order, Seen.EXACT, 1)
            return live.run(load([live.frontier], header, given(), target, priority_of=int))  # type: ignore[no-any-return]

        if stop(store) is None:
            if live.redis.exists(live.key("meta")):
                with pytest.raises(FrontierRefused, match="half imported"):
                    HandWorker(live, "early", budgets)
            assert not store().before
        assert store().before
        assert live.call("limit", b"b")[3:] == (7, 0)
        crawl_on(live, HandWorker(live, "worker", budgets), range(12))


@HOW
@pytest.mark.parametrize("what", ["flush", "forget", "steer", "limit"])
def test_a_command_that_was_stopped_can_be_repeated(each_stop: EachStop, what: str, words: str) -> None:
    """The command forgets no fingerprint except the one that it names."""
    for live, stop in each_stop(what, words, least=1):
        tokens = [b"token %d" % n for n in range(30)]
        worker = HandWorker(live, "worker")
        worker.exchange(*(put(n, admission=Admission.SEEN, token=t) for n, t in enumerate(tokens)))
        calls: dict[str, Callable[[], Any]] = {
            "flush": lambda live=live: (live.call("flush", ["worker"]), live.run(purge([live.frontier]))),
            "forget": lambda live=live: forget(live.redis, live.crawl, [(b"token 1", b"")]),
            "steer": lambda live=live: steer(live.redis, live.crawl, Command.RESUME),
            "limit": lambda live=live: live.call("limit", b"", delay_s=0.0, concurrency=4, block_s=5.0),
        }
        if stop(calls[what]) is None:
            calls[what]()
        if what == "flush":
            assert not live.key_names()
            continue
        moves = (put(100 + n, admission=Admission.SEEN, token=t) for n, t in enumerate(tokens))
        assert len(worker.exchange(*moves).dropped) == len(tokens) - (what == "forget")
        crawl_on(live, worker, range(30))


def test_a_run_marked_as_torn_is_finished_only_after_an_audit(live: LiveFrontier, worker: HandWorker) -> None:
    """The next run starts without the mark."""
    worker.exchange(put(1), want=1)
    live.redis.hset(live.key("meta"), "torn", 0)
    receipt = worker.exchange(ack(1))
    assert (receipt.status, receipt.damage) == (Status.OK, "torn")
    live.run(audit(live.frontier, worker.epoch, worker.run))
    assert worker.exchange().status is Status.FINISHED
    worker.leave()
    live.redis.hset(live.key("meta"), "torn", 0)
    HandWorker(live, "next")
    assert not is_marked(live)


@pytest.mark.parametrize(("mark", "gone"), [(0, 1), (1, 0)])
def test_an_audit_believes_only_counts_that_were_stored(
    live: LiveFrontier, worker: HandWorker, mark: int, gone: int
) -> None:
    """If a stopped script could not store its counts, settled entries are not reported as gone."""
    worker.exchange(put(1), put(2), want=2)
    live.redis.hdel(live.key("in-flight:worker"), entry_id(1))
    live.redis.hset(live.key("meta"), "torn", mark)
    assert live.run(audit(live.frontier, worker.epoch, worker.run)).gone == gone
