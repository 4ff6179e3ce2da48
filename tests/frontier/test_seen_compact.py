"""A compact `seen` loses no fingerprint. It grows and is deleted in bounded steps.

It consists of many small sets, the buckets. To grow, it splits buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha1
from pathlib import Path

import pytest

from scrapy_dq.frontier import forget, frontier, keys
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Admission, FrontierUnavailable, Order, Seen, Status
from support.compact import chance_of_a_false_seen, compacted
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put

KEPT = replace(IDENTITY, keep_seen=True)
LOAD, MAX_SPLITS, SWEPT_PER_CALL, MAX_BUCKETS = 200, 6, 100, 2**28
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def live(open_frontier: Callable[..., LiveFrontier]) -> LiveFrontier:
    """Return a frontier with a compact `seen`."""
    return open_frontier(Order.FIFO, seen=Seen.COMPACT)


def seen(n: int, page: int) -> object:
    return put(n, admission=Admission.SEEN, token=b"page %d" % page)


def directory(live: LiveFrontier) -> dict[str, int]:
    stored = live.redis.hgetall(live.key("seen"))
    return {name: int(stored[name.encode()]) for name in ("buckets", "count")}


def finish(worker: HandWorker, keep_seen: bool = True) -> None:
    """Crawl all entries and leave as the last worker."""
    while taken := worker.take(99):
        worker.exchange(*(ack(n) for n in taken))
    assert worker.exchange().status is Status.FINISHED
    assert worker.leave(keep_seen) == (0, True)


def in_parts(tokens: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (tokens[start : start + 1000] for start in range(0, len(tokens), 1000))


def test_every_exchange_uses_the_stored_kind_of_seen(
    live: LiveFrontier, open_frontier: Callable[..., LiveFrontier]
) -> None:
    """Programs use the stored kind of seen, even a program that joined before the kind was stored."""
    program = replace(
        IDENTITY, fingerprinter="", spider="", keep_seen=None, order_given=False, seen_given=False
    )
    early = HandWorker(open_frontier(Order.FIFO, live.crawl), "early", program)
    worker = HandWorker(live, "worker")
    worker.exchange(seen(1, 1))
    late = HandWorker(open_frontier(Order.FIFO, live.crawl, Seen.EXPIRING), "late", program)
    for each in (early, late):
        assert each.exchange(seen(2, 1)).dropped == (0,)
    live.state()


# Growth


def test_no_fingerprint_is_lost_as_seen_grows(live: LiveFrontier) -> None:
    """Exchanges store 250,000 fingerprints. Then all are known. Their buckets are evenly filled intsets."""
    tokens = [sha1(b"%d" % n).digest() for n in range(250_000)]
    worker = HandWorker(live, "worker")
    for part in in_parts(tokens):
        moves = (put(n, admission=Admission.SEEN, token=token, payload=b"") for n, token in enumerate(part))
        before = live.redis.hget(live.key("seen"), "buckets") or 1024
        assert worker.exchange(*moves, seeding=1).dropped == ()
        assert directory(live)["buckets"] - int(before) <= MAX_SPLITS
    assert directory(live) == {"buckets": -(-250_000 // LOAD), "count": 250_000}
    pipe = live.redis.pipeline(transaction=False)
    names = sorted(name for name in live.key_names() if name.startswith("seen:"))
    for name in names:
        pipe.object("encoding", live.key(name))
        pipe.scard(live.key(name))
    found = pipe.execute()
    assert set(found[::2]) == {b"intset"}
    assert sum(found[1::2]) == 250_000
    assert max(found[1::2]) <= 2 * LOAD
    known = [forget(live.redis, live.crawl, [(token, b"-") for token in part]) for part in in_parts(tokens)]
    assert known == [1000] * 250
    assert directory(live)["count"] == 0


def test_overdue_splits_are_made_a_few_at_a_time(live: LiveFrontier) -> None:
    """An exchange makes only a few of the due splits, and only if it adds a fingerprint."""
    worker = HandWorker(live, "worker")
    worker.exchange(*(seen(n, n) for n in range(500)))
    live.redis.hset(live.key("seen"), "count", 1_000_000)
    worker.exchange(seen(1, 1))
    assert directory(live)["buckets"] == 1024
    for splits in (1, 2, 3):
        worker.exchange(seen(1000, 1000 + splits))
        assert directory(live)["buckets"] == 1024 + splits * MAX_SPLITS
    assert worker.exchange(*(seen(n, n) for n in range(500))).dropped == tuple(range(500))


def test_only_new_and_forgotten_fingerprints_change_the_count(live: LiveFrontier) -> None:
    """A known put, or forgetting an unknown fingerprint, does not change the count."""
    worker = HandWorker(live, "worker")
    worker.exchange(seen(1, 1), seen(2, 2))
    for _ in range(2):
        worker.exchange(seen(3, 1))
        assert forget(live.redis, live.crawl, [(b"page 9", b"-")]) == 0
    assert directory(live)["count"] == 2
    assert forget(live.redis, live.crawl, [(b"page 1", b"-")]) == 1
    assert directory(live)["count"] == 1


@pytest.mark.parametrize("token", [b"", b"\0" * 20, b"x" * 10_000])
def test_a_fingerprint_can_be_any_bytes(live: LiveFrontier, token: bytes) -> None:
    """A project's own fingerprinter may return any bytes."""
    worker = HandWorker(live, "worker")
    tokens = (token, token + b"\0", token)
    puts = (put(n, admission=Admission.SEEN, token=each) for n, each in enumerate(tokens))
    assert worker.exchange(*puts).dropped == (2,)
    assert live.state()["tokens"][Admission.SEEN] == compacted(tokens)


def test_the_docs_state_the_chance_of_a_false_seen() -> None:
    """In a crawl of a hundred million URLs, the chance of any false seen is below one in a million."""
    chance = chance_of_a_false_seen(10**8)
    assert chance < 1e-6
    assert f"{chance:.1e}" == "3.1e-07"
    for page in ("settings.md", "incremental.md"):
        assert "3.1 · 10⁻⁷" in (DOCS / page).read_text("utf-8")


# Deletion


def left_behind(live: LiveFrontier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finish a run that keeps nothing. The sweep of its last worker, which deletes the old `seen`, fails."""

    async def die(*_: object) -> bool:
        raise FrontierUnavailable("Redis does not answer")

    worker = HandWorker(live, "worker")
    worker.exchange(*(seen(n, n) for n in range(2000)), seeding=1)
    with monkeypatch.context() as patched:
        patched.setattr(Frontier, "sweep", die)
        finish(worker, keep_seen=False)
    assert live.redis.exists(live.key("seen")) == 0
    assert list(live.redis.hvals(live.key("discarded"))) == [b"1024"]


def test_an_old_seen_set_is_unlinked_in_small_steps(
    live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanges of the next run finish an interrupted sweep. No old fingerprint counts in the new run."""
    left_behind(live, monkeypatch)
    worker = HandWorker(live, "worker", KEPT)
    assert worker.exchange(seen(1, 1), seen(2, 1000)).dropped == ()
    for left in range(1024 - SWEPT_PER_CALL, 0, -SWEPT_PER_CALL):
        assert list(live.redis.hvals(live.key("discarded"))) == [b"%d" % left]
        live.state()
        worker.exchange()
    assert "discarded" not in live.key_names()
    assert len([name for name in live.key_names() if name.startswith("seen:")]) == 2


@pytest.mark.parametrize("kind", [Seen.EXACT, Seen.COMPACT])
def test_a_sweep_is_bounded(
    live: LiveFrontier,
    open_frontier: Callable[..., LiveFrontier],
    monkeypatch: pytest.MonkeyPatch,
    kind: Seen,
) -> None:
    """Each call deletes a bounded number of buckets, of any old `seen`, and stops after the given time."""
    left_behind(live, monkeypatch)
    live.redis.hset(live.key("discarded"), "older", 1500)
    monkeypatch.setattr(frontier, "SWEEP_STEP", 500)
    lefts = []
    while live.call("sweep", 0.0):
        lefts.append(sum(int(n) for n in live.redis.hvals(live.key("discarded"))))
    assert lefts == [2024, 1524, 1024, 524, 24]
    assert live.key_names() == {"meta"}
    left_behind(live, monkeypatch)
    assert live.call("sweep", 60.0) is False
    live = open_frontier(Order.FIFO, live.crawl, kind)
    assert HandWorker(live, "worker").exchange(seen(1, 1)).dropped == ()


def test_a_sweep_finds_all_of_very_many_generations(live: LiveFrontier) -> None:
    """The sweep does not scan the hash from its start each time, because it would soon find nothing there."""
    live.redis.hset(live.key("discarded"), mapping={f"generation {n}": 1 for n in range(1500)})
    for _ in range(1500 // 16 + 2):
        if not live.call("sweep", 0.0):
            break
    assert live.dump() == {}


@pytest.mark.parametrize("method", ["join", "flush"])
def test_buckets_that_lost_their_meta_are_deleted(live: LiveFrontier, method: str) -> None:
    """Although `meta` is gone, the directory in `seen` still names the buckets."""
    HandWorker(live, "worker").exchange(*(seen(n, n) for n in range(100)))
    live.redis.delete(keys.meta(live.crawl))
    if method == "join":
        new = HandWorker(live, "new")
        assert new.exchange(seen(2, 1)).dropped == ()
        assert live.call("sweep", 60.0) is False
        live.state()
    live.call("flush", ["worker", "new"])
    assert live.dump() == {}
