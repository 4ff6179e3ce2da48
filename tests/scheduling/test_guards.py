"""Guards between Scrapy and the frontier: a page and its children, and the time that closing may take."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock, call

import pytest
import scrapy
from scrapy.utils.request import RequestFingerprinter

from scrapy_dq.scheduling.admission import Admissions
from scrapy_dq.scheduling.session import Session
from scrapy_dq.settings import Config
from support.given import Tree
from support.tree_spider import spider_of
from support.waiting import wait_until

# Four children of one URL. The first time the callback breaks off after two; then it yields them the other
# way round. With TWO_PARENTS, two pages have the very same children: nothing in them tells whose they are.
CHILDREN = spider_of("""
    async def start(self):
        for name in "ab" if self.settings.getbool("TWO_PARENTS") else "a":
            yield scrapy.Request(self.start_urls[0] + f"/{name}?s=0")

    def parse(self, response):
        numbers = [1, 2, 3, 4]
        first = self.settings.getbool("BREAK")
        for number in numbers[:2] if first else reversed(numbers):
            yield scrapy.Request(
                self.start_urls[0] + "/same?s=0", self.child, dont_filter=True, cb_kwargs={"number": number}
            )
        if first:
            raise CloseSpider("enough")

    def child(self, response, number):
        self.record("done", f"child-{number}")
""")
CHILD_NAMES = [f"child-{number}" for number in (1, 2, 3, 4)]


def test_a_parent_that_runs_again_may_yield_its_children_in_another_order(begin: Tree) -> None:
    """They are known by what they are, not by their turn: each is crawled once."""
    _, project = begin(CHILDREN)
    first = project.run_worker(settings={"BREAK": 1}, timeout_s=20)
    assert first.close_reason == "enough"
    second = project.run_to_end(timeout_s=20)
    assert project.count() == dict.fromkeys(CHILD_NAMES, 1)
    assert second.stats["dq/duplicates"] == 2 + 1  # the children of the first time; the page, from start()


def test_equal_children_of_two_parents_stay_separate(begin: Tree) -> None:
    """As under Scrapy's own scheduler, `dont_filter` means that each is crawled."""
    settings = {"TWO_PARENTS": 1, "REFERER_ENABLED": False}
    _, project = begin(CHILDREN, settings=settings)
    assert project.run_worker(timeout_s=20).close_reason == "finished"
    assert project.count() == dict.fromkeys(CHILD_NAMES, 2)


def test_a_redirect_is_the_same_however_long_its_download_took() -> None:
    """A page that two workers download, one of them declared dead, becomes one redirect: it has one id."""
    ids = []
    for latency in (b"0.1", b"0.2"):
        admissions = Admissions(RequestFingerprinter().fingerprint)
        redirect = scrapy.Request("http://localhost/target", dont_filter=True)
        payload = b"payload with a latency of " + latency
        ids.append(admissions.of(redirect, None, b"p" * 12, payload, seed=False, continues=True))
    assert ids[0] == ids[1]


@pytest.mark.parametrize("start", [False, True])
def test_a_request_is_the_same_whenever_it_is_due(start: bool) -> None:
    """A page that polls itself after a delay with jitter, and is killed at it, must not do so twice then."""

    def token(delay: float) -> bytes:
        admissions = Admissions(RequestFingerprinter().fingerprint)
        meta = {"dq_delay": delay, "dq_not_before": 1e9 + delay}
        request = scrapy.Request("http://localhost/", dont_filter=True, meta=meta)
        return admissions.of(request, None, b"p" * 12, b"payload", seed=start, continues=False)[2]

    assert token(60) == token(61.5)


def test_closing_has_what_is_left_of_the_grace() -> None:
    """The grace began with the signal, not once the pages at work were through; one try is always made."""

    async def time_left(since_signal_s: float | None) -> float:
        session = Session.__new__(Session)
        session.config = Config("crawl", shutdown_grace_s=30.0, redis_params={"socket_timeout": 5})
        loop = asyncio.get_running_loop()
        session._grace = since_signal_s and loop.call_later(30.0 - since_signal_s, lambda: None)
        return session._time_left()

    left = [asyncio.run(time_left(passed)) for passed in (None, 10.0, 29.0, 60.0)]
    assert left == [30.0, pytest.approx(20.0, abs=1.0), 5.0, 5.0]


@pytest.mark.parametrize(
    ("parentless", "shares_seen", "closes"), [(False, True, 0), (True, True, 1), (False, False, 1)]
)
def test_after_a_lost_outbox_nothing_counts_as_seen_and_the_worker_ends_if_it_must(
    parentless: bool, shares_seen: bool, closes: int
) -> None:
    """What the pages that run again yield must be sent again; start() runs again in the next crawl only.

    A dupefilter of the project's own would drop what was lost.
    """
    session = Session.__new__(Session)
    session.admissions = Admissions(lambda request: b"")
    session.admissions.remember(b"fingerprint", 0)
    session.hooks, session._own_filter = Mock(), None if shares_seen else Mock()
    session.outbox_lost(parentless)
    assert session.admissions.sent_as(b"fingerprint") is None
    assert session.hooks.close_spider.call_args_list == [call("outbox_lost")] * closes


TOO_LATE = spider_of("""
    RECEIVERS = {"closed_now": signals.spider_closed}

    def closed_now(self):
        for meta in ({}, {"dq_local": True}):
            late = scrapy.Request(self.start_urls[0] + "/late", meta=meta)
            self.record("accepted", str(self.crawler.engine._slot.scheduler.enqueue_request(late)))
""")


def test_what_comes_after_a_worker_has_left_is_dropped_with_a_warning(begin: Tree) -> None:
    """Of `spider_closed`, say: nobody would store it, or crawl it."""
    _, project = begin(TOO_LATE)
    worker = project.run_to_end(timeout_s=20)
    assert project.count("accepted") == {"False": 2}
    assert worker.text.count("is dropped: this worker has left the crawl") == 1


# The child is not yielded: nothing tells who its parent is.
HANDED_TO_THE_ENGINE = spider_of("""
    async def parse(self, response):
        self.crawler.engine.crawl(response.follow("/child?s=0", self.child, meta={"dq_local": True}))
        self.record("page", "page")

    async def child(self, response):
        self.record("child", "child")
        if self.settings.getbool("HOLD"):
            yield response.follow("/later?s=0", self.later)
            await asyncio.sleep(60)

    def later(self, response):
        self.record("later", "later")
""")


def test_a_page_waits_for_a_local_request_that_may_be_its_child(tree: Tree) -> None:
    """Whose child it is is not known, so every page at work waits: killed, it runs again."""
    _, project = tree(spider=HANDED_TO_THE_ENGINE, pages=1)
    first = project.start_worker(settings={"HOLD": 1})
    wait_until(lambda: project.count("later"), "there was an exchange since the page's callback ended", 20)
    first.kill()
    second = project.run_to_end(timeout_s=30)
    assert "joined run 0 " in second.text  # not a new run: there the page would be crawled anyway
    assert (project.count("page"), project.count("child")) == ({"page": 2}, {"child": 2})
