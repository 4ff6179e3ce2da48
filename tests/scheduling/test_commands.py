"""A session obeys the commands for all workers: it forgets fingerprints, closes the spider and pauses."""

from __future__ import annotations

import time
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.model import Commands, Identity
from scrapy_dq.scheduling.session import Session
from support.given import MakeProject
from support.live_frontier import HandWorker, LiveFrontier
from support.tree_spider import spider_of


@pytest.fixture
def session() -> Session:
    """Return a session with doubles that record its calls."""
    session = Session.__new__(Session)
    session.config = SimpleNamespace(crawl="books")  # type: ignore[assignment]
    session.hooks = Mock()
    session.admissions = Mock()
    return session


@pytest.mark.parametrize(
    ("before", "words", "forgets", "closes"),
    [
        (Commands(), Commands(1, forgets=1), 1, 0),
        (Commands(), Commands(1, stops=1), 0, 1),
        (Commands(3, stops=2, forgets=1), Commands(4, stops=3, forgets=1), 0, 1),
        (Commands(3, stops=2, forgets=1), Commands(1, stops=1), 1, 0),
        (Commands(1, limit_changes=1), Commands(2, limit_changes=2), 0, 0),
    ],
    ids=["forget", "stop", "a second stop", "a Redis that was rolled back", "other limits"],
)
def test_a_session_obeys_forget_and_stop_commands(
    session: Session, before: Commands, words: Commands, forgets: int, closes: int
) -> None:
    """Commands from before the join have no effect. Lower counters, after a roll-back, stop no worker."""
    session.commanded(before, words)
    assert session.admissions.forget_sent.call_count == forgets  # type: ignore[attr-defined]
    assert session.hooks.close_spider.call_count == closes  # type: ignore[attr-defined]
    if closes:
        session.hooks.close_spider.assert_called_with("stopped")  # type: ignore[attr-defined]


# The requests of start() cannot be stored, so each worker crawls its own requests.
LOCAL = spider_of("""
    async def start(self):
        for number in range(3):
            yield scrapy.Request(f"data:,{number}", lambda response: self.record("done", response.text))
""")


def test_local_requests_also_wait_during_a_pause(redis_url: str, make_project: MakeProject) -> None:
    """During the pause, the worker sends no local request. Afterwards it sends all of them."""
    project = make_project([], redis_url=redis_url, spider=LOCAL, settings={"DQ_PARTITION_BY": "none"})
    with connect_url(redis_url) as client, closing(LiveFrontier(redis_url, project.name)) as live:
        first = HandWorker(live, "first", Identity("", "", ""))
        first.exchange(seeding=1)
        steer(client, project.name, Command.PAUSE)
        worker = project.start_worker()
        worker.wait_for_log("paused; no requests are sent")
        worker.wait_for_log("each worker crawls this start request")
        time.sleep(0.7)
        assert project.count("done") == {}
        first.leave()
        steer(client, project.name, Command.RESUME)
        assert project.wait() == ["finished"]
    assert project.count("done") == {"0": 1, "1": 1, "2": 1}
