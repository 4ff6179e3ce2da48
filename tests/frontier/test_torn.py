"""A script that is stopped at any write loses nothing: the next one repairs it, and it is repeated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import redis

from scrapy_dq.frontier import forget, keys, peek, scripts
from scrapy_dq.frontier.admin.control import Word, steer
from scrapy_dq.frontier.admin.convert import convert_some
from scrapy_dq.frontier.admin.retry import retry
from scrapy_dq.frontier.archive.dump import Skipped, dump
from scrapy_dq.frontier.archive.header import header_of
from scrapy_dq.frontier.archive.load import Loaded, Target, load
from scrapy_dq.frontier.archive.parts import Part
from scrapy_dq.frontier.model import (
    Admission,
    Claim,
    FrontierError,
    FrontierRefused,
    Limits,
    Order,
    Put,
    Receipt,
    Seen,
    StartKeys,
    Status,
    Terms,
)
from scrapy_dq.frontier.wire import pack_tally
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    again,
    block,
    bury,
    entry_id,
    fail,
    let_idle,
    limited,
    numbers,
    put,
    release,
)
from support.redis_server import RedisServer

WRITES = (
    "HSET", "HDEL", "HINCRBY", "HINCRBYFLOAT", "SADD", "SREM", "SPOP", "ZADD", "ZREM", "ZPOPMAX",
    "ZUNIONSTORE", "XREADGROUP", "XGROUP", "XACK", "XCLAIM", "RPUSH", "LPUSH", "RPOP", "LPOP", "LREM",
    "LSET", "LTRIM", "UNLINK", "RENAME",
)  # fmt: skip
SHADOW = """
local real, writes, denied, redis = redis, 0, {{}}, nil
local is_write = {{ {writes} }}
local function is_denied_here(name)
  if is_write[name] then writes = writes + 1 end
  if is_write[name] and writes == {stop_at} then
    denied[name] = true
    real.call('SET', '{stopped}', '1')
  end
  return denied[name]
end
redis = {{
  sha1hex = real.sha1hex,
  call = function(...)
    if is_denied_here((...)) then error('NOPERM this user may not run ' .. (...), 0) end
    return real.call(...)
  end,
  pcall = function(...)
    if is_denied_here((...)) then return {{ err = 'NOPERM this user may not run ' .. (...) }} end
    return real.pcall(...)
  end,
}}
"""
HASTY = limited(0.0, 3, **{"slot 1": (None, 1), "new": (0.001, None), "another": (0.001, None)})


class Stopper:
    """Has one script stopped at one of its writes; of that command all that follow are refused, too."""

    def __init__(self, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch) -> None:
        self._live, self._monkeypatch = live, monkeypatch
        self._mark = f"stopped {live.crawl}"

    def stop(self, transition: str, at: int, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Make *call*; return whether there was a write number *at*, and the answer, None: an error."""
        shadow = SHADOW.format(
            writes=", ".join(f"{name} = true" for name in WRITES), stop_at=at, stopped=self._mark
        )

        scopes = scripts._scopes

        def stopped(name: str, order: Order, seen: Seen) -> tuple[list[str], list[str]]:
            outer, inner = scopes(name, order, seen)
            return ([shadow, *outer], inner) if name == transition else (outer, inner)

        client, stored = self._live.redis, self._live.frontier._scripts
        before = stored.get(transition)
        with self._monkeypatch.context() as patch:
            patch.setattr(scripts, "_scopes", stopped)
            for built in ("source", "library"):
                patch.setattr(scripts, built, getattr(scripts, built).__wrapped__)
            if before is not None:
                stored[transition] = type(before)(transition, self._live.order, self._live.frontier._seen)
            try:
                answer = call()
            except (FrontierError, redis.RedisError) as error:
                if "NOPERM" not in str(error):
                    raise
                answer = None
        self._live.frontier._denied = False
        if before is not None:
            stored[transition] = before
        return bool(client.delete(self._mark)), answer


@pytest.fixture
def each_stop(
    redis_server: RedisServer, crawl_name: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Iterator[tuple[LiveFrontier, Callable[..., Any]]]]:
    """Return a generator of frontiers, each with a function that stops *transition* one write later."""

    def each(transition: str, seen: Seen = Seen.EXACT, **options: Any) -> Iterator[Any]:
        reached, at = True, 0
        while reached:
            at += 1
            reached = False
            name = f"{crawl_name} {at}"
            order = options.get("order", Order.PRIORITY_LIFO)
            args = (redis_server.url, name, order, seen, options.get("start_keys"))
            with closing(LiveFrontier(*args)) as live:
                stopper = Stopper(live, monkeypatch)

                def stop(call: Callable[[], Any], stopper: Stopper = stopper, at: int = at) -> Any:
                    nonlocal reached
                    reached, answer = stopper.stop(transition, at, call)
                    return answer

                yield live, stop
                if options.get("start_keys"):
                    live.redis.delete(*options["start_keys"].keys)
        assert at > options.get("least", 2), "nothing was stopped"

    return each


def finish(live: LiveFrontier, worker: HandWorker, served: Counter[int]) -> None:
    """Serve all that is left; the run ends, and nothing stays in flight, waiting or torn."""
    for member in live.members() - {worker.worker_id}:
        worker.reclaim(member)
    receipt = worker.exchange(*(ack(int(i)) for i in sorted(worker.held) if i.isdigit()))
    for _ in range(200):
        live.advance(200)
        receipt = worker.exchange(*(ack_of(i) for i in sorted(worker.held)), want=40)
        served.update(i for i in numbers_of(receipt))
        if receipt.status is Status.FINISHED:
            break
    else:
        raise AssertionError(f"it does not end: {live.state()}")
    census = receipt.census
    assert (census.waiting, census.in_flight, census.delayed) == (0, 0, 0)
    assert not live.redis.exists(live.key("torn"))
    live.state()


def ack_of(id_: bytes) -> Any:
    return replace(ack(0), entry_id=id_)


def numbers_of(receipt: Receipt) -> list[int]:
    """Return the numbers of leases; those that were claimed have none."""
    return [int(lease.entry_id) for lease in receipt.leases if lease.entry_id.isdigit()]


def repeat(worker: HandWorker, moves: list[Any]) -> Receipt:
    """Send the same bytes again, as a worker does, and learn the answer."""
    receipt = worker.send(worker.last)
    assert receipt.status in (Status.OK, Status.FINISHED), receipt.status
    assert receipt.applied
    worker.seq += 1
    worker.held -= {move.entry_id for move in moves if not isinstance(move, Put)}
    worker.held |= {lease.entry_id for lease in receipt.leases}
    return receipt


def slot(n: int) -> bytes:
    return b"slot %d" % (n % 3)


@pytest.mark.parametrize("identity", [IDENTITY, HASTY], ids=["unlimited", "limited"])
@pytest.mark.parametrize("seen", Seen)
def test_an_exchange_stopped_at_any_write_loses_nothing(
    each_stop: Callable[..., Any], seen: Seen, identity: Any
) -> None:
    """Puts of all kinds, all ways to settle, leases from lists, and of what came back or is suspect."""
    if seen is Seen.EXPIRING:
        identity = replace(identity, seen_ttl_s=1000.0)
    for live, stop in each_stop("exchange", seen, least=20):
        worker, dying = HandWorker(live, "worker", identity), HandWorker(live, "dying", identity)
        first = [
            put(n, n % 2, partition=slot(n), admission=Admission.SEEN, token=b"token %d" % n)
            for n in range(24)
        ]
        worker.exchange(*first, put(90, partition=slot(1), due_in=100), seeding=1)
        dying.take(4)
        worker.reclaim("dying")
        held: list[int] = []
        while len(held) < 6:
            live.advance(1)
            held += numbers(worker.exchange(want=6 - len(held), seeding=1))
        suspect = live.redis.hget(live.key("worker:worker"), "quarantined")
        suspects = [n for n in held if entry_id(n) == suspect]
        held = [n for n in held if n not in suspects]
        a, b, c, d, e, *_ = held
        worker.exchange(release(a), seeding=1)
        live.advance(200)
        moves = [
            put(30, 1, partition=b"new", admission=Admission.SEEN, token=b"token 30"),
            put(31, 0, partition=b"new", admission=Admission.SEED),
            put(32, 5, partition=slot(0)),
            put(33, partition=slot(1), due_in=50),
            put(34, reason="it makes no sense"),
            put(35, partition=b"another", admission=Admission.SEEN, token=b"token 35"),
            ack(b), fail(c), bury(d), again(e, as_number=36, due_in=100), *(release(n) for n in suspects),
        ]  # fmt: skip
        terms = Terms(most=3, notes=(block(b"another", 10),))
        answer = stop(lambda w=worker, m=moves, t=terms: w.exchange(*m, want=9, terms=t, seeding=1))
        receipt = answer or repeat(worker, moves)
        live.state()
        gone = [b, c, d, e]
        assert entry_id(36) in {member[:12] for member in live.redis.zrange(live.key("delayed"), 0, -1)}
        served = Counter([*gone, *(int(i) for i in worker.held)])
        assert live.count("failed") == 1
        assert {int(i) for i in peek_dead(live)} == {34, d}
        assert not set(receipt.refused)
        finish(live, worker, served)
        expected = {*range(24), 30, 31, 32, 33, 35, 36, 90}
        assert set(served) >= expected
        assert max(served.values()) == 1


def peek_dead(live: LiveFrontier) -> list[bytes]:
    return list(live.redis.hkeys(live.key("dead")))


@pytest.mark.parametrize("kind", ["list", "set", "zset", "stream"])
def test_what_others_fed_is_not_lost(each_stop: Callable[..., Any], crawl_name: str, kind: str) -> None:
    """A payload is popped and cannot be written: it is returned like a claim."""
    name = keys.prefix(crawl_name) + "fed"
    for live, stop in each_stop("exchange", start_keys=StartKeys(kind, (name,), b"m"), least=4):
        payloads = {b"a", b"b", b"c"}
        live.redis.delete(name)
        if kind == "list":
            live.redis.rpush(name, *payloads)
        elif kind == "set":
            live.redis.sadd(name, *payloads)
        elif kind == "stream":
            for payload in sorted(payloads):
                live.redis.xadd(name, {"data": payload})
        else:
            live.redis.zadd(name, dict.fromkeys(payloads, 1))
        worker = HandWorker(live, "worker")
        terms = Terms(claim=Claim(kind, b"m", b"stem stem"[:8]))
        answer = stop(lambda w=worker, t=terms: w.exchange(want=5, terms=t))
        receipt = answer or repeat(worker, [])
        found = {lease.payload for lease in receipt.leases}
        for _ in range(5):
            if kind == "stream":
                let_idle(live, name)
            receipt = worker.exchange(*(ack_of(i) for i in sorted(worker.held)), want=5, terms=terms)
            found |= {lease.payload for lease in receipt.leases}
        assert kind != "stream" or not live.redis.exists(live.key("messages"))
        assert found == {b"m" + payload for payload in payloads}
        live.state()


def filled(
    live: LiveFrontier, name: str = "worker", identity: Any = IDENTITY
) -> tuple[HandWorker, list[int]]:
    """Return a worker of a crawl of 12 entries that holds five."""
    worker = HandWorker(live, name, identity)
    worker.exchange(*(put(n, n % 2, partition=slot(n)) for n in range(12)))
    held: list[int] = []
    while len(held) < 5:
        live.advance(1)
        held += numbers(worker.exchange(want=5 - len(held)))
    return worker, held


IDENTITIES = pytest.mark.parametrize("identity", [IDENTITY, limited(0.0, 3)], ids=["unlimited", "limited"])


@IDENTITIES
def test_a_leave_stopped_at_any_write_loses_nothing(each_stop: Callable[..., Any], identity: Any) -> None:
    for live, stop in each_stop("leave"):
        worker, _ = filled(live, identity=identity)
        if stop(worker.leave) is None:
            worker.leave()
        live.state()
        other, served = HandWorker(live, "other", identity), Counter[int]()
        finish(live, other, served)
        assert served == Counter(range(12))


def test_a_leave_that_is_not_repeated_loses_nothing(each_stop: Callable[..., Any]) -> None:
    for live, stop in each_stop("leave"):
        worker, _ = filled(live)
        stop(worker.leave)
        other, served = HandWorker(live, "other"), Counter[int]()
        finish(live, other, served)
        assert served == Counter(range(12))


def test_what_an_exchange_that_was_stopped_has_spent_is_counted_once(each_stop: Callable[..., Any]) -> None:
    for live, stop in each_stop("exchange", least=5):
        worker = HandWorker(live, "worker", replace(IDENTITY, limits=Limits(budget=100)))
        worker.exchange(*(put(n, partition=b"a") for n in range(6)), seeding=1)
        held = worker.take(6)
        moves = [*(ack(n) for n in held[:3]), fail(held[3]), release(held[4])]
        stop(lambda w=worker, m=moves: w.exchange(*m, want=1, seeding=1)) or repeat(worker, moves)
        assert live.call("limit", b"a")[3:] == (100, 4)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("transition", ["reshard", "arrive"])
def test_an_import_that_was_stopped_is_completed_by_the_repeat(
    each_stop: Callable[..., Any], transition: str, redis_server: RedisServer, crawl_name: str
) -> None:
    """Nobody can join meanwhile, and nothing is there twice."""
    budgets = replace(IDENTITY, limits=Limits(concurrency=3, own_budgets={"b": 7}))
    with closing(LiveFrontier(redis_server.url, f"{crawl_name} old", Order.PRIORITY_LIFO)) as old:
        worker = HandWorker(old, "worker", budgets)
        worker.exchange(*(put(n, n % 3, partition=b"ab"[n % 2 :][:1]) for n in range(12)), seeding=1)

        async def read() -> Any:
            header = await header_of([old.frontier])
            return header, [part async for part in dump([old.frontier], header, Skipped())]

        header, found = old.run(read())

    async def given() -> AsyncIterator[Part]:
        for part in found:
            yield part

    for live, stop in each_stop(transition, least=3):

        def store(live: LiveFrontier = live) -> Loaded:
            target = Target(live.order, Seen.EXACT)
            return live.run(load([live.frontier], header, given(), target, priority_of=int))  # type: ignore[no-any-return]

        if stop(store) is None:
            if live.redis.exists(live.key("meta")):
                with pytest.raises(FrontierRefused, match="half imported"):
                    HandWorker(live, "early", budgets)
            done = store()
            assert not done.before
        assert store().before
        worker = HandWorker(live, "worker", budgets)
        assert live.call("limit", b"b")[3:] == (7, 0)
        served: Counter[int] = Counter()
        finish(live, worker, served)
        assert served == Counter(range(12))


def test_the_last_leave_stopped_at_any_write_ends_the_run(each_stop: Callable[..., Any]) -> None:
    for live, stop in each_stop("leave", Seen.COMPACT):
        worker, _ = filled(live)
        finish(live, worker, Counter())
        if stop(worker.leave) is None:
            worker.leave()
        assert {name for name in live.key_names() if not name.startswith("seen:")} <= {"meta", "discarded"}


@IDENTITIES
@pytest.mark.parametrize("run", [0, 5], ids=["", "of a later run"])
def test_a_rejoin_stopped_at_any_write_loses_nothing(
    each_stop: Callable[..., Any], run: int, identity: Any
) -> None:
    """Nor one that gives an earlier run its own number, and its limits."""
    for live, stop in each_stop("rejoin"):
        worker, held = filled(live, identity=identity)
        kept = held[:3]
        if run:
            worker.crawl = replace(HASTY if identity is IDENTITY else IDENTITY, run_name="later")
        if stop(lambda w=worker, k=kept: w.rejoin("again", held=k, run=run)) is None:
            worker.rejoin("again", held=kept, run=run)
        assert worker.run == run
        assert {int(i) for i in worker.held} == set(kept)
        live.state()
        served = Counter(kept)
        finish(live, worker, served)
        assert served == Counter(range(12))


@IDENTITIES
def test_a_drain_stopped_at_any_write_loses_nothing(each_stop: Callable[..., Any], identity: Any) -> None:
    for live, stop in each_stop("drain"):
        filled(live, "dead", identity)
        other, served = HandWorker(live, "other", identity), Counter[int]()
        other.fence("dead")
        if stop(lambda w=other: w.drain("dead")) is None:
            other.drain("dead")
        live.call("sweep", 60.0)  # or whatever comes next
        live.state()
        assert live.members() == {"other"}
        finish(live, other, served)
        assert served == Counter(range(12))


def test_a_retry_stopped_at_any_write_loses_nothing(each_stop: Callable[..., Any]) -> None:
    for live, stop in each_stop("retry"):
        worker, held = filled(live)
        worker.exchange(*(fail(n) for n in held[:2]), *(bury(n) for n in held[2:4]))

        def go(live: LiveFrontier = live) -> Any:
            overview = peek(live.redis, live.crawl)
            return retry(live.redis, live.crawl, overview, failed=lambda _: True, dead=lambda _: True)

        if stop(go) is None:
            go()
        live.state()
        served = Counter(held[4:])
        finish(live, worker, served)
        assert served == Counter(range(12))
        assert (live.count("failed"), live.redis.llen(live.key("failed"))) == (0, 0)


def test_a_join_stopped_at_any_write_is_done_again(each_stop: Callable[..., Any]) -> None:
    """Of an absent crawl, and of a finished one: nothing is half-described, and the run is a new one."""
    identity = replace(IDENTITY, limits=Limits(0.0, 3, {"a": (1.0, None)}))
    for finished in (False, True):
        for live, stop in each_stop("join"):
            if finished:
                worker, _ = filled(live)
                finish(live, worker, Counter())

            def go(live: LiveFrontier = live) -> HandWorker:
                return HandWorker(live, "new", identity)

            worker = stop(go) or go()
            assert (worker.run, live.members()) == (int(finished), {"new"} | ({"worker"} & live.members()))
            assert live.redis.hget(live.key("limits"), "a")
            live.state()
            worker.exchange(*(put(n) for n in range(5)))
            served = Counter[int]()
            finish(live, worker, served)
            assert served == Counter(range(5))


@pytest.mark.parametrize("identity", [IDENTITY, HASTY], ids=["unlimited", "limited"])
def test_a_limit_stopped_at_any_write_holds_when_it_is_set_again(
    each_stop: Callable[..., Any], identity: Any
) -> None:
    for live, stop in each_stop("limit"):
        worker, held = filled(live, identity=identity)

        def go(live: LiveFrontier = live) -> Any:
            return live.call("limit", b"slot 0", delay_s=2.0, concurrency=4, block_s=5.0)

        answer = stop(go) or go()
        assert answer[:2] == (2.0, 4)
        live.state()
        served = Counter(held)
        finish(live, worker, served)
        assert served == Counter(range(12))


def test_a_tally_stopped_at_any_write_counts_once(each_stop: Callable[..., Any]) -> None:
    told = [("sum", "a", 3), ("sum", "b", 0.5), ("max", "c", 7), ("min", "d", 1), ("sum", "e", 2)]
    deltas = pack_tally(told)
    for live, stop in each_stop("tally"):
        worker, _ = filled(live)

        def go(live: LiveFrontier = live, worker: HandWorker = worker) -> Any:
            return live.call("tally", "source", worker.epoch, worker.run, 1, deltas)

        if stop(go) is None:
            go()
        stats = {k: float(v) for k, v in live.redis.hgetall(live.key("stats")).items()}
        assert stats == {b"told:source": 1, b"sum:a": 3, b"sum:b": 0.5, b"max:c": 7, b"min:d": 1, b"sum:e": 2}


@pytest.mark.parametrize("to", [Seen.COMPACT, Seen.EXPIRING])
def test_a_conversion_stopped_at_any_write_forgets_nothing(each_stop: Callable[..., Any], to: Seen) -> None:
    for live, stop in each_stop("convert"):
        tokens = [b"token %d" % n for n in range(30)]
        worker = HandWorker(live, "worker")
        worker.exchange(*(put(n, admission=Admission.SEEN, token=t) for n, t in enumerate(tokens)))
        worker.leave()

        def go(live: LiveFrontier = live) -> Any:
            return convert_some(live.redis, live.frontier.name, to, [])

        if stop(go) is None:
            go()
        while go():
            pass
        live.frontier._seen = to
        identity = replace(IDENTITY, seen_ttl_s=1e6 if to is Seen.EXPIRING else 0.0)
        again = HandWorker(live, "again", identity)
        receipt = again.exchange(
            *(put(100 + n, admission=Admission.SEEN, token=t) for n, t in enumerate(tokens))
        )
        assert len(receipt.dropped) == len(tokens)


@pytest.mark.parametrize("seen", Seen)
@pytest.mark.parametrize("what", ["flush", "forget", "steer"])
def test_what_is_done_manually_can_be_done_again(
    each_stop: Callable[..., Any], seen: Seen, what: str
) -> None:
    for live, stop in each_stop(what, seen, least=1):
        identity = replace(IDENTITY, seen_ttl_s=1e6 if seen is Seen.EXPIRING else 0.0)
        worker = HandWorker(live, "worker", identity)
        worker.exchange(*(put(n, admission=Admission.SEEN, token=b"token %d" % n) for n in range(5)))
        calls: dict[str, Callable[[], Any]] = {
            "flush": lambda live=live: live.call("flush", ["worker"]),
            "forget": lambda live=live: forget(live.redis, live.crawl, [(b"token 1", b"")]),
            "steer": lambda live=live: steer(live.redis, live.crawl, Word.PAUSE),
        }
        if stop(calls[what]) is None:
            calls[what]()
        if what == "flush":
            assert not live.key_names()
            continue
        live.state()
        if what == "forget":
            receipt = worker.exchange(put(9, admission=Admission.SEEN, token=b"token 1"))
            assert not receipt.dropped


# Mending, stopped itself


def test_a_mend_stopped_at_any_write_is_done_again(each_stop: Callable[..., Any], monkeypatch: Any) -> None:
    """`torn` stays until everything is repaired."""
    for live, stop in each_stop("mend", least=5):
        worker, held = filled(live, identity=limited(0.0, 10))
        moves = [put(40, partition=b"new"), ack(held[0]), release(held[1])]
        other = Stopper(live, monkeypatch)
        # The write at which it is stopped: of ten leases, after they were popped.
        for at in range(1, 60):
            _, answer = other.stop("exchange", at, lambda w=worker, m=moves: w.exchange(*m, want=5))
            if answer is not None or live.redis.exists(live.key("torn")):
                break
        assert live.redis.exists(live.key("torn"))
        stop(lambda w=worker: w.send(w.last))
        repeat(worker, moves)
        live.state()
        served = Counter([held[0], *(int(i) for i in worker.held)])
        finish(live, worker, served)
        assert set(served) == {*range(12), 40}
        assert max(served.values()) == 1


POSITION = "@user_script: 7: "
REFUSALS = [
    "NOPERM this user may not run HSET", "OOM command not allowed", "MISCONF errors writing", "LOADING data",
    "READONLY a replica", "NOREPLICAS not enough", "BUSY a script", "MASTERDOWN no link", "NEWCODE unknown",
    "ERR Unknown Redis command called from script",
    "ERR ACL failure in script: User x has no permissions to run the 'hset' command",
    "ERR Script attempted to access a non local key in a cluster node", f"{POSITION}-OOM command not allowed",
    f"{POSITION}-READONLY a replica", f"{POSITION}-MISCONF errors writing",
    f"{POSITION}The user executing the script can't run this command or subcommand",
    f"{POSITION}Unknown Redis command called from Lua script",
]  # fmt: skip


@pytest.mark.parametrize("raised", ["words", "{ err = words }"], ids=["Redis 6.2", "Redis 7"])
@pytest.mark.parametrize("words", REFUSALS)
def test_what_a_stopped_script_was_moving_is_kept_whatever_refuses_its_repair(
    live: LiveFrontier, monkeypatch: Any, words: str, raised: str
) -> None:
    """Whatever words a version of Redis has for it; errors in Lua are tables from Redis 7 on."""
    worker, held = filled(live)
    stopper, at = Stopper(live, monkeypatch), 0
    while not live.redis.exists(live.key("torn")):
        at += 1
        stopper.stop("exchange", at, lambda: worker.exchange(release(held[0])))
    packed = live.redis.smembers(live.key("torn"))
    # Only the first write is refused, so that nothing but the answer to it can stop the repair.
    refusal = f"""
local words, refused, real, redis = [[{words}]], false, redis, nil
redis = {{ pcall = real.pcall, sha1hex = real.sha1hex, call = function(...)
  if (...) == 'HSET' and not refused then
    refused = true
    error({raised}, 0)
  end
  return real.call(...)
end }}
"""
    source = scripts.source
    with monkeypatch.context() as patch:
        patch.setattr(scripts, "source", lambda *args: (refusal if args[0] == "mend" else "") + source(*args))
        with pytest.raises(FrontierError):
            worker.send(worker.last)
    assert live.redis.smembers(live.key("torn")) == packed
    live.frontier._denied = False
    repeat(worker, [release(held[0])])
    assert not live.redis.exists(live.key("torn"))


def test_nothing_is_noted_of_a_script_that_has_written_nothing(live: LiveFrontier, monkeypatch: Any) -> None:
    """Refused at its first write, an exchange leaves everything as it was."""
    worker, held = filled(live)
    before = live.dump()
    reached, _ = Stopper(live, monkeypatch).stop("exchange", 1, lambda: worker.exchange(ack(held[0])))
    assert reached
    assert live.dump() == before


# Rights


OPTIONS = {"CREATE", "COUNT", "GROUP", "STREAMS", "NOGROUP"}
"""Of commands of streams; and one of their errors."""


def commands_in_lua() -> set[str]:
    """Return the commands that the Lua names, wherever it does."""
    found: set[str] = set()
    for name, lua in scripts.lua_files().items():
        text = re.sub(r"--.*", "", lua)
        if name != "rights":
            found |= set(re.findall(r"'([A-Z]{3,})'", text))
    no_commands = {
        "LOST", "RESYNC", "FINISHED", "ABSENT", "LIVE", "DIFFERS", "CONVERTING", "KIND", "TORN", "DENIED",
        "STRANGE", "WRONGTYPE", "ERR", "LIMIT", "AGGREGATE", "MAX", "WITHSCORES", "WITHVALUES", "COUNT",
        "OTHER", "CHANGED", "GAP", "LATER", "MOVING",
    }  # fmt: skip
    return found - no_commands - OPTIONS - {"INFO"}  # a user without it has samples without the memory


def test_every_command_of_the_scripts_is_tried(live: LiveFrontier) -> None:
    """A command that the probe does not know could stop a script midway."""
    rights = scripts.lua_files()["rights"]
    assert commands_in_lua() - {"WRONG_TYPE", "NOT_FENCED", "ONE_WAY", "UNDER_WAY"} == set(
        re.findall(r"'([A-Z]{3,})'", rights)
    ) - OPTIONS - {"NOPERM"}


@pytest.mark.parametrize("command", sorted(commands_in_lua()))
def test_a_command_that_is_refused_is_named_before_anything_is_written(
    redis_server: RedisServer, crawl_name: str, command: str
) -> None:
    """At the start, by its name; nothing of the crawl is there, and no scratch."""
    fed = StartKeys("stream", (f"{crawl_name}:fed",), b"m")
    with redis_server.client() as admin:
        name = re.sub(r"\W", "_", crawl_name)
        rights = ["~*", "+@all", f"-{command.lower()}"]
        admin.execute_command("ACL", "SETUSER", name, "on", ">password", *rights)
        url = redis_server.url.replace("redis://", f"redis://{name}:password@")
        try:
            with closing(LiveFrontier(redis_server.url, crawl_name)) as cleaner:
                refused = LiveFrontier(url, crawl_name, start_keys=fed)
                with pytest.raises(FrontierRefused, match=rf"\b{command}\b.*ACL SETUSER"):
                    HandWorker(refused, "worker")
                assert cleaner.key_names() == set()
                admin.execute_command("ACL", "SETUSER", name, f"+{command.lower()}")
                HandWorker(refused, "worker").leave()
        finally:
            admin.execute_command("ACL", "DELUSER", name)


def test_commands_of_streams_are_needed_only_where_one_feeds_the_crawl(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """A user that was enough for a crawl is enough for it still."""
    name = re.sub(r"\W", "_", crawl_name)
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", name, "on", ">password", "~*", "+@all", "-@stream")
        url = redis_server.url.replace("redis://", f"redis://{name}:password@")
        try:
            for start_keys in (None, StartKeys("list", (f"{crawl_name}:fed",), b"m")):
                with closing(LiveFrontier(url, crawl_name, start_keys=start_keys)) as live:
                    worker = HandWorker(live, "worker")
                    assert numbers(worker.exchange(put(1), want=1)) == [1]
                    live.frontier._denied = True  # so that all are probed
                    assert worker.exchange(ack(1)).census.done == 1
        finally:
            admin.execute_command("ACL", "DELUSER", name)


TAKEN_AWAY = ("rpush", "zadd", "hset", "lpush", "hdel", "sadd", "lpop", "zrem", "hincrby")


@pytest.mark.parametrize("command", TAKEN_AWAY)
def test_rights_that_are_taken_away_tear_one_exchange_at_most(
    redis_server: RedisServer, crawl_name: str, command: str
) -> None:
    """Until they are given back nothing more is written; then the same exchange is applied."""
    with redis_server.client() as admin:
        name = re.sub(r"\W", "_", crawl_name)
        admin.execute_command("ACL", "SETUSER", name, "on", ">password", "~*", "+@all")
        url = redis_server.url.replace("redis://", f"redis://{name}:password@")
        try:
            with closing(LiveFrontier(url, crawl_name, Order.FIFO)) as live:
                worker, held = filled(live, identity=limited(0.0, 10))
                worker.exchange(release(held[0]))
                moves = [put(50, partition=b"new"), put(51, due_in=5), fail(held[1]), ack(held[2])]
                admin.execute_command("ACL", "SETUSER", name, f"-{command}")
                with pytest.raises(FrontierRefused):
                    worker.exchange(*moves, want=4)
                before = live.dump()
                for _ in range(3):
                    with pytest.raises(FrontierRefused, match=command.upper()):
                        worker.send(worker.last)
                assert live.dump() == before
                admin.execute_command("ACL", "SETUSER", name, f"+{command}")
                repeat(worker, moves)
                live.state()
                served = Counter([held[1], held[2], *(int(i) for i in worker.held)])
                finish(live, worker, served)
                assert served == Counter([*range(12), 50, 51])
                assert live.count("failed") == 1
        finally:
            admin.execute_command("ACL", "DELUSER", name)
