"""What a crawl has seen, and is to forget: of each kind, and what another scheduler had seen."""

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
def test_what_is_forgotten_is_new_again(open_frontier: Callable[..., LiveFrontier], kind: Seen) -> None:
    """Of either kind; how many were seen is returned, and the others stay seen."""
    live = open_frontier(seen=kind)
    worker = HandWorker(live, "worker")
    worker.exchange(seen(1, b"one"), seen(2, b"two"))
    assert forget(live.redis, live.crawl, [(b"one", b"-"), (b"three", b"-")]) == 1
    assert worker.exchange(seen(3, b"one"), seen(4, b"two")).dropped == (1,)
    assert forget(live.redis, live.crawl, [(b"one", b"-"), (b"one", b"-")]) == 1
    live.state()


def test_what_another_scheduler_had_seen_is_forgotten(live: LiveFrontier, worker: HandWorker) -> None:
    """By its own name; known by both names counts once."""
    theirs = b"a" * 20, b"b" * 20
    live.call("adopt", worker.epoch, 0, "", 1, list(theirs))
    worker.exchange(seen(1, b"one"))
    assert forget(live.redis, live.crawl, [(b"one", theirs[0]), (b"two", theirs[1]), (b"x", b"c" * 20)]) == 2
    known = [seen(2, b"one"), seen(3, b"two")]
    for each, name in zip(known, theirs, strict=True):
        each.known_as = name
    assert worker.exchange(*known).dropped == ()


def test_workers_are_notified(live: LiveFrontier, worker: HandWorker) -> None:
    """Each call counts up what they look at: they remember for themselves what they have sent."""
    for calls in (1, 2):
        forget(live.redis, live.crawl, [(b"one", b"-")])
        assert [live.count(counter) for counter in ("forgets", "words")] == [calls, calls]


def test_a_crawl_that_does_not_exist_is_not_made(live: LiveFrontier) -> None:
    assert forget(live.redis, live.crawl, [(b"one", b"-")]) is None
    assert live.dump() == {}


def waits_twice(live: LiveFrontier, worker: HandWorker, *found: Put) -> None:
    """Have what *worker* has leased wait twice, once as suspects, each with one id.

    It was forgotten, its worker was taken for dead, and who had put it has come back and put it again.
    """
    forget(live.redis, live.crawl, [(put.token, b"-") for put in found])
    HandWorker(live, "by", worker.crawl).reclaim(worker.worker_id)
    worker.rejoin("back")
    assert worker.exchange(*found).dropped == ()


def test_one_that_comes_twice_does_not_keep_its_worker_from_suspects(live: LiveFrontier) -> None:
    """Both are leased by one worker, and the lease from quarantine ends with the other one."""
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


def test_one_that_comes_twice_counts_once_among_those_of_its_partition(live: LiveFrontier) -> None:
    """Else each such lease would take a place of the limit for good."""
    worker = HandWorker(live, "worker", limited(concurrency=4))
    found = [seen(1, b"one"), seen(2, b"two")]
    for each in found:
        each.partition = b"a"
    worker.exchange(*found, want=2)
    waits_twice(live, worker, *found)
    assert sorted(worker.take(4)) == [1, 1, 2]  # a worker holds one suspect at a time
    worker.exchange(ack(1), ack(2))
    worker.exchange(*(ack(n) for n in worker.take(4)))
    assert live.dump().get(b"busy") is None
    assert not live.redis.exists(live.key("busy"))
