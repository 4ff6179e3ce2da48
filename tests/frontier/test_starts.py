"""An interrupted start() keeps the run open until a start() with the same arguments is complete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import Admission, Identity, Status
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put

ARGS, OTHER = replace(IDENTITY, starts="args"), replace(IDENTITY, starts="other args")
OWN = replace(IDENTITY, starts="*args")


def broken(live: LiveFrontier, how: str, crawl: Identity = ARGS, seeding: int = 1) -> None:
    """Let a worker of *crawl* end in the middle of its start()."""
    worker = HandWorker(live, "broken", crawl)
    worker.exchange(put(1), seeding=seeding)
    by = HandWorker(live, "by", replace(IDENTITY, starts=""))
    if how == "leave":
        worker.leave()
    else:
        assert live.call("fence", "broken", by.epoch, by.run, how == "killed") == ("OK", crawl.starts)
        by.drain("broken")
    by.leave()


def all_done(worker: HandWorker) -> Receipt:
    """Crawl all entries. Return the receipt of the exchange that finds no entry left."""
    worker.exchange(*(ack(n) for n in worker.take(9)))
    return worker.exchange()


@pytest.mark.parametrize("how", ["killed", "presumed dead", "leave"])
@pytest.mark.parametrize("seeding", [1, 2])
def test_other_workers_do_not_finish_a_run_with_an_incomplete_start(
    live: LiveFrontier, how: str, seeding: int
) -> None:
    """All entries are done and no worker seeds. But a start() is incomplete, as the census reports."""
    broken(live, how, seeding=seeding)
    worker = HandWorker(live, "worker", OTHER)
    receipt = all_done(worker)
    assert (receipt.status, receipt.census.incomplete, receipt.census.empty) == (Status.OK, 1, True)
    assert live.call("census").incomplete == 1
    worker.leave()
    assert live.state()["phase"] == "open"


def test_without_seed_once_only_a_later_start_replaces_an_interrupted_one(live: LiveFrontier) -> None:
    """With DQ_SEED_ONCE = False, each start() has its own requests, so an earlier one replaces no other."""
    early = HandWorker(live, "early", OWN)
    complete = HandWorker(live, "complete", OWN)
    complete.exchange()
    broken(live, "killed", OWN)
    # The order of the joins counts, not Redis's clock, because the clock may have been set back.
    live.redis.hset(live.key("worker:early"), "since", 2**50)
    assert all_done(early).census.incomplete == 1
    later = HandWorker(live, "later", OWN)
    live.redis.hset(live.key("worker:later"), "since", 1)
    complete.exchange()
    assert all_done(later).status is Status.FINISHED


@pytest.mark.parametrize("drained", [False, True])
def test_a_worker_that_was_declared_dead_completes_its_own_start(live: LiveFrontier, drained: bool) -> None:
    """With DQ_SEED_ONCE = False, a returning worker completes its start(), which counted as interrupted."""
    worker, by = HandWorker(live, "worker", OWN), HandWorker(live, "by", replace(IDENTITY, starts=""))
    worker.exchange(put(1), seeding=1)
    by.fence("worker")
    if drained:
        by.drain("worker")
    worker.rejoin("worker again")
    by.drain("worker")
    worker.exchange()
    by.exchange()
    assert all_done(worker).status is Status.FINISHED


def test_the_start_of_a_worker_without_a_record_does_not_count_as_later(live: LiveFrontier) -> None:
    """With DQ_SEED_ONCE = False, a start() is interrupted, and then another, drained worker returns."""
    worker = HandWorker(live, "worker", OWN)
    by = HandWorker(live, "by", replace(IDENTITY, starts=""))
    by.fence("worker", gone=True)
    by.drain("worker")
    by.leave()
    broken(live, "killed", OWN)
    worker.rejoin("worker again")
    assert all_done(worker).census.incomplete == 1


def test_a_continued_start_does_not_replace_another_one(live: LiveFrontier) -> None:
    """With DQ_SEED_ONCE = False, two start() methods are interrupted. One of the two workers returns."""
    frozen = HandWorker(live, "frozen", OWN)
    frozen.exchange(put(2), seeding=1)
    broken(live, "killed", OWN)
    by = HandWorker(live, "by", replace(IDENTITY, starts=""))
    by.fence("frozen")
    by.drain("frozen")
    by.leave()
    frozen.rejoin("frozen again")
    assert all_done(frozen).census.incomplete == 1
    assert all_done(HandWorker(live, "later", OWN)).status is Status.FINISHED


def test_the_mark_that_a_start_must_run_again_is_kept(live: LiveFrontier) -> None:
    """The mark stays after another start() with the same arguments is interrupted."""
    early = HandWorker(live, "early", ARGS)
    early.exchange(seeding=1)
    broken(live, "leave", seeding=4)
    broken(live, "killed")
    assert all_done(early).census.incomplete == 1


def test_a_completed_start_stays_complete_if_its_worker_dies(live: LiveFrontier) -> None:
    """If a worker dies or leaves after its start() is complete, no start() counts as incomplete."""
    worker = HandWorker(live, "worker", ARGS)
    worker.exchange(seeding=0)
    worker.fence("worker", gone=True)
    worker.drain("worker")
    assert live.state()["starts"] == {"args": True}


@pytest.mark.parametrize("how", ["killed", "leave"])
def test_only_a_later_start_replaces_one_that_must_run_again(live: LiveFrontier, how: str) -> None:
    """A roll-back lost requests of the start(), which an earlier complete start() cannot replace."""
    complete = HandWorker(live, "complete", ARGS)
    complete.exchange(put(9))
    broken(live, how, seeding=4)
    assert all_done(complete).census.incomplete == 1
    later = HandWorker(live, "later", ARGS)
    assert all_done(later).status is Status.FINISHED


def test_a_rejoin_reports_that_start_must_run_again_even_if_the_worker_then_dies(
    live: LiveFrontier,
) -> None:
    """Redis was rolled back too far. The worker reports this by its rejoin (as level 4), and then dies."""
    complete = HandWorker(live, "complete", ARGS)
    complete.exchange(put(9))
    worker = HandWorker(live, "worker", ARGS)
    worker.exchange()
    worker.rejoin("again", seeding=4)
    complete.reclaim("again")
    assert all_done(complete).census.incomplete == 1


def test_seen_kept_for_a_retry_belongs_to_the_run_that_a_start_opens_again(live: LiveFrontier) -> None:
    """`seen` was kept for a late worker. Now it belongs to an open run again, as after a new put."""
    frozen, other = HandWorker(live, "frozen", ARGS), HandWorker(live, "other", ARGS)
    other.exchange(put(1, admission=Admission.SEEN))
    other.take(1)
    other.fence("frozen")
    other.drain("frozen")
    other.exchange(ack(1))
    other.leave()
    assert live.redis.hget(live.key("meta"), "seen_for") == b"retry"
    assert frozen.rejoin("back", seeding=4).status is Status.OK
    assert live.redis.hmget(live.key("meta"), "phase", "seen_for") == [b"open", None]


def test_a_dead_worker_without_a_record_counts_as_an_interrupted_start(live: LiveFrontier) -> None:
    """The record was deleted or evicted. The run stays open until a later start() is complete."""
    lost = HandWorker(live, "lost", OTHER)
    lost.exchange(put(1), seeding=1)
    worker = HandWorker(live, "worker", ARGS)
    live.redis.delete(live.key("worker:lost"))
    assert live.call("fence", "lost", worker.epoch, worker.run, True) == ("OK", "?")
    worker.drain("lost")
    assert all_done(worker).census.incomplete == 1
    later = HandWorker(live, "later", ARGS)
    assert all_done(later).status is Status.FINISHED
