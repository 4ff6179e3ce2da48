"""Details between Scrapy and the frontier: pages and their children, tokens, and the time for closing."""

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

# A page has four children with one URL. The first worker's callback stops after two children. The second
# worker's callback yields all four in reverse order. With TWO_PARENTS, two pages have equal children, which
# do not name their parent.
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


def test_a_page_that_runs_again_may_yield_its_requests_in_another_order(begin: Tree) -> None:
    """A request's content identifies it, not the order of the requests. So each request is crawled once."""
    _, project = begin(CHILDREN)
    first = project.run_worker(settings={"BREAK": 1}, timeout_s=20)
    assert first.close_reason == "enough"
    second = project.run_to_end(timeout_s=20)
    assert project.count() == dict.fromkeys(CHILD_NAMES, 1)
    assert second.stats["dq/duplicates"] == 2 + 1  # the first run's two children, and the page from start()


def test_equal_children_of_two_parents_stay_separate(begin: Tree) -> None:
    """`dont_filter` means that each child is crawled, as with Scrapy's own scheduler."""
    settings = {"TWO_PARENTS": 1, "REFERER_ENABLED": False}
    _, project = begin(CHILDREN, settings=settings)
    assert project.run_worker(timeout_s=20).close_reason == "finished"
    assert project.count() == dict.fromkeys(CHILD_NAMES, 2)


def test_the_id_of_a_redirect_does_not_depend_on_its_latency() -> None:
    """If a worker is declared dead, two workers may download a page. Both redirects must have the same id."""
    ids = []
    for latency in (b"0.1", b"0.2"):
        admissions = Admissions(RequestFingerprinter().fingerprint)
        redirect = scrapy.Request("http://localhost/target", dont_filter=True)
        payload = b"payload with a latency of " + latency
        ids.append(admissions.of(redirect, None, b"p" * 12, payload, seed=False, continues=True))
    assert ids[0] == ids[1]


@pytest.mark.parametrize("start", [False, True])
def test_the_token_of_a_request_does_not_depend_on_its_delay(start: bool) -> None:
    """A page may request itself after a random delay. If the page runs twice, only one request is stored."""

    def token(delay: float) -> bytes:
        admissions = Admissions(RequestFingerprinter().fingerprint)
        meta = {"dq_delay": delay, "dq_not_before": 1e9 + delay}
        request = scrapy.Request("http://localhost/", dont_filter=True, meta=meta)
        return admissions.of(request, None, b"p" * 12, b"payload", seed=start, continues=False)[2]

    assert token(60) == token(61.5)


def test_closing_takes_no_longer_than_the_rest_of_the_grace() -> None:
    """The grace begins with the signal, not when the last page ends. There is always time to try once."""

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
def test_after_a_lost_outbox_a_worker_forgets_its_requests_and_may_close(
    parentless: bool, shares_seen: bool, closes: int
) -> None:
    """Pages that run again must be able to put their requests again, so the worker forgets what it has sent.

    It closes if requests of start() are lost, because only the next worker runs start() again. It also closes
    with a project's own dupefilter, because this filter would drop the lost requests.
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


def test_requests_after_a_worker_has_left_are_dropped_with_a_warning(begin: Tree) -> None:
    """For example, a `spider_closed` handler may add a request. No worker would store or crawl it."""
    _, project = begin(TOO_LATE)
    worker = project.run_to_end(timeout_s=20)
    assert project.count("accepted") == {"False": 2}
    assert worker.text.count("is dropped: this worker has left the crawl") == 1


# The callback hands the child to the engine and does not yield it. So the child's parent is unknown.
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
    """The child's parent is unknown. So all pages in progress wait for it, and run again after a kill."""
    _, project = tree(spider=HANDED_TO_THE_ENGINE, pages=1)
    first = project.start_worker(settings={"HOLD": 1})
    wait_until(lambda: project.count("later"), "the page's callback has ended before an exchange", 20)
    first.kill()
    second = project.run_to_end(timeout_s=30)
    assert "joined run 0 " in second.text  # a new run would crawl the page in any case
    assert (project.count("page"), project.count("child")) == ({"page": 2}, {"child": 2})
