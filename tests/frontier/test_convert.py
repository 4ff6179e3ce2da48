"""What was seen becomes another kind: in small steps, beside nobody, and nothing of it is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from redis.exceptions import ResponseError

from scrapy_dq.frontier import forget, peek
from scrapy_dq.frontier.admin.convert import STEP, convert, convert_some
from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import Admission, FrontierRefused, Order, Put, Seen, Status
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put

OpenFrontier = Callable[..., LiveFrontier]
HOUR = 3600.0
PAGES = 2 * STEP + 500
WAYS = [
    (Seen.EXACT, Seen.COMPACT),
    (Seen.EXACT, Seen.EXPIRING),
    (Seen.EXPIRING, Seen.EXACT),
    (Seen.EXPIRING, Seen.COMPACT),
]
FORGET = [(b"page 1", b"-")]


def seen(page: int, n: int = 0) -> Put:
    """Return a put of a page, as entry number *n*, by default that of the page."""
    return put(n or page, admission=Admission.SEEN, token=b"page %d" % page)


def begun(open_frontier: OpenFrontier, kind: Seen, pages: int = PAGES) -> LiveFrontier:
    """Return a crawl that has seen the given number of pages; its run is open, its only worker has left."""
    live = open_frontier(Order.FIFO, seen=kind)
    worker = HandWorker(live, "worker", identity(kind))
    for start in range(0, pages, 500):
        worker.exchange(*(seen(n) for n in range(start, start + 500)), seeding=1)
    worker.leave()
    return live


def identity(kind: Seen) -> Identity:
    return replace(IDENTITY, keep_seen=True, seen_ttl_s=HOUR if kind is Seen.EXPIRING else 0.0)


def known(open_frontier: OpenFrontier, live: LiveFrontier, kind: Seen, pages: int = PAGES) -> int:
    """Return how many of the pages a worker of *kind* is told to have been seen; check all keys."""
    of_kind = open_frontier(Order.FIFO, live.crawl, kind)
    worker = HandWorker(of_kind, "of the other kind", identity(kind))
    found = 0
    for start in range(0, pages, 500):
        again = (seen(page, 10**6 + page) for page in range(start, start + 500))
        found += len(worker.exchange(*again, seeding=1).dropped)
    of_kind.state()
    worker.leave()
    return found


@pytest.mark.parametrize(("from_", "to"), WAYS)
def test_all_that_was_seen_counts_as_seen(open_frontier: OpenFrontier, from_: Seen, to: Seen) -> None:
    """In small steps; meanwhile the count is that of both halves, and what waits stays as it is."""
    live = begun(open_frontier, from_)
    waiting = live.state()["places"]
    lefts = []
    for left in convert(live.redis, live.frontier.name, to, []):
        lefts.append(left)
        assert peek(live.redis, live.crawl).census.seen == PAGES
    assert lefts == [PAGES - STEP, PAGES - 2 * STEP, 0]
    assert live.redis.hget(live.key("meta"), "seen_kind").decode() == to.value
    assert "converting" not in live.key_names()
    assert live.state()["places"] == waiting
    assert known(open_frontier, live, to) == PAGES
    assert convert_some(live.redis, live.frontier.name, to, []) == 0
    with pytest.raises(
        FrontierRefused, match=rf"kind of seen .*'{to.value}', this worker has '{from_.value}'\. Set DQ_SEEN"
    ):
        HandWorker(live, "as before", identity(from_))


def test_a_compact_one_is_as_large_as_it_has_to_be(open_frontier: OpenFrontier) -> None:
    """From the beginning: nothing is split on the way."""
    live = begun(open_frontier, Seen.EXACT, 500)
    live.redis.sadd(live.key("seen"), *range(249_500))
    convert_some(live.redis, live.frontier.name, Seen.COMPACT, [])
    assert int(live.redis.hget(live.key("seen"), "buckets")) == 1250
    for _ in convert(live.redis, live.frontier.name, Seen.COMPACT, []):
        pass
    assert live.redis.hmget(live.key("seen"), "buckets", "count") == [b"1250", b"250000"]
    live.state()


def test_of_a_finished_run_too(open_frontier: OpenFrontier) -> None:
    """The next run has what was kept, in the new kind."""
    live = begun(open_frontier, Seen.EXACT, 500)
    worker = HandWorker(live, "worker", identity(Seen.EXACT))
    while taken := worker.take(500):
        worker.exchange(*(ack(n) for n in taken))
    worker.exchange()
    assert worker.leave(keep_seen=True) == (0, True)
    list(convert(live.redis, live.frontier.name, Seen.COMPACT, []))
    assert peek(live.redis, live.crawl).phase == "finished"
    assert known(open_frontier, live, Seen.COMPACT, 500) == 500


def test_what_has_expired_stays_forgotten(open_frontier: OpenFrontier) -> None:
    """It counted as new before."""
    live = begun(open_frontier, Seen.EXPIRING, 500)
    live.redis.hset(live.key("meta"), "seen_since", 1000)
    live.redis.zadd(live.key("seen"), {b"page 7": 999, b"page 8": 1000})
    assert list(convert(live.redis, live.frontier.name, Seen.EXACT, [])) == [0]
    assert known(open_frontier, live, Seen.EXACT, 500) == 499


def test_what_gets_times_was_seen_now(open_frontier: OpenFrontier) -> None:
    """The next run knows it; one that begins after its time to live does not."""
    live = begun(open_frontier, Seen.EXACT, 500)
    list(convert(live.redis, live.frontier.name, Seen.EXPIRING, []))
    now_ms = live.redis.time()[0] * 1000
    for _, at in live.redis.zrange(live.key("seen"), 0, -1, withscores=True):
        assert now_ms - 5000 <= at <= now_ms + 1000


def test_if_nothing_was_seen_there_is_nothing_to_convert(open_frontier: OpenFrontier) -> None:
    """The crawl is of the other kind then; also one that was compact, and of which all was forgotten."""
    live = open_frontier(Order.FIFO, seen=Seen.COMPACT)
    worker = HandWorker(live, "worker")
    worker.exchange(seen(1))
    worker.leave()
    assert forget(live.redis, live.crawl, FORGET) == 1
    for to in Seen:
        assert list(convert(live.redis, live.frontier.name, to, [])) == [0]
        HandWorker(open_frontier(Order.FIFO, live.crawl, to), f"worker of {to}").leave()
    live.call("sweep", 60.0)
    assert not [name for name in live.key_names() if name.startswith("seen")]


# Half-way


class Half(NamedTuple):
    """A crawl that is half converted, from exact to compact, and a worker that was declared dead."""

    live: LiveFrontier
    away: HandWorker


@pytest.fixture
def half(open_frontier: OpenFrontier) -> Half:
    live = begun(open_frontier, Seen.EXACT)
    away = HandWorker(live, "away", identity(Seen.EXACT))
    away.exchange(put(10**7), want=1)
    assert convert_some(live.redis, live.frontier.name, Seen.COMPACT, ["away"]) == PAGES - STEP
    return Half(live, away)


def test_nobody_joins_half_way(half: Half, open_frontier: OpenFrontier) -> None:
    """Neither kind, nor one that takes any; each message says how to continue. Nothing is changed."""
    before = half.live.dump()
    anybody = replace(IDENTITY, seen_given=False, order_given=False)
    of_the_other = open_frontier(Order.FIFO, half.live.crawl, Seen.COMPACT)
    tries: list[Callable[[], object]] = [
        lambda: HandWorker(half.live, "exact", identity(Seen.EXACT)),
        lambda: HandWorker(of_the_other, "compact", identity(Seen.COMPACT)),
        lambda: HandWorker(half.live, "anybody", anybody),
        lambda: half.away.exchange(seen(1)),
        lambda: half.away.rejoin("new"),
        lambda: forget(half.live.redis, half.live.crawl, FORGET),
    ]
    for attempt in tries:
        with pytest.raises(FrontierRefused, match="scrapy dq seen convert <spider> --to compact"):
            attempt()
    assert half.live.dump() == before


def test_a_worker_that_was_absent_continues_with_the_new_kind(half: Half) -> None:
    """Its exchange is answered once the conversion is done, and what it puts is known or not as before."""
    with pytest.raises(FrontierRefused):
        half.away.exchange(seen(1), put(10**7 + 1, admission=Admission.SEEN))
    sent = half.away.last
    list(convert(half.live.redis, half.live.frontier.name, Seen.COMPACT, ["away"]))
    receipt = half.away.send(sent)
    assert (receipt.status, receipt.dropped) == (Status.OK, (0,))
    half.live.state()


def test_the_same_command_continues_and_no_other(half: Half, open_frontier: OpenFrontier) -> None:
    """From where it was interrupted; a conversion to another kind is refused."""
    before = half.live.dump()
    for to in (Seen.EXACT, Seen.EXPIRING):
        with pytest.raises(FrontierRefused, match="half converted from exact to compact: finish that first"):
            convert_some(half.live.redis, half.live.frontier.name, to, ["away"])
    assert half.live.dump() == before
    assert list(convert(half.live.redis, half.live.frontier.name, Seen.COMPACT, ["away"])) == [500, 0]
    assert known(open_frontier, half.live, Seen.COMPACT) == PAGES


def test_it_is_deleted_half_way(half: Half) -> None:
    """Both halves."""
    census = half.live.call("flush", ["away"])[1]
    assert (census.seen, half.live.dump()) == (PAGES, {})


def test_the_last_to_leave_a_finished_run_deletes_both_halves(open_frontier: OpenFrontier) -> None:
    """It was declared dead, and its `seen` is converted meanwhile."""
    live = begun(open_frontier, Seen.EXACT)
    away = HandWorker(live, "away", replace(identity(Seen.EXACT), keep_seen=False))
    while numbers := away.take(500):
        receipt = away.exchange(*map(ack, numbers))
    assert receipt.status is Status.FINISHED
    assert convert_some(live.redis, live.frontier.name, Seen.COMPACT, ["away"]) > 0
    away.leave()
    assert live.key_names() == {"meta"}
    assert list(convert(live.redis, live.frontier.name, Seen.COMPACT, [])) == [0]
    assert HandWorker(live, "new", replace(IDENTITY, seen_given=False)).run == away.run + 1


# What is refused


def test_it_refuses_beside_a_worker(open_frontier: OpenFrontier) -> None:
    """One that was not known to be dead when it was looked."""
    live = begun(open_frontier, Seen.EXACT, 500)
    HandWorker(live, "late", identity(Seen.EXACT))
    before = live.dump()
    with pytest.raises(FrontierRefused, match="worker late has joined"):
        convert_some(live.redis, live.frontier.name, Seen.COMPACT, ["another"])
    assert live.dump() == before


@pytest.mark.parametrize("to", [Seen.EXACT, Seen.EXPIRING])
def test_nothing_can_be_made_of_a_compact_one(open_frontier: OpenFrontier, to: Seen) -> None:
    """One line says why."""
    live = begun(open_frontier, Seen.COMPACT, 500)
    before = live.dump()
    with pytest.raises(FrontierRefused, match="does not hold whole fingerprints"):
        convert_some(live.redis, live.frontier.name, to, [])
    assert live.dump() == before
    with pytest.raises(FrontierRefused) as refusal:
        HandWorker(open_frontier(Order.FIFO, live.crawl, to), "other", identity(to))
    assert "convert" not in str(refusal.value)


def test_the_refusal_of_a_join_names_the_command(open_frontier: OpenFrontier) -> None:
    """With the kind that this worker would have."""
    live = begun(open_frontier, Seen.EXACT, 500)
    with pytest.raises(FrontierRefused, match="scrapy dq seen convert <spider> --to compact"):
        HandWorker(open_frontier(Order.FIFO, live.crawl, Seen.COMPACT), "other", identity(Seen.COMPACT))


def test_a_crawl_that_does_not_exist_is_not_made(live: LiveFrontier) -> None:
    with pytest.raises(FrontierRefused, match="there is no crawl"):
        convert_some(live.redis, live.frontier.name, Seen.COMPACT, [])
    assert live.dump() == {}


@pytest.mark.parametrize("to", [Seen.COMPACT, Seen.EXPIRING])
def test_a_full_redis_is_made_smaller_and_not_larger(open_frontier: OpenFrontier, to: Seen) -> None:
    """At `maxmemory` compact is the way out; a kind that takes more is refused."""
    live = begun(open_frontier, Seen.EXACT)
    convert_some(live.redis, live.frontier.name, to, [])
    before = live.dump()
    live.redis.config_set("maxmemory", 1)
    try:
        if to is Seen.COMPACT:
            assert list(convert(live.redis, live.frontier.name, to, [])) == [500, 0]
        else:
            with pytest.raises(ResponseError, match="maxmemory"):
                convert_some(live.redis, live.frontier.name, to, [])
    finally:
        live.redis.config_set("maxmemory", 0)
    assert (live.dump() == before) is (to is Seen.EXPIRING)
    list(convert(live.redis, live.frontier.name, to, []))
    assert known(open_frontier, live, to) == PAGES
