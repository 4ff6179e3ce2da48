"""A new run ignores fingerprints that have expired. Within a run, no fingerprint expires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Admission, Order, Seen, Status
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put

HOUR = 3600.0
CRAWL = replace(IDENTITY, keep_seen=True, seen_ttl_s=HOUR)


@pytest.fixture
def live(open_frontier: Callable[..., LiveFrontier]) -> LiveFrontier:
    """Return a frontier whose fingerprints expire."""
    return open_frontier(Order.FIFO, seen=Seen.EXPIRING)


def seen(n: int, page: int) -> object:
    return put(n, admission=Admission.SEEN, token=b"page %d" % page)


def age(live: LiveFrontier, page: int, seconds: float) -> None:
    """Make the admission of a page older."""
    live.redis.zincrby(live.key("seen"), -1000 * seconds, b"page %d" % page)


def finish(worker: HandWorker) -> None:
    """Crawl all entries and leave as the last worker."""
    while taken := worker.take(99):
        worker.exchange(*(ack(n) for n in taken))
    assert worker.exchange().status is Status.FINISHED
    assert worker.leave(keep_seen=True) == (0, True)


def test_within_a_run_nothing_is_forgotten(live: LiveFrontier) -> None:
    """Even a very long run knows every page that it has admitted."""
    worker = HandWorker(live, "worker", CRAWL)
    assert worker.exchange(seen(1, 1), seen(2, 2), seen(3, 1)).dropped == (2,)
    live.advance(100 * HOUR)
    assert worker.exchange(seen(4, 1), seen(5, 3)).dropped == (0,)
    worker.leave()
    resumed = HandWorker(live, "resumed", CRAWL)
    assert resumed.exchange(seen(6, 2)).dropped == (0,)
    assert resumed.exchange().census.seen == 3


def test_a_new_run_forgets_pages_older_than_the_time_to_live(live: LiveFrontier) -> None:
    """Pages admitted longer ago than the time to live are new again. The other pages are known."""
    worker = HandWorker(live, "worker", CRAWL)
    worker.exchange(seen(1, 1), seen(2, 2))
    age(live, 1, HOUR + 60)
    age(live, 2, HOUR - 60)
    finish(worker)
    again = HandWorker(live, "again", CRAWL)
    assert (again.run, again.exchange(seen(1, 1), seen(2, 2)).dropped) == (1, (1,))


def test_an_expired_page_is_admitted_once(live: LiveFrontier) -> None:
    """After its new admission, a page is known in this run and in the next run."""
    worker = HandWorker(live, "worker", CRAWL)
    worker.exchange(seen(1, 1))
    age(live, 1, 2 * HOUR)
    finish(worker)
    again = HandWorker(live, "again", CRAWL)
    assert again.exchange(seen(2, 1)).dropped == ()
    assert again.exchange(seen(3, 1)).dropped == (0,)
    finish(again)
    assert HandWorker(live, "and again", CRAWL).exchange(seen(4, 1)).dropped == (0,)


def test_a_put_that_was_already_seen_is_as_old_as_before(live: LiveFrontier) -> None:
    """A duplicate put does not renew the admission of a page."""
    worker = HandWorker(live, "worker", CRAWL)
    worker.exchange(seen(1, 1))
    age(live, 1, HOUR - 60)
    assert worker.exchange(seen(2, 1)).dropped == (0,)
    age(live, 1, 120)
    finish(worker)
    assert HandWorker(live, "again", CRAWL).exchange(seen(3, 1)).dropped == ()


def test_ages_count_from_the_start_of_the_run(live: LiveFrontier) -> None:
    """A fingerprint expires by its age at the start of the run, not by its age at the put."""
    worker = HandWorker(live, "worker", CRAWL)
    worker.exchange(seen(1, 1))
    age(live, 1, HOUR - 60)
    finish(worker)
    again = HandWorker(live, "again", CRAWL)
    live.advance(10 * HOUR)
    assert again.exchange(seen(2, 1)).dropped == (0,)


def test_without_a_time_to_live_nothing_is_forgotten(live: LiveFrontier) -> None:
    """With a time to live of 0, fingerprints never expire."""
    crawl = replace(CRAWL, seen_ttl_s=0.0)
    worker = HandWorker(live, "worker", crawl)
    worker.exchange(seen(1, 1))
    age(live, 1, 10**5 * HOUR)
    finish(worker)
    assert HandWorker(live, "again", crawl).exchange(seen(2, 1)).dropped == (0,)


@pytest.mark.parametrize("method", ["join", "flush"])
def test_fingerprints_that_lost_their_meta_are_cleared(live: LiveFrontier, method: str) -> None:
    """Without `meta`, the kind of seen is unknown. But the old fingerprints filter no page."""
    HandWorker(live, "worker", CRAWL).exchange(seen(1, 1))
    live.redis.delete(keys.meta(live.crawl))
    if method == "join":
        assert HandWorker(live, "new", CRAWL).exchange(seen(2, 1)).dropped == ()
    else:
        live.call("flush", ["worker"])
        assert live.dump() == {}
