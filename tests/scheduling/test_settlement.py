"""A crawl in which requests end in every possible way: each request is settled at the right time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.given import Look, Tree
from support.project import Project
from support.tree_site import TreeSite
from support.tree_spider import spider_of
from support.waiting import free_port, wait_until

# Requests end in every possible way. The scheduler of this spider records the engine's calls in order.
ENDINGS = spider_of(
    """
    async def start(self):
        site, gone = self.start_urls[0], f"http://127.0.0.1:{CLOSED_PORT}"
        yield scrapy.Request(site + "/flaky?flaky=1", self.leaf)
        yield scrapy.Request(site + "/moved?to=/target%3Fs=0", self.leaf)
        yield scrapy.Request(site + "/raises?s=0", self.raises)
        yield scrapy.Request(site + "/raises-late?s=0", self.raises_late)
        yield scrapy.Request(site + "/again?s=0", self.again)
        yield scrapy.Request(site + "/status?status=404", self.leaf)
        yield scrapy.Request(gone + "/gone", self.leaf)
        yield scrapy.Request(gone + "/gone-with-errback", self.leaf, errback=self.failed)
        yield scrapy.Request(gone + "/gone-errback-raises", self.leaf, errback=self.fails_too)

    def leaf(self, response):
        self.record("done", urlsplit(response.url).path)

    def raises(self, response):
        raise ValueError("on purpose")

    async def raises_late(self, response):
        yield response.follow("/late-child?s=0", self.leaf)
        raise ValueError("on purpose")

    async def again(self, response):
        engine, request = self.crawler.engine, response.request
        if hasattr(engine, "download_async"):
            await engine.download_async(request)
        else:
            await maybe_deferred_to_future(engine.download(request))
        yield response.follow("/again-child?s=0", self.leaf)
        raise ValueError("on purpose")

    def failed(self, failure):
        yield {"path": "/item-of-errback"}
        yield scrapy.Request(self.start_urls[0] + "/errback-child?s=0", self.leaf)

    def fails_too(self, failure):
        raise ValueError("on purpose")


# Scrapy looks for requests every 5 s. Here it only does so when it is woken.
ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = 600

class RecordingScheduler(Scheduler):
    def __init__(self, crawler):
        super().__init__(crawler)
        RecordingEnds.record = self.record = Record(crawler)

    def enqueue_request(self, request):
        self.record("enqueued", urlsplit(request.url).path)
        return super().enqueue_request(request)

class RecordingEnds(ends.Ends):
    def settled(self, request, outcome, reason):
        self.record("settled-" + outcome.value, urlsplit(request.url).path)
        super().settled(request, outcome, reason)

scheduler.Ends = RecordingEnds
""",
    before="""
from urllib.parse import urlsplit
from scrapy.core.engine import ExecutionEngine
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy_dq import Scheduler
from scrapy_dq.scheduling import ends, scheduler
""",
)
ONE_ATTEMPT = {
    "/moved", "/target", "/raises", "/raises-late", "/late-child", "/again", "/again-child", "/status",
    "/errback-child",
}  # fmt: skip
TWO_ATTEMPTS = {"/flaky", "/gone", "/gone-with-errback", "/gone-errback-raises"}


class Endings:
    """The single crawl of ENDINGS and its records."""

    def __init__(self, project: Project) -> None:
        self.worker = project.run_worker(timeout_s=30)
        self.project = project
        self._order = [(e.event, e.path) for e in project.events()]

    def times(self, event: str, path: str) -> list[int]:
        """Return the positions of the *event* of *path* in the records."""
        return [i for i, recorded in enumerate(self._order) if recorded == (event, path)]


@pytest.fixture(scope="module")
def endings(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endings]:
    folder = tmp_path_factory.mktemp("endings") / "project"
    with TreeSite(pages=1) as site:
        project = Project(
            folder,
            [site.url("")],
            redis_url=redis_url,
            spider=ENDINGS,
            settings={
                "SCHEDULER": "tree_project.spiders.spider.RecordingScheduler",
                "CLOSED_PORT": free_port(),
                "RETRY_TIMES": 1,
            },
        )
        try:
            yield Endings(project)
        finally:
            project.close()


def test_each_request_is_settled_exactly_once(endings: Endings) -> None:
    """Success, redirect, retry and HTTP error count as done; exceptions and failed downloads as failed."""
    assert endings.worker.close_reason == "finished"
    done, failed = endings.project.count("settled-done"), endings.project.count("settled-failed")
    assert done + failed == endings.project.count("enqueued")
    assert done + failed == dict.fromkeys(ONE_ATTEMPT, 1) | dict.fromkeys(TWO_ATTEMPTS, 2)
    assert failed == dict.fromkeys(("/raises", "/raises-late", "/again", "/gone", "/gone-errback-raises"), 1)
    assert endings.worker.stats["dq/acked"] == done.total()
    assert endings.worker.stats["dq/failed"] == failed.total()
    assert "dq/released" not in endings.worker.stats


def test_a_retry_is_stored_before_the_failed_request_leaves(endings: Endings) -> None:
    """The retry of a 503 is enqueued before the first attempt is done, and is crawled."""
    assert endings.times("enqueued", "/flaky")[1] < endings.times("settled-done", "/flaky")[0]
    assert endings.project.count()["/flaky"] == 1


def test_a_redirect_is_stored_before_the_redirected_request_leaves(endings: Endings) -> None:
    """The target is enqueued before the redirected request is done, and is crawled."""
    assert endings.times("enqueued", "/target")[0] < endings.times("settled-done", "/moved")[0]
    assert endings.project.count()["/target"] == 1


def test_a_callback_exception_ends_a_request(endings: Endings) -> None:
    """As with Scrapy's scheduler, the page does not run again. Requests that it had yielded are crawled."""
    assert len(endings.times("settled-failed", "/raises")) == 1
    assert endings.worker.stats["spider_exceptions/ValueError"] == 4
    assert endings.times("enqueued", "/late-child")[0] < endings.times("settled-failed", "/raises-late")[0]
    assert endings.project.count()["/late-child"] == 1


def test_a_callback_that_downloads_its_own_request_again_is_at_work_until_its_end(endings: Endings) -> None:
    """After `engine.download(response.request)`, the engine makes the same call as after the callback.

    Only the call after the callback ends the request.
    """
    (child,), (parent,) = endings.times("enqueued", "/again-child"), endings.times("settled-failed", "/again")
    assert child < parent
    assert "Error while removing request from slot" not in endings.worker.text


def test_a_failed_download_fails_unless_an_errback_handles_it(endings: Endings) -> None:
    """The refused connection ends the request. The output of an errback is stored before the ack."""
    assert len(endings.times("settled-done", "/gone")) == 1  # the first attempt, because a retry followed
    child, item = endings.times("enqueued", "/errback-child"), endings.times("item", "/item-of-errback")
    parent = endings.times("settled-done", "/gone-with-errback")
    assert len(child) == len(item) == 1
    assert parent[0] < child[0] < parent[1]
    assert item[0] < parent[1]
    assert endings.project.count()["/errback-child"] == 1
    assert len(endings.times("settled-failed", "/gone-errback-raises")) == 1


SLOW_PIPELINE = spider_of("""
    RECEIVERS = {"scraped": signals.item_scraped}

    async def scraped(self, item):
        await asyncio.sleep(0.3)
        self.record("scraped", item["path"])


class SlowPipeline:
    def __init__(self, crawler):
        self.record = Record(crawler)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def process_item(self, item, spider=None):
        self.record("piped", item["path"])
        await asyncio.sleep(0.5)
        return item
""")


def test_a_page_is_in_flight_until_its_items_are_through(tree: Tree, look: Look) -> None:
    """An async pipeline and an async item_scraped handler keep the lease. The ack comes after both."""
    _, project = tree(
        spider=SLOW_PIPELINE,
        settings={"ITEM_PIPELINES": {"tree_project.spiders.spider.SlowPipeline": 300}},
        pages=1,
    )
    worker = project.start_worker()
    wait_until(lambda: project.count("piped"), "the item reaches the pipeline", 20)
    assert project.count("done")
    looks = 0
    while True:
        census = look(project).census
        if project.count("scraped"):
            break
        assert (census.in_flight, census.done) == (1, 0)
        looks += 1
    assert looks > 10
    worker.wait(20)
    assert worker.close_reason == "finished"
    assert worker.stats["dq/acked"] == 1


PARENT_TWICE = spider_of("""
    async def start(self):
        site = self.start_urls[0]
        yield scrapy.Request(site + "/generator?s=0", self.generator)
        yield scrapy.Request(site + "/list?s=0", self.returns_a_list)
        yield scrapy.Request(site + "/async?s=0", self.async_generator)

    def children(self, response):
        self.record("start", page_path(response))
        for number in (1, 2, 2, 3):
            url = response.url.replace("?", f"/{number}?")
            unfiltered = "BaseDupeFilter" not in self.settings["DUPEFILTER_CLASS"]
            yield scrapy.Request(url, self.leaf, dont_filter=unfiltered)
        yield {"path": page_path(response)}

    def generator(self, response):
        yield from self.children(response)

    async def returns_a_list(self, response):
        return list(self.children(response))

    async def async_generator(self, response):
        for output in self.children(response):
            await asyncio.sleep(0)
            yield output


class HoldingPipeline:
    @classmethod
    def from_crawler(cls, crawler):
        pipeline = cls()
        pipeline.holds = crawler.settings.getbool("HOLD")
        return pipeline

    async def process_item(self, item, spider=None):
        if self.holds:
            await asyncio.sleep(60)
        return item
""")


@pytest.mark.parametrize("dupefilter", ["scrapy_dq.DupeFilter", "scrapy.dupefilters.BaseDupeFilter"])
def test_unfiltered_children_of_a_page_that_runs_again_are_not_doubled(
    begin: Tree, look: Look, dupefilter: str
) -> None:
    """The worker dies while items are in a pipeline. The pages run again, but each child runs only once."""
    _, project = begin(
        PARENT_TWICE,
        settings={
            "ITEM_PIPELINES": {"tree_project.spiders.spider.HoldingPipeline": 300},
            "DUPEFILTER_CLASS": dupefilter,
        },
    )
    first = project.start_worker(settings={"HOLD": 1})

    def only_the_pages_are_left() -> bool:
        census = look(project).census
        return (census.done, census.waiting, census.in_flight) == (12, 0, 3)

    wait_until(only_the_pages_are_left, "all children are done", 20)
    first.kill()
    second = project.run_to_end(timeout_s=30)
    kinds = ("generator", "list", "async")
    assert project.count("start") == {f"/{kind}?s=0": 2 for kind in kinds}
    expected = {f"/{kind}/{number}?s=0": 1 + (number == 2) for kind in kinds for number in (1, 2, 3)}
    assert project.count() == expected
    known = second.stats["dq/duplicates"] + second.stats.get("dq/seeds/known", 0)
    assert known == 3 + 12  # the pages from start(), and their children


DOWNLOADS_WHAT_WAITS = spider_of(
    """
    async def parse(self, response):
        # A lambda cannot be stored: it stays in this worker, and waits, as long as the downloader is busy.
        page = response.follow("/p/1", callback=lambda again: self.page(again), dont_filter=True)
        yield response.follow("/p/2?delay=0.5", callback=self.page)
        yield page
        engine = self.crawler.engine
        await maybe_deferred_to_future(engine.download(page))
        self.record("looked", "at it")

    def page(self, response):
        self.record("done", page_path(response))
""",
    before="from scrapy.utils.defer import maybe_deferred_to_future\n",
)


def test_a_waiting_local_request_is_not_done_when_a_callback_downloads_it(tree: Tree) -> None:
    """At the end of `engine.download()`, the engine makes the same call as at the end of a crawled request.

    This call must not settle the request, because it still waits to be crawled.
    """
    busy = {"CONCURRENT_REQUESTS": 1}
    _, project = tree(spider=DOWNLOADS_WHAT_WAITS, settings=busy, pages=3)
    project.run_to_end(timeout_s=30)
    assert project.count("looked") == {"at it": 1}
    assert set(project.count()) == {"/p/1", "/p/2?delay=0.5"}
