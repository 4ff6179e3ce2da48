"""Requests that fail for good are counted, and stored with the data that a user needs to retry them."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import kept
from support.given import Look, MakeProject, StartSite, Tree
from support.project import Project
from support.scrapy_redis_crawl import run_dq_each
from support.tree_spider import FED, spider_of
from support.waiting import free_port

SPIDER = spider_of("""
    async def start(self):
        def page(path, callback=None, **more):
            return scrapy.Request(START_URLS[0] + path, callback, **more)

        yield page("/fine?s=0", self.parse)
        yield page("/raises?s=0", self.parse_raising)
        yield page("/raises-oddly?s=0", self.parse_raising_oddly)
        yield page("/raises-late?s=0", self.parse_raising_late)
        yield page("/raises-async?s=0", self.parse_raising_async)
        yield page("/in-a-library?s=0", self.parse_in_library)
        yield page("/rescued?s=0", self.parse_raising)
        yield page("/refused-rescued?s=0", self.parse)
        yield page("/refused?s=0", self.parse)
        yield page("/ignored?status=404", self.parse)
        yield page("/dropped?s=0", self.parse)
        yield page("/item-fails?s=0", self.parse_item)
        yield page("/item-fails-of-a-copy?s=0", self.parse_item)
        yield page("/item-is-dropped?s=0", self.parse_item)
        yield page("/with-local-child?s=0", self.parse_with_local_child)
        yield scrapy.Request(DOWN + "/down", self.parse)
        yield scrapy.Request(DOWN + "/down-handled", self.parse, errback=self.handle)
        yield scrapy.Request(DOWN + "/down-raised-again", self.parse, errback=self.pass_on)
        yield scrapy.Request(DOWN + "/down-errback-raises", self.parse, errback=self.raise_another)

    def parse_raising(self, response):
        raise ValueError("no \\x00 price\\n" + "x" * 1000)

    def parse_raising_oddly(self, response):
        raise Odd

    def parse_raising_late(self, response):
        yield scrapy.Request(START_URLS[0] + "/child?s=0", self.parse)
        raise KeyError("price")

    def parse_in_library(self, response):
        Later = scrapy.Request
        yield Later("a")

    async def parse_raising_async(self, response):
        yield {"path": "/an-item"}
        raise RuntimeError("async")

    def parse_item(self, response):
        yield {"path": "/an-item", "of": response.url}

    def parse_with_local_child(self, response):
        yield scrapy.Request(START_URLS[0] + "/local-child?s=0", lambda response: 1 / 0)

    def handle(self, failure):
        self.record("done", "/handled")

    def pass_on(self, failure):
        return failure

    def raise_another(self, failure):
        raise LookupError("in the errback")


class Drop:
    def process_request(self, request, spider=None):
        if "dropped" in request.url:
            raise IgnoreRequest("not wanted")

    def process_response(self, request, response, spider=None):
        if "of-a-copy" in request.url:
            response.request = request.copy()
        return response


class Rescue:
    def process_spider_input(self, response, spider=None):
        if "refused" in response.url:
            raise ValueError("this page is not for us")

    def process_spider_exception(self, response, exception, spider=None):
        if "rescued" in response.url:
            return []


class Pipeline:
    def process_item(self, item, spider=None):
        if "item-fails" in item.get("of", ""):
            raise ConnectionError("the database is away")
        if "item-is-dropped" in item.get("of", ""):
            raise DropItem("not wanted")
        return item


class Odd(Exception):
    def __str__(self):
        raise ValueError("I have no text")
""")


def at(line: str, function: str) -> str:
    """Return the place of *line* in SPIDER, in the form at the end of a reason."""
    [number] = [n for n, text in enumerate(SPIDER.splitlines(), 1) if line in text]
    return f"(spiders/spider.py:{number} in {function})"


FAILED = {
    "/raises": "callback: ValueError: no ? price?xxx",
    "/raises-oddly": "callback: Odd: ",
    "/raises-late": f"KeyError: 'price' {at('raise KeyError', 'parse_raising_late')}",
    "/raises-async": f"RuntimeError: async {at('raise RuntimeError', 'parse_raising_async')}",
    "/item-fails": f"ConnectionError: the database is away {at('raise Connection', 'process_item')}",
    "/item-fails-of-a-copy": "item pipeline: ConnectionError: the database is away",
    "/refused": f"ValueError: this page is not for us {at('not for us', 'process_spider_input')}",
    "/in-a-library": f"ValueError: Missing scheme in request url: a {at('yield Later', 'parse_in_library')}",
    "/down": "download: ",
    "/down-raised-again": "download: ",
    "/down-errback-raises": f"errback: LookupError: in the errback {at('raise Lookup', 'raise_another')}",
}
MIDDLEWARES = {
    "DOWNLOADER_MIDDLEWARES": {"tree_project.spiders.spider.Drop": 500},
    "SPIDER_MIDDLEWARES": {"tree_project.spiders.spider.Rescue": 500},
    "ITEM_PIPELINES": {"tree_project.spiders.spider.Pipeline": 1, "support.tree_spider.ItemRecord": 500},
}


@pytest.fixture
def project(begin: Tree) -> Project:
    down = f"http://127.0.0.1:{free_port()}"
    return begin(SPIDER, settings={"DOWN": down, "RETRY_ENABLED": False, **MIDDLEWARES})[1]


def test_requests_that_fail_for_good_are_kept(project: Project, redis_url: str, look: Look) -> None:
    """Redis keeps URL, reason, time, worker and request. Handled and dropped requests are not kept."""
    worker = project.run_to_end()
    census = look(project).census
    # Those of the 19 requests that did not fail are done, and also one child.
    assert (census.failed, census.dead, census.done) == (len(FAILED), 0, 19 - len(FAILED) + 1)
    with connect_url(redis_url) as client:
        records = kept(client, project.name, "failed")
    reasons = {urlsplit(one.label).path: one.reason for one in records}
    assert reasons.keys() == FAILED.keys()
    for path, part in FAILED.items():
        assert part in reasons[path]
        assert len(reasons[path]) <= 500
    assert all(abs(time.time() - one.at) < 60 for one in records)
    assert len({one.worker_id for one in records}) == 1
    assert str(worker.pid) in records[0].worker_id
    assert all(one.label.encode() in one.payload for one in records)
    # The stat also counts the failed local child, which has no lease and is not stored.
    assert worker.stats["dq/failed"] == len(FAILED) + 1
    told = f"WARNING: Requests of this run: {len(FAILED)} failed for good. `scrapy dq failed --crawl "
    assert told in worker.text.splitlines()[-1]
    assert worker.text.count("failed for good") == 1
    assert project.count() == {"/fine?s=0": 1, "/child?s=0": 1, "/handled": 1}


CANCELLED = spider_of("""
    async def start(self):
        yield scrapy.Request(START_URLS[0] + "/item?s=0", self.parse_item)
        yield scrapy.Request(START_URLS[0] + "/coroutine?s=0", self.parse_coroutine)
        yield scrapy.Request(START_URLS[0] + "/generator?s=0", self.parse_generator)
        if self.settings.getbool("IN_START"):
            await cancelled()

    def parse_item(self, response):
        yield {"path": "/an-item"}

    async def parse_coroutine(self, response):
        await cancelled()

    async def parse_generator(self, response):
        await cancelled()
        yield {"path": "/no-item"}


async def cancelled():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


class Pipeline:
    async def process_item(self, item, spider=None):
        await cancelled()

    async def close_spider(self, spider=None):
        await cancelled()
""")


def test_a_request_fails_if_its_await_is_cancelled(begin: Tree, redis_url: str) -> None:
    """A database driver may cancel an await. Scrapy would log nothing, and lose the item and the request."""
    _, project = begin(CANCELLED, settings={"ITEM_PIPELINES": {"tree_project.spiders.spider.Pipeline": 1}})
    assert project.run_to_end().close_reason == "finished"
    with connect_url(redis_url) as client:
        records = kept(client, project.name, "failed")
    assert {urlsplit(one.label).path: one.reason.partition(":")[0] for one in records} == {
        "/item": "item pipeline",
        "/coroutine": "callback",
        "/generator": "callback",
    }
    told = "AwaitedCancelled: its awaitable was cancelled (spiders/spider.py:"
    assert all(told in one.reason for one in records)


def test_start_fails_if_its_await_is_cancelled(begin: Tree) -> None:
    """Scrapy would take the cancellation for the end of the engine, and no worker would finish the crawl."""
    _, project = begin(CANCELLED, settings={"IN_START": True})
    worker = project.run_worker()
    assert worker.close_reason == "start_error", worker.text
    assert "AwaitedCancelled: its awaitable was cancelled" in worker.text


LOGINS = spider_of("""
    async def start(self):
        down = DOWN.replace("//", "//user:S3%20kr@")
        yield scrapy.Request(down + "/down", self.parse)
        yield scrapy.Request(START_URLS[0] + "/raises?s=0", self.parse_raising)
        yield scrapy.Request(down + "/bad-time", self.parse, meta={"dq_delay": "http://u:S3kr@x/"})
        yield scrapy.Request(down + "/local", self.parse, meta={"dq_delay": "x"}, cb_kwargs={"no": print})
        yield scrapy.Request("http://u:S3kr@" + "a" * 1001 + "/long", self.parse)

    def parse_raising(self, response):
        raise ValueError("bad login in http://user:S3%20kr@x.example")
""")


def test_no_login_is_stored_with_a_reason_or_logged(begin: Tree, redis_url: str) -> None:
    """Scrapy's error messages quote URLs. The test does not check log lines that Scrapy itself writes."""
    settings = {"DOWN": f"http://127.0.0.1:{free_port()}", "RETRY_ENABLED": False}
    _, project = begin(LOGINS, settings=settings)
    worker = project.run_to_end()
    with connect_url(redis_url) as client:
        records = [*kept(client, project.name, "failed"), *kept(client, project.name, "dead", 10)]
        reasons = [one.reason for one in records]
    assert len(reasons) == 3
    assert not [reason for reason in reasons if "S3" in reason]
    text = "callback: ValueError: bad login in http://...@x.example (spiders/spider.py:"
    assert any(reason.startswith(text) for reason in reasons)
    ours = [line for line in worker.text.splitlines() if "[scrapy_dq." in line]
    for part in ("is dropped: its host", "becomes a dead letter", "cannot be stored", "stays in this worker"):
        assert part in "\n".join(ours)
    assert not [line for line in ours if "S3" in line]


def test_a_run_with_persist_warns_about_failed_requests_that_it_forgets(project: Project) -> None:
    """Failed pages stay in `seen`, so no worker crawls them again. Their records are deleted."""
    settings = {"SCHEDULER_PERSIST": True}
    text = f"WARNING: Crawl {project.name!r}: {len(FAILED)} requests of the last run had failed for good or"
    runs = [project.run_to_end(settings=settings).text.count(text) for _ in range(3)]
    assert runs == [0, 1, 0]


STATUSES = spider_of("""
    async def start(self):
        def page(path, errback=None, **meta):
            return scrapy.Request(START_URLS[0] + path, self.parse, errback=errback, meta=meta)

        yield page("/error?status=500")
        yield page("/later?flaky=1")
        yield page("/too-late?flaky=5")
        yield page("/not-found?status=404")
        yield page("/gone?status=410")
        yield page("/by-list?status=500", handle_httpstatus_list=[500])
        yield page("/by-all?status=500", handle_httpstatus_all=True)
        yield page("/by-errback?status=500", self.handle)
        yield page("/rescued?status=500")
        yield page("/returned?status=500", self.give_back)
        yield page("/trapped?status=404", self.trap)
        yield page("/raised-late?status=500", self.raise_late)
        yield page("/raised-async?status=500", self.raise_async)
        yield page("/another?status=500", self.raise_another)
        yield page("/to-error?to=/moved?status%3D502")

    def handle(self, failure):
        self.record("handled", "/" + failure.request.url.rpartition("/")[2])

    def give_back(self, failure):
        return failure

    def trap(self, failure):
        failure.trap(OSError)

    def raise_late(self, failure):
        yield {"path": "/an-item"}
        failure.raiseException()

    async def raise_async(self, failure):
        yield {"path": "/an-item"}
        failure.raiseException()

    def raise_another(self, failure):
        raise LookupError("no such page")


class Rescue:
    def process_spider_exception(self, response, exception, spider=None):
        if "rescued" in response.url:
            return [{"path": "/an-item"}]
""")


def reasons_of(project: Project, redis_url: str) -> dict[str, str]:
    """Return the reasons of failed requests, by path."""
    with connect_url(redis_url) as client:
        return {urlsplit(one.label).path: one.reason for one in kept(client, project.name, "failed")}


def test_a_page_that_ends_with_an_error_status_has_failed(begin: Tree, redis_url: str, look: Look) -> None:
    """The page fails after its last attempt, unless a callback, errback or spider middleware handles it."""
    settings = {
        "RETRY_TIMES": 1,
        "RETRY_PRIORITY_ADJUST": 0,
        "SPIDER_MIDDLEWARES": {"tree_project.spiders.spider.Rescue": 500},
    }
    _, project = begin(STATUSES, settings=settings)
    worker = project.run_to_end()
    found = reasons_of(project, redis_url)
    line = 1 + STATUSES.splitlines().index('        raise LookupError("no such page")')
    assert found == {
        "/error": "HTTP 500",
        "/too-late": "HTTP 503",
        "/moved": "HTTP 502",
        "/returned": "HTTP 500",
        "/trapped": "HTTP 404",
        "/raised-late": "HTTP 500",
        "/raised-async": "HTTP 500",
        "/another": f"errback: LookupError: no such page (spiders/spider.py:{line} in raise_another)",
    }
    assert look(project).census.failed == worker.stats["dq/failed"] == len(found)
    assert project.count("handled") == {"/by-errback?status=500": 1}


ONE_ERROR = spider_of("""
    async def start(self):
        yield scrapy.Request(START_URLS[0] + "/error?status=500", self.parse)
        yield scrapy.Request(START_URLS[0] + "/not-found?status=404", self.parse)
""")
NO_HTTPERROR = {"scrapy.spidermiddlewares.httperror.HttpErrorMiddleware": None}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"/error": "HTTP 500"}),
        ({"HTTPERROR_ALLOW_ALL": True}, {}),
        ({"SPIDER_MIDDLEWARES": NO_HTTPERROR}, {}),
        ({"RETRY_HTTP_CODES": []}, {}),
        ({"RETRY_HTTP_CODES": ["404", 500]}, {"/error": "HTTP 500", "/not-found": "HTTP 404"}),
    ],
    ids=str,
)
def test_settings_decide_which_statuses_have_failed(
    settings: dict[str, Any], expected: dict[str, str], begin: Tree, redis_url: str
) -> None:
    """A status in RETRY_HTTP_CODES is a failure, unless Scrapy passes the response to a callback."""
    _, project = begin(ONE_ERROR, settings={"RETRY_ENABLED": False} | settings)
    project.run_to_end()
    assert reasons_of(project, redis_url) == expected


@pytest.mark.parametrize("kind", ["start()", "SCHEDULER_PERSIST", "RedisSpider"])
def test_retry_brings_back_a_page_that_ended_with_an_error_status(
    kind: str, redis_url: str, start_site: StartSite, make_project: MakeProject, look: Look
) -> None:
    """The log's last line names the commands, and `failed` shows the reason."""
    site = start_site(pages=1)
    url = site.url("/later?flaky=1")
    fed = kind == "RedisSpider"
    settings = {
        "RETRY_ENABLED": False,
        "SCHEDULER_PERSIST": kind == "SCHEDULER_PERSIST",
        "MAX_IDLE_TIME_BEFORE_CLOSE": 0.3,
    }
    more = {"spider": FED} if fed else {}
    project = make_project([] if fed else [url], redis_url=redis_url, settings=settings, **more)
    if fed:
        with connect_url(redis_url) as client:
            client.rpush(f"{project.name}:start_urls", url)
    last = project.run_to_end().text.splitlines()[-1]
    named = f"--crawl {project.name}"
    assert last.endswith(
        f"Requests of this run: 1 failed for good. `scrapy dq failed {named}` shows why; "
        f"`scrapy dq retry {named} --all` runs them again"
    )
    shown, retried = run_dq_each(
        project, [["failed", *named.split()], ["retry", *named.split(), "--all", "--yes"]]
    )
    assert shown.stdout.splitlines()[2].split() == ["1", "127.0.0.1", "HTTP", "503"]
    assert (retried.returncode, retried.stderr) == (0, "")
    assert "failed for good" not in project.run_to_end().text
    assert project.count() == {"/later?flaky=1": 1}
    assert site.hits() == {"/later?flaky=1": 2}
    assert look(project).census.failed == 0
