"""Local requests (with `dq_local`, or not storable) stay in their worker. No crash loses them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from support.given import Look, MakeProject, StartSite, Tree
from support.project import Project
from support.tree_site import TreeSite
from support.tree_spider import spider_of
from support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")

LOGIN = spider_of("""
    async def start(self):
        url = self.start_urls[0].replace("/p/0", "/login?s=0.2")
        yield scrapy.Request(url, self.signed_in, meta=LOCAL, dont_filter=True)

    async def signed_in(self, response):
        self.record("login", page_path(response))
        while Path(self.settings["RECORD_PATH"]).read_text().count("login ") < 2:
            await asyncio.sleep(0.02)
        yield scrapy.Request(self.start_urls[0], self.parse)

    def parse(self, response):
        yield from super().parse(response)
        # The second request is a duplicate within this worker.
        for _ in range(2):
            url = response.urljoin("/local" + page_path(response) + "?s=0.01")
            yield scrapy.Request(url, self.leaf, meta=LOCAL, cb_kwargs={"parent": page_path(response)})

    def leaf(self, response, parent):
        self.record("local", parent)


LOCAL = {"dq_local": True}
""")


def test_a_dq_local_request_stays_in_its_worker(tree: Tree) -> None:
    """Each of two workers logs in on its own. A page's local child is crawled by the page's worker."""
    site, project = tree(spider=LOGIN, settings={"CONCURRENT_REQUESTS": 4}, pages=60, latency_s=0.05)
    workers = project.start_workers(2)
    assert project.wait(30) == ["finished", "finished"]
    pids = sorted(worker.pid for worker in workers)
    assert sorted(e.pid for e in project.events() if e.event == "login") == pids
    assert project.count() == project.count("local") == dict.fromkeys(site.paths, 1)
    crawled_by = {
        event: {e.path: e.pid for e in project.events() if e.event == event} for event in ("done", "local")
    }
    assert crawled_by["local"] == crawled_by["done"]
    assert set(crawled_by["done"].values()) == set(pids)
    assert sum(worker.stats["dq/enqueued/local"] for worker in workers) == 60 + 2
    assert "dq/unencodable" not in workers[0].stats


ENTER = spider_of("""
    async def start(self):
        self.record("began", "/")
        while Path(self.settings["RECORD_PATH"]).read_text().count("began ") < 2:
            await asyncio.sleep(0.02)
        url, local = self.start_urls[0].replace("/p/0", "/enter?s=0&cookie=id=1"), self.settings["LOCAL"]
        yield scrapy.FormRequest(url, self.signed_in, formdata={"user": "me"}, meta={"dq_local": local})

    def signed_in(self, response):
        yield scrapy.Request(self.start_urls[0], self.parse)
""")


@pytest.mark.parametrize("local", [True, False])
def test_a_login_that_only_one_worker_has_is_reported_once(tree: Tree, local: bool) -> None:
    """Only one worker sends an ordinary login, so the other worker fetches its pages without the cookie."""
    _, project = tree(spider=ENTER, settings={"LOCAL": local}, pages=30)
    workers = project.start_workers(2)
    assert project.wait(60) == ["finished", "finished"]
    said = [line for worker in workers for line in worker.text.splitlines() if "docs/logins.md" in line]
    assert len(said) == (not local), said


UNSTORABLE = spider_of("""
    def parse(self, response):
        def request(path, callback=self.leaf, **kwargs):
            return scrapy.Request(response.urljoin(path + "?s=0"), callback, **kwargs)

        yield request("/lambda", lambda response: self.leaf(response))
        yield request("/open-file", meta={"file": open(__file__)})
        yield request("/large", body=b"x" * 2000)
        yield request("/large-meta", meta={"text": "x" * 2000})
        yield request("/in-time", body=b"x" * 500)

    def leaf(self, response):
        if "file" in response.meta:
            assert response.meta["file"].readable()
        self.record("done", page_path(response))
        if page_path(response) == "/lambda?s=0":
            yield response.follow("/child-of-local?s=0", self.leaf)
            yield response.follow("/local-of-local?s=0", lambda response: self.leaf(response))
""")


CHAIN = spider_of("""
    def parse(self, response, n=0):
        if n < 100:
            here, more = {"dq_local": True}, {"n": n + 1}
            yield response.follow(f"/plain?s=0&n={n}", self.parse, meta=here, cb_kwargs=more)
        else:
            gc.collect()
            alive = sum(isinstance(each, scrapy.Request) for each in gc.get_objects())
            self.record("alive", "few" if alive < 20 else str(alive))
""")


def test_a_chain_of_local_requests_does_not_stay_in_memory(tree: Tree) -> None:
    """Each request is the parent of the next one. With a site's cookies, one request can take 300 kB."""
    _, project = tree(spider=CHAIN, pages=1)
    project.run_to_end(timeout_s=30)
    assert project.count("alive") == {"few": 1}


AGAIN = spider_of("""
    count = 0

    def parse(self, response):
        if THROUGH == "callback" and self.count < 100:
            self.count += 1
            yield response.request
        else:
            gc.collect()
            alive = sum(isinstance(each, scrapy.Request) for each in gc.get_objects())
            self.record("alive", "few" if alive < 20 else str(alive))


class Middleware:
    count = 0

    def process_response(self, request, response, spider=None):
        if THROUGH == "middleware" and self.count < 100:
            self.count += 1
            return request
        return response
""")


@pytest.mark.parametrize("through", ["callback", "middleware"])
def test_a_request_that_is_returned_again_does_not_stay_in_memory(tree: Tree, through: str) -> None:
    """A callback or a middleware returns its own request. This request must not become its own parent."""
    _, project = tree(
        spider=AGAIN,
        settings={
            "THROUGH": through,
            "DOWNLOADER_MIDDLEWARES": {"tree_project.spiders.spider.Middleware": 500},
        },
        pages=1,
    )
    worker = project.run_to_end(timeout_s=30)
    assert project.count("alive") == {"few": 1}
    assert worker.stats["dq/acked"] == 101


@pytest.mark.parametrize("debug", [False, True])
def test_requests_that_cannot_be_stored_are_crawled_by_their_own_worker(tree: Tree, debug: bool) -> None:
    """Requests with a lambda, an open file or too large a body are crawled by this worker and counted.

    There is one warning for each reason. With SCHEDULER_DEBUG, there is one for each request.
    """
    settings = {"DQ_MAX_ENTRY_BYTES": 1024, "SCHEDULER_DEBUG": debug}
    _, project = tree(spider=UNSTORABLE, settings=settings, pages=1)
    worker = project.run_to_end(timeout_s=20)
    local = {"/lambda", "/open-file", "/large", "/large-meta", "/local-of-local"}
    assert project.count() == {f"{path}?s=0": 1 for path in local | {"/in-time", "/child-of-local"}}
    stats = worker.stats
    assert stats["dq/unencodable"] == stats["dq/enqueued/local"] == len(local)
    assert stats["dq/acked"] == 3
    warnings = [line for line in worker.text.splitlines() if "it stays in this worker" in line]
    assert len([line for line in warnings if "WARNING" in line]) == 4 + debug  # two methods have lambdas
    assert sum("DQ_MAX_ENTRY_BYTES = 1,024" in line for line in warnings) == 1 + debug
    for path in ("/lambda?s=0", "/open-file?s=0", "/large?s=0", "/local-of-local?s=0"):
        assert len([line for line in warnings if path in line]) == 1
    assert "spider_exceptions/count" not in stats


# Five pages have one local child each. The children are fetched directly, with the meta of the page, after a
# redirect, or after a retry, and one child cannot be stored. At the same time, the callback of another page
# continues, and its children are crawled.
MORTAL = spider_of("""
    async def start(self):
        site = self.start_urls[0]
        for kind in ("busy", "direct", "passed_on", "moved", "flaky", "unstorable"):
            yield scrapy.Request(f"{site}/{kind}?s=0", getattr(self, kind))

    async def busy(self, response):
        number = 0
        while self.settings["MODE"] == "hold":
            yield response.follow(f"/other/{number}?s=0", self.leaf)
            await asyncio.sleep(0.01)
            number += 1

    def direct(self, response):
        yield response.follow("/child/direct?s=0", self.child, meta=LOCAL, cb_kwargs={"kind": "direct"})
        self.record("page", "direct")

    def passed_on(self, response):
        meta = {**response.meta, **LOCAL}  # says also that start() has yielded the request
        yield response.follow("/child/passed?s=0", self.child, meta=meta, cb_kwargs={"kind": "passed_on"})
        self.record("page", "passed_on")

    def moved(self, response):
        path = "/away?s=0.2&to=/child/moved%3Fs=0"
        yield response.follow(path, self.child, meta=LOCAL, cb_kwargs={"kind": "moved"})
        self.record("page", "moved")

    def flaky(self, response):
        path = "/child/flaky?s=0.2&flaky=1"
        yield response.follow(path, self.child, meta=LOCAL, cb_kwargs={"kind": "flaky"})
        self.record("page", "flaky")

    def unstorable(self, response):
        def child(response):
            return self.child(response, "unstorable")

        yield response.follow("/child/unstorable?s=0", child)
        self.record("page", "unstorable")

    async def child(self, response, kind):
        self.record("child", kind)
        yield response.follow("/first/" + kind + "?s=0", self.leaf, cb_kwargs={"kind": kind})
        if self.settings["MODE"] == "hold":
            await asyncio.sleep(3600)
        if self.settings["MODE"] == "stop":
            raise CloseSpider("stopped")
        yield response.follow("/last/" + kind + "?s=0", self.leaf, cb_kwargs={"kind": kind})

    def leaf(self, response, kind="other"):
        self.record("leaf", kind)


LOCAL = {"dq_local": True}
""")
KINDS = ("direct", "passed_on", "moved", "flaky", "unstorable")


def test_a_page_whose_local_child_dies_with_its_worker_runs_again(begin: Tree, look: Look) -> None:
    """The worker is killed in the callbacks of local children. Their pages are in flight, and run again."""
    _, project = begin(MORTAL, settings={"MODE": "go"})
    first = project.start_worker(settings={"MODE": "hold"})
    wait_until(lambda: set(project.count("child")) == {*KINDS}, "all local children are under way", 20)
    wait_until(lambda: set(project.count("leaf")) >= {*KINDS}, "their first children are done", 20)
    done = look(project).census.done
    # Acks are sent in order. After the acks of so many pages, all earlier acks have been sent.
    wait_until(lambda: look(project).census.done > done + 40, "other pages are acked", 20)
    first.kill()
    assert project.count("page") == dict.fromkeys(KINDS, 1)
    second = project.run_to_end(timeout_s=30)
    assert second.stats["dq/reclaimed"] >= 6
    assert project.count("page") == dict.fromkeys(KINDS, 2)
    assert project.count("child", pids=[second.pid]) == dict.fromkeys(KINDS, 1)
    leaves = project.count("leaf")
    assert {kind: leaves[kind] for kind in KINDS} == dict.fromkeys(KINDS, 2)  # a first and a last leaf each


def test_a_page_whose_local_child_is_interrupted_runs_again(begin: Tree) -> None:
    """CloseSpider in the callback of a local child releases its page. The next worker runs the page."""
    _, project = begin(MORTAL, settings={"MODE": "go"})
    first = project.run_worker(settings={"MODE": "stop"}, timeout_s=20)
    assert first.close_reason == "stopped"
    project.run_to_end(timeout_s=20)
    leaves = project.count("leaf")
    assert {kind: leaves[kind] for kind in KINDS} == dict.fromkeys(KINDS, 2)


UNFILTERED = spider_of("""
    def parse(self, response):
        local = {"dq_local": True} if self.settings["KIND"] == "local" else {}
        yield response.follow("/p/1", self.listing, dont_filter=True, meta=local)

    async def listing(self, response):
        meta = response.meta if self.settings["KIND"] == "meta" else {}
        for number in range(2, 22):
            yield response.follow(f"/p/{number}", self.leaf, dont_filter=True, meta=meta)
        if self.settings["MODE"] == "hold":
            await asyncio.sleep(600)
        self.record("listing", "-")

    def leaf(self, response):
        self.record("leaf", page_path(response))
""")


@pytest.mark.parametrize("kind", ["local", "meta", "plain"])
def test_a_page_that_runs_again_does_not_double_its_unfiltered_children(
    kind: str, redis_url: str, make_project: MakeProject, start_site: StartSite, look: Look
) -> None:
    """This also holds for children of a local request, and for children with their parent's meta."""
    project = make_project(
        [start_site(pages=22, fan_out=0).url("/p/0")], redis_url=redis_url, spider=UNFILTERED,
        settings={"MODE": "go", "KIND": kind},
    )  # fmt: skip
    for _ in range(2):
        worker = project.start_worker(settings={"MODE": "hold"})
        wait_until(lambda: len(project.count("leaf")) == 20, "all children are crawled", 30)
        wait_until(lambda: look(project).census.in_flight == 1, "the acks of all children are stored", 30)
        worker.kill()
    project.run_to_end(timeout_s=30)
    assert project.count("leaf") == {f"/p/{number}": 1 for number in range(2, 22)}
    assert project.count("listing") == {"-": 1}


# Requests of LINKS may have a lambda as callback, which cannot be stored. A site may have many such links.
MANY_LOCAL = spider_of("""
    def parse(self, response):
        for host, count, target, local in self.settings.getlist("LINKS"):
            for number in range(count):
                url = response.urljoin(target % number).replace("127.0.0.1", host)
                callback = (lambda response: self.leaf(response)) if local else self.leaf
                yield scrapy.Request(url, callback)
""")


@pytest.fixture
def links(tree: Tree) -> Tree:
    """Return a function that makes a project with links for MANY_LOCAL, and with further settings."""

    def make(*links: tuple[str, int, str, bool], **more: Any) -> tuple[TreeSite, Project]:
        settings = {"LINKS": links, "RETRY_ENABLED": False, "CONCURRENT_REQUESTS": 4} | more
        return tree(MANY_LOCAL, settings, pages=1, hosts=HOSTS)

    return make


def test_local_requests_of_a_slow_site_leave_room_for_other_sites(
    links: Tree,
) -> None:
    """A slow site's requests use only this site's own slots, and slots that other sites leave free."""
    site, project = links(
        (HOSTS[1], 20, "/slow/%d?s=600", True), (HOSTS[2], 40, "/quick/%d?s=0", False),
        CONCURRENT_REQUESTS_PER_DOMAIN=2,
    )  # fmt: skip
    worker = project.start_worker()
    wait_until(lambda: len(project.count()) == 40, "all pages of the quick site are done", 30)
    assert sum(hit.host == HOSTS[1] for hit in site.log()) == 2
    worker.kill()


def test_a_local_request_waits_while_its_site_is_blocked(
    links: Tree,
) -> None:
    """The worker has received a Retry-After for the site. Local requests of another site continue."""
    site, project = links(
        (HOSTS[1], 10, "/busy/%d?s=0&flaky=1&after=300", True), (HOSTS[2], 10, "/quick/%d?s=0", True),
        DQ_DOMAIN_DELAY=0.1,
    )  # fmt: skip
    worker = project.start_worker()
    wait_until(lambda: len(project.count()) == 10, "all pages of the other site are done", 30)
    assert sum(hit.host == HOSTS[1] for hit in site.log()) == 1
    worker.kill()


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"DQ_DOMAIN_DELAY": 0.2}, 0),
        ({"DQ_DOMAIN_DELAY": 0.2, "DQ_PARTITION_BY": "none"}, 0),
        ({"DQ_DOMAIN_CONCURRENCY": 1}, 0.2),
    ],
)
def test_local_requests_keep_the_limits_of_their_site(
    links: Tree, settings: dict[str, Any], seconds: float
) -> None:
    """A site's stored and local requests together keep its limits. None waits longer than necessary."""
    site, project = links(
        (HOSTS[1], 6, f"/local/%d?s={seconds}", True), (HOSTS[1], 6, f"/stored/%d?s={seconds}", False),
        **settings,
    )  # fmt: skip
    project.run_to_end(timeout_s=60)
    assert len(project.count()) == 12
    asked = [hit.at_s for hit in site.log() if hit.host == HOSTS[1]]
    assert min(b - a for a, b in pairwise(asked)) >= 0.9 * 0.2


STATUS = spider_of(
    """
    async def start(self):
        for number in range(100):
            yield scrapy.Request(f"{self.start_urls[0]}/seed?s=0&n={number}")

    async def parse(self, response):
        scheduler = self.crawler.engine._slot.scheduler
        while not len(scheduler.dqs):
            await asyncio.sleep(0.01)
        yield response.follow("/later", meta={"dq_local": True, "dq_delay": 3600})
        for look, result in get_engine_status(self.crawler.engine):
            self.record(look.replace(" ", ""), str(result).replace(" ", ""))
        assert len(scheduler) == len(scheduler.dqs) + 1
        raise CloseSpider("looked")
""",
    before="from scrapy.utils.engine import get_engine_status\n",
)


def test_tools_for_scrapys_scheduler_show_stored_and_local_requests(begin: Tree) -> None:
    """The telnet console's `est()` shows requests in Redis as `dqs`, and local requests as `mqs`."""
    _, project = begin(STATUS, settings={"CONCURRENT_REQUESTS": 1})
    worker = project.run_worker()
    assert worker.close_reason == "looked", worker.text
    shown = {event.event: event.path for event in project.events()}
    assert not [look for look, result in shown.items() if "(exception)" in result]
    assert [int(shown[look]) > 0 for look in shown if ".dqs" in look] == [True]
    assert [shown[look] for look in shown if ".mqs" in look] == ["1"]
