"""A worker's counts for the history of its crawl, and their reports with the heartbeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scrapy_dq.frontier import peek
from scrapy_dq.frontier.answers import Figures, Member
from scrapy_dq.frontier.worker.counting import NOTED_S, REPORT_EVERY_S, Counting
from scrapy_dq.frontier.worker.outage import Wait
from scrapy_dq.inspection.history import read_events
from support.redis_server import Kind, RedisServer
from worker.engine import Crawl, Engine, until


def test_a_report_of_the_new_counts_is_due_every_ten_seconds() -> None:
    """The first report is due at once; counts of a failed report stay due."""
    counting = Counting()
    first = counting.due(100.0)
    assert first is not None
    assert (first.counted, first.ended_s) == (Figures(), 0.0)
    counting.answered(0.25, 0.0)
    counting.reported(first, 100.0)
    assert counting.due(100.0 + REPORT_EVERY_S - 0.1) is None
    counting.failed()
    second = counting.due(100.0 + REPORT_EVERY_S)
    assert second is not None
    assert second.counted == Figures(1, 0.25, 1, 0.0)
    counting.answered(0.5, 0.0)
    again = counting.due(200.0)  # this report gets no answer
    assert again is not None
    assert again.counted == Figures(2, 0.75, 1, 0.0)
    counting.reported(again, 200.0)
    last = counting.due(300.0)
    assert last is not None
    assert last.counted == Figures()


def test_an_outage_that_has_ended_is_reported_at_once() -> None:
    """The report has the longest of several outages. A single lost answer does not count as an outage."""
    counting = Counting()
    first = counting.due(0.0)
    assert first is not None
    counting.reported(first, 0.0)
    counting.answered(0.1, NOTED_S - 0.1)
    assert counting.due(1.0) is None
    counting.answered(0.1, 7.0)
    counting.answered(0.1, 2.0)
    due = counting.due(1.0)
    assert due is not None
    assert (due.ended_s, due.counted.outage_s) == (7.0, 9.0 + NOTED_S - 0.1)
    counting.answered(0.1, 3.0)  # between the report and its answer
    counting.reported(due, 1.0)
    later = counting.due(1.5)
    assert later is not None
    assert (later.ended_s, later.counted.outage_s) == (3.0, 3.0)
    counting.reported(later, 1.5)
    assert counting.due(2.0) is None


def test_an_outage_is_reported_after_a_second_and_when_its_reason_changes() -> None:
    """The worker repeats the report every ten seconds until the outage ends."""
    counting = Counting()

    def reported(now: float, wait: Wait | None) -> Wait | bool | None:
        due = counting.due(now, wait)
        if due is None:
            return False
        counting.reported(due, now)
        return due.wait

    away, full = Wait(1.0, "no answer"), Wait(1.0, "full")
    assert reported(0.0, None) is None
    assert reported(1.0 + NOTED_S / 2, away) is False
    assert reported(1.0 + NOTED_S, away) == away
    assert reported(3.0, away) is False
    assert reported(4.0, full) == full
    assert reported(4.0 + REPORT_EVERY_S, full) == full
    assert reported(15.0, None) is None
    assert reported(16.0, None) is False


FULL = (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"], "Redis's memory is full")
DENIED = (["ACL", "SETUSER", "default", "-sadd"], ["ACL", "SETUSER", "default", "+sadd"], "Redis denies")


@pytest.mark.parametrize(("refuse", "allow", "says"), [FULL, DENIED], ids=["full", "denied"])
async def test_a_waiting_worker_reports_since_when_and_why(
    redis_kind: Kind, start_redis: Callable[..., RedisServer], refuse: list[str], allow: list[str], says: str
) -> None:
    """The worker's heartbeats continue, and the journal has the beginning and the end of the outage."""
    server = start_redis(redis_kind)
    with server.client() as client:
        crawl = Crawl(server.url, "crawl", size=10)

        def member() -> Member:
            (found,) = peek(client, crawl.name).members
            return found

        def kinds() -> list[str]:
            return [each.kind for each in read_events(client, crawl.name)]

        async with Engine(crawl, ttl_s=0.6) as engine:
            began = client.time()[0]
            client.execute_command(*refuse)
            engine.seed()
            await until(lambda: says in member().waits_for, "the worker reports its outage")
            waits = member()
            assert began <= waits.waits_since <= client.time()[0] - NOTED_S + 1
            await until(lambda: member().beat > waits.beat + 2, "the heartbeats continue")
            (event,) = (each for each in read_events(client, crawl.name) if each.kind == "waits")
            assert (event.count, event.about[:20]) == (1, waits.waits_for[:20])
            client.execute_command(*allow)
            await until(lambda: not member().waits_for, "the worker has an answer")
            await until(lambda: "outage" in kinds(), "the journal has the end of the outage")
            assert kinds().count("waits") == 1
