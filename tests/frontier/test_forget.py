"""`forget` removes fingerprints from any kind of `seen`, and fingerprints adopted from another scheduler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scrapy_dq.frontier import forget
from scrapy_dq.frontier.model import Admission, Seen
from scrapy_dq.frontier.moves import Put
from support.live_frontier import HandWorker, LiveFrontier, ack, limited, put


def seen(n: int, fingerprint: bytes) -> Put:
    return put(n, admission=Admission.SEEN, token=fingerprint)


@pytest.mark.parametrize("kind", list(Seen))
def test_a_forgotten_fingerprint_is_new_again(open_frontier: Callable[..., LiveFrontier], kind: Seen) -> None:
    """`forget` returns how many of its fingerprints were seen. All other fingerprints stay in `seen`."""
    live = open_frontier(seen=kind)
    worker = HandWorker(live, "worker")
    worker.exchange(seen(1, b"one"), seen(2, b"two"))
    assert forget(live.redis, live.crawl, [(b"one", b"-"), (b"three", b"-")]) == 1
    assert worker.exchange(seen(3, b"one"), seen(4, b"two")).dropped == (1,)
    assert forget(live.redis, live.crawl, [(b"one", b"-"), (b"one", b"-")]) == 1
    live.state()


def test_an_adopted_fingerprint_is_forgotten(live: LiveFrontier, worker: HandWorker) -> None:
    """In the other scheduler, a request has another fingerprint. Both are removed, but counted once."""
    theirs = b"a" * 20, b"b" * 20
    live.call("adopt", worker.epoch, 0, "", 1, list(theirs))
    worker.exchange(seen(1, b"one"))
    assert forget(live.redis, live.crawl, [(b"one", theirs[0]), (b"two", theirs[1]), (b"x", b"c" * 20)]) == 2
    known = [seen(2, b"one"), seen(3, b"two")]
    for each, name in zip(known, theirs, strict=True):
        each.known_as = name
    assert worker.exchange(*known).dropped == ()


def test_workers_are_notified(live: LiveFrontier, worker: HandWorker) -> None:
    """Workers cache the fingerprints that they sent, so each call raises the counters that they watch."""
    for calls in (1, 2):
        forget(live.redis, live.crawl, [(b"one", b"-")])
        assert [live.count(counter) for counter in ("forgets", "words")] == [calls, calls]


def test_a_missing_crawl_is_not_created(live: LiveFrontier) -> None:
    assert forget(live.redis, live.crawl, [(b"one", b"-")]) is None
    assert live.dump() == {}


def waits_twice(live: LiveFrontier, worker: HandWorker, *found: Put) -> None:
    """Make each entry that *worker* holds wait twice under its id: in the quarantine and in the backlog.

    A user forgets the fingerprints, worker "by" reclaims the leases, and *worker* puts the entries again.
    """
    forget(live.redis, live.crawl, [(put.token, b"-") for put in found])
    HandWorker(live, "by", worker.crawl).reclaim(worker.worker_id)
    worker.rejoin("back")
    assert worker.exchange(*found).dropped == ()


def test_a_worker_that_leased_an_entry_twice_can_still_get_a_suspect(live: LiveFrontier) -> None:
    """One worker leases both copies of an entry. One ack ends both leases, although one copy is a suspect."""
    worker, victim = HandWorker(live, "worker"), HandWorker(live, "victim")
    worker.exchange(seen(1, b"one"), want=1)
    waits_twice(live, worker, seen(1, b"one"))
    both = HandWorker(live, "both")
    assert both.take(2) == [1, 1]
    both.exchange(ack(1))
    victim.exchange(seen(2, b"two"))
    assert victim.take(1) == [2]
    worker.reclaim("victim")
    assert both.take(1) == [2]


def test_an_entry_leased_twice_by_one_worker_counts_once_in_its_partition(live: LiveFrontier) -> None:
    """If the second copy counted against the limit, no move would settle it, and its count would stay."""
    worker = HandWorker(live, "worker", limited(concurrency=4))
    found = [seen(1, b"one"), seen(2, b"two")]
    for each in found:
        each.partition = b"a"
    worker.exchange(*found, want=2)
    waits_twice(live, worker, *found)
    assert sorted(worker.take(4)) == [1, 1, 2]  # a worker holds one suspect at a time
    worker.exchange(ack(1), ack(2))
    worker.exchange(*(ack(n) for n in worker.take(4)))
    assert not live.redis.exists(live.key("busy"))
