"""A retry moves failed requests and dead letters back to their places, each of them once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.frontier import Retried, peek, retry
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.admin.retry import _batches, retry_records
from scrapy_dq.frontier.model import Admission, Census, FrontierRefused, Status
from scrapy_dq.frontier.moves import Move
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    bury,
    entry_id,
    fail,
    put,
    release,
)

pytestmark = pytest.mark.usefixtures("sound")
A = b"a"
END: dict[str, Callable[[int], Move]] = {"failed": fail, "dead": bury}


def look(live: LiveFrontier) -> Overview:
    return peek(live.redis, live.crawl)


def retry_all(live: LiveFrontier) -> Retried:
    """Retry all kept records."""
    everything: Callable[[Any], bool] = lambda record: True  # noqa: E731
    return retry(live.redis, live.crawl, look(live), failed=everything, dead=everything)


def test_quiet_workers_are_woken(live: LiveFrontier, worker: HandWorker) -> None:
    """A retry wakes workers without work, but only if it moves a request."""
    worker.exchange(put(1), want=1)
    worker.exchange(fail(1))
    assert retry_all(live).failed == 1
    assert live.count("words") == 1
    assert retry_all(live).failed == 0
    assert live.count("words") == 1


def test_a_request_that_fails_again_during_the_retry_is_not_moved_again(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """If it were moved again, a page that fails at once would keep the command busy without an end."""
    worker.exchange(put(1), want=1)
    worker.exchange(fail(1))
    rounds = 0

    def crawl_meanwhile(count: int) -> None:
        nonlocal rounds
        rounds += 1
        assert rounds < 10
        time.sleep(0.002)  # times of failures are kept in milliseconds
        for n in worker.take(1):
            worker.exchange(fail(n))

    found = retry(live.redis, live.crawl, look(live), failed=lambda record: True, moved=crawl_meanwhile)
    assert found == Retried(failed=1)
    assert look(live).census.failed == 1


def test_a_retry_moves_all_of_very_many_records(live: LiveFrontier, worker: HandWorker) -> None:
    """Each call takes only some of the records. New failures between the calls hide no record."""
    live.frontier.keep_failed = 1000
    for begin in range(0, 1000, 250):
        worker.exchange(*(put(n) for n in range(begin, begin + 250)), want=250)
        worker.exchange(*(fail(n) if n % 2 else bury(n) for n in range(begin, begin + 250)))
    more = iter(range(5000, 6000))

    def fail_meanwhile(count: int) -> None:
        n = next(more)
        worker.exchange(put(n, 9), want=1)
        worker.exchange(*(release(int(i)) for i in worker.held - {entry_id(n)}))
        if entry_id(n) in worker.held:
            worker.exchange(fail(n))

    odd: Callable[[Any], bool] = lambda record: int(record.entry_id) % 4 == 1  # noqa: E731
    chosen = retry(live.redis, live.crawl, look(live), failed=odd, moved=fail_meanwhile)
    assert chosen.failed == 250
    assert retry(live.redis, live.crawl, look(live), dead=lambda record: True).dead == 500


def test_a_record_is_found_although_its_position_has_changed(live: LiveFrontier, worker: HandWorker) -> None:
    """After the read, requests failed and the list was trimmed. So the script must search for the record."""
    worker.exchange(*(put(n) for n in range(8)), want=8)
    worker.exchange(*(fail(n) for n in range(5)))
    records = live.redis.lrange(live.key("failed"), 0, -1)
    worker.exchange(fail(5), fail(6))
    kept = live.redis.llen(live.key("failed"))
    moved = retry_records(
        live.redis, live.frontier.name, look(live), [(records[i], i - kept) for i in (0, 1, 4)]
    )
    assert moved == (2, 0)  # the last record was trimmed
    assert [int(record[0]) for record in live.state()["failed"]] == [6, 5, 2]
    assert worker.take(9) == [3, 4]


# Repeats and untrusted data


@pytest.mark.parametrize("how", END)
def test_a_repeated_retry_changes_nothing(live: LiveFrontier, worker: HandWorker, how: str) -> None:
    """After a lost reply, the retry is repeated. It finds no record, so it does not move the entry again."""
    worker.exchange(put(1), want=1)
    worker.exchange(END[how](1))
    records = [(record, -1) for record in live.redis.lrange(live.key("failed"), 0, -1)]
    once = {"failed": records} if how == "failed" else {"dead": [entry_id(1)]}
    assert sum(retry_records(live.redis, live.frontier.name, look(live), **once)) == 1
    for then in (lambda: None, lambda: worker.take(1), lambda: worker.exchange(ack(1), put(2))):
        then()
        before = live.state()
        assert retry_records(live.redis, live.frontier.name, look(live), **once) == (0, 0)
        assert live.state() == before


def test_a_batch_is_bounded_in_bytes(live: LiveFrontier, worker: HandWorker) -> None:
    """A call takes at most 4 MiB of records, or one larger record."""
    assert [len(batch) for batch in _batches([3, 3, 2, 1, 9, 1], lambda mib: mib * 2**20)] == [1, 1, 2, 1, 1]
    assert [len(batch) for batch in _batches(range(250), lambda _: 1)] == [100, 100, 50]


def test_a_new_crawl_or_run_under_the_same_name_is_left_alone(live: LiveFrontier, worker: HandWorker) -> None:
    """After the command's read, the crawl was deleted and begun again, or its next run began."""
    worker.exchange(put(1), want=1)
    worker.exchange(bury(1))
    for epoch, run in (("other", 0), (worker.epoch, 1), (worker.epoch, -1)):
        before = live.dump()
        with pytest.raises(FrontierRefused, match="changed since this command read it"):
            retry_records(
                live.redis, live.frontier.name, Overview("open", epoch, run, Census(), []), (), [entry_id(1)]
            )
        assert live.dump() == before


# The end of a run


def finished_run(live: LiveFrontier) -> HandWorker:
    """Return the worker of a finished run with one failed request and one dead letter."""
    worker = HandWorker(live, "worker")
    worker.exchange(put(1), put(2), want=2)
    assert worker.exchange(fail(1), bury(2)).status is Status.FINISHED
    return worker


@pytest.mark.parametrize("keep_seen", [False, True])
def test_a_finished_run_whose_workers_have_left_is_resumed(live: LiveFrontier, keep_seen: bool) -> None:
    """The next worker continues the run, and requests that the run had admitted are duplicates."""
    worker = finished_run(live)
    known = [put(n, admission=by) for n, by in enumerate(Admission, 3)]
    worker.exchange(*known, want=9)
    assert worker.exchange(*(ack(n) for n in (3, 4, 5))).status is Status.FINISHED
    worker.leave(keep_seen)
    assert retry_all(live) == Retried(1, 1)
    again = HandWorker(live, "again")
    assert (again.joined.resumed, again.run) == (True, 0)
    assert again.exchange(*known).dropped == (0, 1, 2)
    assert again.take(9) == [1, 2]
    assert again.exchange(ack(1), ack(2)).status is Status.FINISHED
    again.leave(keep_seen)
    assert live.key_names() == ({"meta", "seen"} if keep_seen else {"meta"})


def test_a_late_copy_of_a_join_begins_no_run(live: LiveFrontier) -> None:
    """The worker crawled alone and has left. A run begun by the copy would delete records for a retry."""
    worker = HandWorker(live, "worker", replace(IDENTITY, starts="{}"))
    worker.exchange(put(1), want=1, seeding=1)
    worker.exchange(fail(1), seeding=0)
    worker.leave()
    late = HandWorker(live, "worker", replace(IDENTITY, starts="{}"))
    assert late.joined.status is Status.FINISHED
    assert retry_all(live) == Retried(1)


@pytest.mark.parametrize(
    ("persisted", "persists"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_fingerprints_kept_for_a_retry_do_not_count_in_the_next_run(
    live: LiveFrontier, persisted: bool, persists: bool
) -> None:
    """The next run deletes them with the failed records, unless both runs have SCHEDULER_PERSIST."""
    worker = finished_run(live)
    seen = put(3, admission=Admission.SEEN)
    worker.exchange(seen, want=1)
    worker.exchange(ack(3))
    worker.leave(persisted)
    assert live.key_names() == {"meta", "failed", "dead", "seen", "admitted"}
    later = HandWorker(live, "later", replace(IDENTITY, keep_seen=persists))
    assert later.run == 1
    assert later.exchange(seen).dropped == ((0,) if persisted and persists else ())


def test_another_fingerprinter_can_begin_the_next_run(live: LiveFrontier) -> None:
    """The fingerprints of the last run were kept only for a retry."""
    worker = finished_run(live)
    worker.exchange(put(3, admission=Admission.SEEN), want=1)
    worker.exchange(ack(3))
    worker.leave()
    later = HandWorker(live, "later", replace(IDENTITY, fingerprinter="another"))
    assert later.joined.census.seen == 0


def test_a_child_that_is_retried_with_its_parent_waits_once(live: LiveFrontier) -> None:
    """The retried parent yields the child again under the same id, even after the end of a run."""
    worker = HandWorker(live, "worker")
    worker.exchange(put(1), want=1)
    worker.exchange(put(2), fail(1), want=1)
    assert worker.exchange(bury(2)).status is Status.FINISHED
    worker.leave()
    assert retry_all(live) == Retried(1, 1)
    again = HandWorker(live, "again")
    assert again.take(1) == [1]
    assert again.exchange(put(2), ack(1), want=9).dropped == (0,)
    assert again.exchange(ack(2)).census.in_flight == 0


def test_a_missing_crawl_is_not_created(live: LiveFrontier) -> None:
    """The retry of a missing crawl is refused."""
    with pytest.raises(FrontierRefused, match="changed since this command read it"):
        retry_records(live.redis, live.frontier.name, look(live), (), [entry_id(1)])
    assert live.dump() == {}
