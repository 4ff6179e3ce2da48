"""Programs without a spider join a crawl. Only workers with a spider define the crawl's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scrapy_dq.frontier.model import Admission, FrontierRefused, Order, Seen, Terms
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.replay_log import ReplayLog
from support.live_frontier import IDENTITY, PROGRAM, SLOW, HandWorker, LiveFrontier, ack, put

NAMED = replace(IDENTITY, spider_args='{"a": 1}', run_name="job", partition_by="slot", keep_seen=True)
OpenFrontier = Callable[..., LiveFrontier]


def meta(live: LiveFrontier, *fields: str) -> list[str]:
    return [(live.redis.hget(live.key("meta"), field) or b"").decode() for field in fields]


def test_the_first_worker_with_a_spider_defines_the_crawl(open_frontier: OpenFrontier) -> None:
    """A program feeds a crawl that does not exist yet. A spider that joins later meets no conflict."""
    live = open_frontier(Order.LIFO)
    program = HandWorker(live, "program", PROGRAM)
    program.exchange(put(1), seeding=3)
    assert meta(live, "order", "spider", "fingerprinter", "run_name") == ["", "", "", ""]
    spider = HandWorker(live, "spider", replace(NAMED, limits=SLOW.limits, seen_ttl_s=5.0))
    assert (spider.joined.resumed, spider.joined.limits_before) == (True, None)
    assert spider.joined.spider_args == NAMED.spider_args
    assert meta(live, "order", "spider", "run_name", "partition_by", "limiting") == [
        "lifo", "spider", "job", "slot", "100000 0",
    ]  # fmt: skip
    assert float(meta(live, "seen_since")[0]) > 0
    with pytest.raises(FrontierRefused, match="spider class"):
        HandWorker(live, "other", replace(NAMED, spider="another"))


def test_a_program_changes_nothing_of_a_crawl_with_a_spider(open_frontier: OpenFrontier) -> None:
    """The program joins with any order and limits, and all stored settings stay."""
    live = open_frontier(Order.LIFO)
    HandWorker(live, "spider", replace(SLOW, run_name="job", keep_seen=True))
    before = live.redis.hgetall(live.key("meta"))
    assert HandWorker(open_frontier(Order.FIFO), "program", PROGRAM).joined.limits_before is None
    after = live.redis.hgetall(live.key("meta"))
    assert {field for field in before if before[field] != after[field]} <= {b"counts", b"events"}


def test_a_crawl_that_programs_began_without_an_order_is_served_oldest_first(
    open_frontier: OpenFrontier,
) -> None:
    """A later program that gives an order is accepted only with `fifo`."""
    HandWorker(open_frontier(Order.FIFO), "program", PROGRAM)
    with pytest.raises(FrontierRefused, match="'fifo', this worker has 'lifo'"):
        HandWorker(open_frontier(Order.LIFO), "other", replace(PROGRAM, order_given=True))
    HandWorker(open_frontier(Order.FIFO), "same", replace(PROGRAM, order_given=True))


def test_a_given_order_must_equal_the_stored_one(open_frontier: OpenFrontier) -> None:
    """A program may set the order of a new crawl. Later workers with another order are refused."""
    HandWorker(open_frontier(Order.LIFO), "program", replace(PROGRAM, order_given=True))
    with pytest.raises(FrontierRefused, match="DQ_ORDER"):
        HandWorker(open_frontier(Order.FIFO), "other", replace(PROGRAM, order_given=True))
    with pytest.raises(FrontierRefused, match="DQ_ORDER"):
        HandWorker(open_frontier(Order.FIFO), "spider")


@pytest.mark.parametrize("keep_seen", [False, True])
def test_seen_is_kept_as_the_spider_requested(live: LiveFrontier, keep_seen: bool) -> None:
    """SCHEDULER_PERSIST applies even if a program is the last to leave a run, or begins the next run."""
    spider = HandWorker(live, "spider", replace(IDENTITY, keep_seen=keep_seen))
    program = HandWorker(live, "program", PROGRAM)
    spider.exchange(put(1, admission=Admission.SEEN), want=1)
    spider.exchange(ack(1))
    spider.leave(keep_seen)
    program.exchange()
    live.call("leave", program.worker_id, program.epoch, program.run, None)
    assert ("seen" in live.key_names()) == keep_seen
    again = HandWorker(live, "again", PROGRAM)
    assert again.run == program.run + 1
    assert ("seen" in live.key_names()) == keep_seen


def test_tokens_that_no_worker_can_repeat_are_deleted(live: LiveFrontier, worker: HandWorker) -> None:
    """Otherwise a queue that is used for years would keep 12 bytes for each item that was ever put."""
    worker.exchange(put(1), put(2), put(3), want=9)
    gone = b"".join(b"%012d" % n for n in (1, 3, 4))
    worker.exchange(ack(1), terms=Terms(forget=gone))
    assert live.redis.smembers(live.key("admitted")) == {b"%012d" % 2}
    assert worker.exchange(put(2), put(3)).dropped == (0,)


def test_the_log_lists_the_tokens_that_can_be_deleted() -> None:
    """A token can be deleted when neither the log nor another worker can repeat its put.

    A put in the log has no bound (`most`) any more, because Redis must not refuse the repeat of a stored put.
    """
    log = ReplayLog(10.0)
    for n, once in enumerate((True, False, True)):
        move = Put(b"%012d" % n, Admission.ID, b"", 0, False, b"", most=3, once=once)
        log.add(move, float(n), n + 1)
        assert move.most == 0
    log.retire(11.0)
    assert list(log.forgettable) == [b"%012d" % 0]
    log.retire_all()
    assert list(log.forgettable) == [b"%012d" % 0, b"%012d" % 2]


@pytest.mark.parametrize("seen", list(Seen))
def test_a_program_that_begins_the_next_run_leaves_the_kept_fingerprints_alone(
    open_frontier: OpenFrontier, seen: Seen
) -> None:
    """The program knows neither the fingerprinter nor the kind of seen. So the stored values are kept."""
    live = open_frontier(Order.FIFO, seen=seen)
    kept = replace(IDENTITY, keep_seen=True, seen_ttl_s=1000.0 if seen is Seen.EXPIRING else 0.0)
    spider = HandWorker(live, "spider", kept)
    spider.exchange(put(1, admission=Admission.SEEN), want=1)
    spider.exchange(ack(1))
    spider.leave(keep_seen=True)
    program = HandWorker(live, "program", PROGRAM)
    assert program.run == spider.run + 1
    program.exchange(put(7), seeding=3)
    with pytest.raises(FrontierRefused, match="FINGERPRINTER"):
        HandWorker(live, "wrong", replace(kept, fingerprinter="another"))
    again = HandWorker(live, "again", kept)
    assert again.exchange(put(8, admission=Admission.SEEN, token=put(1).token)).dropped == (0,)
