"""A start() that was interrupted keeps the run open, until one with the same arguments is complete."""

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
    """Crawl what there is; return the answer to the exchange that finds nothing left."""
    worker.exchange(*(ack(n) for n in worker.take(9)))
    return worker.exchange()


@pytest.mark.parametrize("how", ["killed", "presumed dead", "leave"])
@pytest.mark.parametrize("seeding", [1, 2])
def test_others_do_not_finish_the_run(live: LiveFrontier, how: str, seeding: int) -> None:
    """All is done, and nobody seeds: but a start() is missing, and that is reported."""
    broken(live, how, seeding=seeding)
    worker = HandWorker(live, "worker", OTHER)
    receipt = all_done(worker)
    assert (receipt.status, receipt.census.incomplete, receipt.census.empty) == (Status.OK, 1, True)
    assert live.call("census").incomplete == 1
    worker.leave()
    assert live.state()["phase"] == "open"


def test_without_seed_once_only_a_later_one_makes_up_for_it(live: LiveFrontier) -> None:
    """DQ_SEED_ONCE = False: what was complete, or under way, yielded its own requests."""
    early = HandWorker(live, "early", OWN)
    complete = HandWorker(live, "complete", OWN)
    complete.exchange()
    broken(live, "killed", OWN)
    # Redis's clock does not tell who began later: it may have been set back.
    live.redis.hset(live.key("worker:early"), "since", 2**50)
    assert all_done(early).census.incomplete == 1
    later = HandWorker(live, "later", OWN)
    live.redis.hset(live.key("worker:later"), "since", 1)
    complete.exchange()
    assert all_done(later).status is Status.FINISHED


@pytest.mark.parametrize("drained", [False, True])
def test_one_that_was_declared_dead_continues_with_its_own(live: LiveFrontier, drained: bool) -> None:
    """DQ_SEED_ONCE = False: it is back, and completes the start() that counted as interrupted."""
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


def test_one_whose_record_is_gone_did_not_begin_later(live: LiveFrontier) -> None:
    """DQ_SEED_ONCE = False: it was fenced and drained, and is back after another one was interrupted."""
    worker = HandWorker(live, "worker", OWN)
    by = HandWorker(live, "by", replace(IDENTITY, starts=""))
    by.fence("worker", gone=True)
    by.drain("worker")
    by.leave()
    broken(live, "killed", OWN)
    worker.rejoin("worker again")
    assert all_done(worker).census.incomplete == 1


def test_one_that_continues_does_not_make_up_for_another(live: LiveFrontier) -> None:
    """DQ_SEED_ONCE = False: two were interrupted, and one of them is back."""
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


def test_that_a_start_has_to_run_again_is_not_forgotten(live: LiveFrontier) -> None:
    """Another one with the same arguments is interrupted after that."""
    early = HandWorker(live, "early", ARGS)
    early.exchange(seeding=1)
    broken(live, "leave", seeding=4)
    broken(live, "killed")
    assert all_done(early).census.incomplete == 1


def test_a_complete_start_is_not_broken_off_any_more(live: LiveFrontier) -> None:
    """A worker that dies, or leaves, after its start() is complete leaves nothing incomplete."""
    worker = HandWorker(live, "worker", ARGS)
    worker.exchange(seeding=0)
    worker.fence("worker", gone=True)
    worker.drain("worker")
    assert live.state()["starts"] == {"args": True}


@pytest.mark.parametrize("how", ["killed", "leave"])
def test_a_start_that_has_to_run_again_is_done_by_a_later_one_alone(live: LiveFrontier, how: str) -> None:
    """What it had stored is gone (a roll-back): that another one was complete before does not help."""
    complete = HandWorker(live, "complete", ARGS)
    complete.exchange(put(9))
    broken(live, how, seeding=4)
    assert all_done(complete).census.incomplete == 1
    later = HandWorker(live, "later", ARGS)
    assert all_done(later).status is Status.FINISHED


def test_one_that_dies_after_its_rejoin_has_reported_that_its_start_has_to_run_again(
    live: LiveFrontier,
) -> None:
    """Redis was rolled back further than its log: one rejoin shows this, and the next reports it."""
    complete = HandWorker(live, "complete", ARGS)
    complete.exchange(put(9))
    worker = HandWorker(live, "worker", ARGS)
    worker.exchange()
    worker.rejoin("again", seeding=4)
    complete.reclaim("again")
    assert all_done(complete).census.incomplete == 1


def test_a_finished_run_that_a_start_opens_again_has_its_own_memory(live: LiveFrontier) -> None:
    """It was kept for a worker that comes back; now it is that of an open run, as after a put that is new."""
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


def test_a_worker_that_dies_without_a_record_may_have_been_in_its_start(live: LiveFrontier) -> None:
    """Its record was deleted, or evicted: the run is open until one that starts later is complete."""
    lost = HandWorker(live, "lost", OTHER)
    lost.exchange(put(1), seeding=1)
    worker = HandWorker(live, "worker", ARGS)
    live.redis.delete(live.key("worker:lost"))
    assert live.call("fence", "lost", worker.epoch, worker.run, True) == ("OK", "?")
    worker.drain("lost")
    assert all_done(worker).census.incomplete == 1
    later = HandWorker(live, "later", ARGS)
    assert all_done(later).status is Status.FINISHED
