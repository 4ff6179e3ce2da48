"""Real crawls visit the pages of a changing site again. See docs/continuous.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import keys
from support.changing_site import Answer, ChangingSite
from support.given import Errors, Look, MakeProject, Reasons
from support.project import Project
from support.tree_spider import spider_of
from support.waiting import wait_until
from support.worker import Worker

SPIDER = spider_of(
    """
    def parse(self, response):
        self.record("done", response.url.rpartition("/")[2])
        if "dq_visit" in response.meta:
            self.record("visit", response.url)
        if b"raises" in response.body:
            raise ValueError("as it says")
        for href in response.css("a::attr(href)").getall():
            own = {"false": False, "1s": 1.0, "12": 1e12}.get(href.partition("=")[2], href.partition("=")[2])
            meta = {"dq_revisit": own} if own != "" else {}
            if "delayed" in href:
                meta["dq_delay"] = 8
            yield response.follow(href, meta=meta, dont_filter="unfiltered" in href, errback=self.errback)
        yield {"price": response.css("b::text").get()}

    def errback(self, failure):
        self.record("errback", failure.request.url.rpartition("/")[2])
""",
    before="import scrapy_dq\n",
)
FED_SPIDER = SPIDER.replace("(TreeSpider)", "(scrapy_dq.RedisSpider, TreeSpider)")
SETTINGS = {
    "DQ_REVISIT": "fixed:1s", "LOGSTATS_INTERVAL": 0, "RETRY_TIMES": 3, "DQ_WORKER_TTL": 3,
    "DQ_ROLLBACK_HORIZON": 1,
    "ITEM_PIPELINES": {},
}  # fmt: skip


Crawl = Callable[..., tuple[ChangingSite, Project]]


@pytest.fixture
def crawl(redis_url: str, make_project: MakeProject) -> Iterator[Crawl]:
    """Return a function that starts a site, and makes a project that crawls it from `/`."""
    sites: list[ChangingSite] = []

    def begin(
        settings: dict[str, Any] | None = None, spider: str = SPIDER, **pages: Answer
    ) -> tuple[ChangingSite, Project]:
        links = "".join(f"<a href='/{name}'>" for name in pages)
        site = ChangingSite({"/": Answer(links), **{f"/{name}": answer for name, answer in pages.items()}})
        sites.append(site.__enter__())
        project = make_project(
            [site.url("/")], redis_url=redis_url, spider=spider, settings=SETTINGS | (settings or {})
        )
        return site, project

    yield begin
    for site in sites:
        site.__exit__(None, None, None)


def visited(site: ChangingSite, least: int, *paths: str) -> None:
    """Wait until the site has received *least* more requests for each of *paths*."""
    before = Counter(hit.path for hit in site.hits)
    wait_until(lambda: all(site.count(p) - before[p] >= least for p in paths), "pages are visited", 20)


def done(project: Project) -> Counter[str]:
    """Return how often the callback of each page has run."""
    return Counter(event.path for event in project.events() if event.event == "done")


def end(worker: Worker) -> None:
    worker.terminate()
    assert worker.wait() == 0


def test_pages_are_visited_until_the_crawl_is_stopped(crawl: Crawl, look: Look) -> None:
    """A worker is killed, and another worker is started. Each page always has exactly one entry."""
    site, project = crawl(a=Answer("<a href='/b'>"), b=Answer("<a href='/a'>"))
    worker = project.start_worker()
    visited(site, 3, "/", "/a", "/b")
    worker.kill()
    worker = project.start_worker()
    visited(site, 3, "/", "/a", "/b")
    end(worker)
    census = look(project).census
    assert (census.waiting + census.delayed, census.in_flight, census.failed) == (3, 0, 0)
    assert look(project).phase == "open"


def test_an_unchanged_page_is_not_sent_and_reaches_no_callback(
    crawl: Crawl,
) -> None:
    """After a response with an ETag, the next request is conditional. A 304 means an unchanged page."""
    site, project = crawl(a=Answer("one", etag='"1"'))
    worker = project.start_worker()
    visited(site, 3, "/a")
    assert done(project)["a"] == 1
    site.pages["/a"] = Answer("two", etag='"2"')
    visited(site, 3, "/a")
    end(worker)
    conditions = [hit.condition for hit in site.hits if hit.path == "/a"]
    assert conditions[:3] == ["", '"1"', '"1"']
    assert '"2"' in conditions
    assert done(project)["a"] == 2
    assert not [event for event in project.events() if event.event == "errback"]
    assert worker.stats["dq/revisits/not_modified"] >= 4


def test_a_page_that_is_gone_is_not_visited_again(crawl: Crawl, look: Look) -> None:
    """Pages with 404 and 410 are gone. Other pages are visited as before."""
    site, project = crawl(a=Answer(), b=Answer(), c=Answer())
    worker = project.start_worker()
    visited(site, 2, "/a", "/b", "/c")
    site.pages |= {"/a": Answer(status=404), "/b": Answer(status=410)}

    def there() -> int:
        census = look(project).census
        return census.waiting + census.delayed + census.in_flight

    wait_until(lambda: there() <= 2, "two pages are gone", 20)
    counts = site.count("/a"), site.count("/b")
    visited(site, 2, "/", "/c")
    assert (site.count("/a"), site.count("/b")) == counts
    end(worker)
    assert worker.stats["dq/revisits/ended"] == 2


def test_each_visit_of_a_page_has_its_own_retries(crawl: Crawl, look: Look) -> None:
    """Even if all retries of a visit fail, the next visit comes at the usual time."""
    site, project = crawl(a=Answer("fine", busy=2))
    worker = project.start_worker()
    wait_until(lambda: done(project)["a"] >= 1, "the page is parsed", 20)
    assert site.count("/a") == 3
    site.pages["/a"].busy = 6  # one visit's 4 attempts fail, and 2 of the next visit's
    wait_until(lambda: site.pages["/a"].busy == 0 and done(project)["a"] >= 3, "the page is parsed again", 20)
    end(worker)
    assert look(project).census.delayed + look(project).census.waiting == 2
    assert worker.stats.get("retry/max_reached", 0) == 1


def test_a_page_whose_retry_cannot_be_stored_is_visited_again(
    crawl: Crawl,
) -> None:
    """The retry stays local. For the next visit, the page's original request is stored."""
    holding = {"DOWNLOADER_MIDDLEWARES": {"tree_project.holding.Holding": 1}}
    site, project = crawl(holding, a=Answer("fine", busy=2))
    (project.folder / "tree_project" / "holding.py").write_text(
        "class Holding:\n"
        "    def process_request(self, request, spider=None):\n"
        "        request.meta['held'] = lambda: None\n"
    )
    worker = project.start_worker()
    visited(site, 5, "/a")
    end(worker)
    assert worker.stats["dq/unencodable"] == 2


def test_a_page_that_moves_is_visited_at_its_new_place(crawl: Crawl, look: Look) -> None:
    """The old URL is not visited again, even if it was an unfiltered start request."""
    site, project = crawl(a=Answer(status=301, location="/b"))
    site.pages |= {
        "/b": Answer(),
        "/": Answer(status=302, location="/home"),
        "/home": Answer("<a href='/a'>"),
    }
    worker = project.start_worker()
    visited(site, 3, "/b", "/home")
    end(worker)
    assert (site.count("/"), site.count("/a")) == (1, 1)
    assert look(project).census.delayed + look(project).census.waiting == 2


@pytest.mark.parametrize("fed", [False, True])
def test_a_page_that_is_not_filtered_stays_known(crawl: Crawl, redis_url: str, fed: bool) -> None:
    """A worker that was declared dead may put the page again at any time. So Redis keeps the page's token."""
    site, project = crawl(None, FED_SPIDER if fed else SPIDER)
    site.pages |= {"/": Answer(status=302, location="/home"), "/home": Answer()}
    admitted = keys.prefix(project.name) + "admitted"
    with connect_url(redis_url) as client:
        if fed:
            client.rpush(f"{project.name}:start_urls", site.url("/"))
        worker = project.start_worker()
        visited(site, 5, "/home")  # this takes longer than DQ_ROLLBACK_HORIZON
        assert client.scard(admitted) == 1 + fed
        end(worker)


def test_a_page_that_moves_does_not_pass_on_its_conditions(
    crawl: Crawl,
) -> None:
    """The first request for the new URL is not conditional, even if the ETag is the same."""
    site, project = crawl(a=Answer("one", etag='"1"'))
    worker = project.start_worker()
    visited(site, 2, "/a")
    site.pages |= {"/b": Answer("one", etag='"1"'), "/a": Answer(status=301, location="/b")}
    visited(site, 3, "/b")
    end(worker)
    assert [hit.condition for hit in site.hits if hit.path == "/b"][:3] == ["", '"1"', '"1"']
    assert done(project)["b"] == 1
    assert not [event for event in project.events() if event.event == "errback"]


def test_a_request_can_have_its_own_policy(crawl: Crawl, look: Look, reasons: Reasons) -> None:
    """A policy may be seconds, words or False. Any other value makes a dead letter."""
    links = ("a?revisit=false", "b?revisit=1s", "c?revisit=fixed:1s", "d?revisit=banana", "e?revisit=12")
    site, project = crawl({"DQ_REVISIT": "meta"})
    site.pages |= {"/": Answer("".join(f'<a href="/{link}">' for link in links))}
    site.pages |= {f"/{link}": Answer() for link in links}
    worker = project.start_worker()
    visited(site, 3, "/b?revisit=1s", "/c?revisit=fixed:1s")
    end(worker)
    assert (site.count("/"), site.count("/a?revisit=false")) == (1, 1)
    assert look(project).census.delayed + look(project).census.waiting == 2
    assert sorted(reason.partition(":")[0] for reason in reasons(project)) == [
        "meta['dq_revisit'] = 'banana'", "meta['dq_revisit'] = 1000000000000.0",
    ]  # fmt: skip


def test_a_part_of_a_page_is_fetched_at_each_visit_of_the_page(
    crawl: Crawl, look: Look, redis_url: str
) -> None:
    """A request that a page yields with dont_filter is sent at each visit of the page, and only then."""
    site, project = crawl(a=Answer("<a href='/part?unfiltered'>"))
    site.pages["/part?unfiltered"] = Answer()
    worker = project.start_worker()
    visited(site, 8, "/a", "/part?unfiltered")
    admitted = keys.prefix(project.name) + "admitted"
    with connect_url(redis_url) as client:  # otherwise each visit would leave a token in Redis
        wait_until(lambda: client.scard(admitted) < site.count("/a") / 2, "tokens are forgotten", 20)
    end(worker)
    assert site.count("/part?unfiltered") <= site.count("/a") + 1  # only a kill may repeat the request
    assert look(project).census.delayed <= 2


@pytest.mark.parametrize("policy", ["fixed:1s", "meta"])
def test_a_start_payload_is_visited_as_a_page(crawl: Crawl, look: Look, redis_url: str, policy: str) -> None:
    """A start payload is a page, although it is not filtered. With "meta", its meta must have a policy."""
    settings = {"DQ_REVISIT": policy}
    site, project = crawl(settings, FED_SPIDER, a=Answer(), b=Answer())
    fed = {"url": site.url("/a"), "meta": {"dq_revisit": "fixed:1s"} if policy == "meta" else {}}
    with connect_url(redis_url) as client:
        client.rpush(f"{project.name}:start_urls", json.dumps(fed))
        if policy == "meta":
            client.rpush(f"{project.name}:start_urls", site.url("/b"))
    worker = project.start_worker()
    visited(site, 3, "/a")
    end(worker)
    assert look(project).census.delayed + look(project).census.waiting == 1


@pytest.mark.parametrize("broken", [Answer("raises"), Answer(status=500)], ids=["raises", "HTTP 500"])
def test_a_page_that_was_visited_once_is_visited_again_after_a_failure(
    crawl: Crawl, look: Look, broken: Answer
) -> None:
    """A page whose first visit fails is stored as failed, as without revisits."""
    spider = SPIDER.replace(", errback=self.errback", "")
    site, project = crawl({"RETRY_ENABLED": False}, spider, a=Answer("fine"), b=broken)
    worker = project.start_worker()
    visited(site, 2, "/a")
    site.pages["/a"] = broken
    visited(site, 3, "/a")
    end(worker)
    assert worker.stats["dq/revisits/failed"] >= 2
    assert site.count("/b") == 1
    assert look(project).census.failed == 1


def test_a_policy_can_be_added_and_removed_during_a_crawl(crawl: Crawl, look: Look) -> None:
    """Requests from start() are already known. Without the policy, each page is crawled one last time."""
    site, project = crawl()
    site.pages |= {"/": Answer("<a href='/a?delayed'>"), "/a?delayed": Answer()}
    worker = project.start_worker(settings={"DQ_REVISIT": ""})
    wait_until(lambda: look(project).census.delayed == 1 and done(project)[""] == 1, "a page waits")
    end(worker)
    worker = project.start_worker()
    visited(site, 3, "/a?delayed")
    end(worker)
    assert worker.stats["dq/seeds/known"] == 1
    assert site.count("/") == 1
    counted = site.count("/a?delayed")
    project.run_to_end(settings={"DQ_REVISIT": ""})
    assert site.count("/a?delayed") == counted + 1
    assert not [event for event in project.events() if event.event == "visit"]


@pytest.mark.parametrize("kind", ["body", "field"])
def test_a_change_of_the_body_or_a_field_is_detected(crawl: Crawl, kind: str) -> None:
    """A page has changed if its body differs, or, with `field`, if this field of its items differs."""
    policy = "tree_project.policy.Noting" + ", field=price" * (kind == "field")
    site, project = crawl({"DQ_REVISIT": policy}, a=Answer("<b>1</b>"))
    (project.folder / "tree_project" / "policy.py").write_text(
        "import scrapy_dq, tree_project.settings as settings\n"
        "class Noting(scrapy_dq.RevisitPolicy):\n"
        "    def interval(self, response, last_s, changed):\n"
        "        if response.url.endswith('/a'):\n"
        "            with open(settings.RECORD_PATH + '.changes', 'a') as file:\n"
        "                file.write(f'{response.text} {last_s} {changed}\\n')\n"
        "        return 1\n"
    )
    changes = project.record.with_suffix(".txt.changes")
    worker = project.start_worker()
    visited(site, 2, "/a")
    site.pages["/a"].body = "<b>1</b> and an advertisement"
    visited(site, 3, "/a")
    site.pages["/a"].body = "<b>2</b>"
    visited(site, 3, "/a")
    end(worker)
    noted = changes.read_text().splitlines()
    assert noted[:2] == ["<b>1</b> None None", "<b>1</b> 1.0 False"]
    ads = [line.split()[-1] for line in noted if "advertisement" in line]
    assert ads[:2] == (["True", "False"] if kind == "body" else ["False", "False"])
    assert [line.split()[-1] for line in noted if line.startswith("<b>2</b>")][:2] == ["True", "False"]


@pytest.mark.parametrize("returns", ["'text'", "1e12", "1 / 0"])
def test_a_policy_that_fails_is_reported_once(crawl: Crawl, look: Look, returns: str) -> None:
    """The page is still visited again. If the policy fails at the first visit, the next is a day later."""
    site, project = crawl({"DQ_REVISIT": "tree_project.policy.Bad"}, a=Answer(), b=Answer())
    (project.folder / "tree_project" / "policy.py").write_text(
        "import scrapy_dq\n"
        "class Bad(scrapy_dq.RevisitPolicy):\n"
        "    def interval(self, response, last_s, changed):\n"
        f"        return {returns}\n"
    )
    worker = project.start_worker()
    wait_until(lambda: look(project).census.delayed == 3, "all pages are visited", 20)
    end(worker)
    assert site.count("/a") == 1
    log = worker.text
    assert log.count("The policy of DQ_REVISIT fails") == 1
    assert worker.stats["dq/revisits/policy_failed"] == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"DQ_REVISIT": "fixd:1d"}, 'DQ_REVISIT = \'fixd:1d\': expected "fixed:1d", "adaptive:1h..30d"'),
        ({"DQ_REVISIT": "no.such.Policy"}, "(ModuleNotFoundError: No module named 'no')"),
        ({"DQ_REVISIT": "scrapy.Spider"}, "or a subclass of scrapy_dq.RevisitPolicy"),
        ({"DQ_SEEN_TTL": 100, "SCHEDULER_PERSIST": True}, "DQ_REVISIT: both visit pages again"),
    ],
    ids=["kind", "module", "class", "ttl"],
)
def test_an_invalid_policy_is_refused(
    crawl: Crawl, settings: dict[str, Any], says: str, errors: Errors
) -> None:
    """One line refuses the policy before the worker joins the crawl."""
    site, project = crawl(settings)
    worker = project.start_worker()
    worker.wait()
    (line,) = errors(worker)
    assert says in line
    assert not site.hits
