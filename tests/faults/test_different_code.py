"""Workers with different code share a crawl. A host with newer code must not end the crawl."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import peek
from scrapy_dq.scheduling.declined import MAX_IN_A_ROW
from support.given import MakeProject, StartSite
from support.project import Project
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.tree_site import TreeSite
from support.tree_spider import spider_of
from support.waiting import wait_until

PAGES = 120
SPIDER = spider_of(
    """
    def parse(self, response):
        path = page_path(response)
        self.record("start", path)
        meta = {"found": Found(path)} if CAUSE == "class" else {}
        callback = self.parse_new if NEW and CAUSE == "callback" else self.parse_old
        for link in response.css("a"):
            yield response.follow(link, callback=callback, meta=meta)
        yield {"path": path}
        self.record("done", path)

    if NEW and CAUSE == "callback":
        def parse_new(self, response):
            yield from self.parse(response)
    else:
        def parse_old(self, response):
            yield from self.parse(response)

@dataclass
class Found:
    path: str


if NEW and CAUSE == "class":
    Found.__qualname__ = Found.__name__ = "Moved"
    Moved = Found
""",
    before="from dataclasses import dataclass\nNEW = os.path.exists('new_code')\n",
)
Made = tuple[TreeSite, Project]


@pytest.fixture
def make(redis_server: RedisServer, start_site: StartSite, make_project: MakeProject) -> Callable[..., Made]:
    """Return a function that makes a site and a project. The file `new_code` switches to the new code."""

    def make(cause: str = "callback", **settings: object) -> Made:
        site = start_site(pages=PAGES)
        settings = {"CONCURRENT_REQUESTS": 4, "CAUSE": cause, **settings}
        url = redis_server.url
        return site, make_project([site.start_url], redis_url=url, settings=settings, spider=SPIDER)

    return make


def deploy(project: Project) -> None:
    """Let workers that start from now on have the new code."""
    (project.folder / "new_code").touch()


def roll_back(project: Project) -> None:
    """Let workers that start from now on have the old code."""
    (project.folder / "new_code").unlink()


def errors_in(log: str) -> list[str]:
    return [line for line in log.splitlines() if " ERROR: " in line]


@pytest.mark.parametrize("cause", ["callback", "class"])
def test_a_worker_with_other_code_leaves_and_the_others_finish(
    make: Callable[..., Made], redis_server: RedisServer, cause: str
) -> None:
    """The worker logs one ERROR and returns its leases. Every page is crawled, and none is a dead letter."""
    site, project = make(cause)
    old = project.start_worker()
    wait_until(lambda: len(project.count()) > 3, "some pages are done")
    site.set_latency(2)
    deploy(project)
    new = project.run_worker()
    site.set_latency(0)
    old.wait(120)
    assert new.close_reason == "cannot_serve", new.text
    assert len(errors_in(new.text)) == 1, new.text
    for part in (
        f"could not serve {MAX_IN_A_ROW} stored requests in a row",
        "ProjectSpider",
        "http://",
        "DQ_CRAWL",
    ):
        assert part in errors_in(new.text)[0]
    assert new.text.count("This worker cannot serve") == 1
    assert old.close_reason == "finished", old.text
    assert len(project.count()) == PAGES
    with connect_url(redis_server.url) as client:
        assert peek(client, project.name).census.dead == 0


def test_a_crew_with_other_code_exits_with_an_error_and_the_right_code_continues(
    make: Callable[..., Made],
) -> None:
    """No worker of the crew can serve the backlog, but no request is lost."""
    _, project = make()
    project.run_worker(settings={"CLOSESPIDER_PAGECOUNT": "20"})
    deploy(project)
    crew = run_dq(project, "crawl", project.name, "-w", "2")
    assert crew.returncode == 1, crew.stdout + crew.stderr
    assert "cannot_serve" in crew.stdout
    assert "could not serve" in crew.stderr
    assert "Nothing was left to do" not in crew.stdout
    roll_back(project)
    project.run_to_end()
    assert len(project.count()) == PAGES


def test_a_run_with_requests_that_no_worker_can_serve_is_not_finished(make: Callable[..., Made]) -> None:
    """The requests become dead letters. After a retry, a worker with the right code crawls them."""
    _, project = make(DQ_MAX_PAGES=PAGES - 4)
    project.run_worker()
    left = PAGES - len(project.count())
    assert 0 < left < MAX_IN_A_ROW
    deploy(project)
    last = project.run_worker(settings={"DQ_MAX_PAGES": "0"})
    assert last.close_reason == "unserved", last.text
    assert f"{left} requests became dead letters" in last.text
    listed = run_dq(project, "dead", project.name, "--json")
    assert "parse_old" in listed.stdout, listed.stderr
    assert json.loads(run_dq(project, "status", project.name, "--json").stdout)["unserved"] == left
    roll_back(project)
    retried = run_dq(project, "retry", project.name, "--dead", "--all", "--yes")
    assert retried.returncode == 0, retried.stderr
    project.run_to_end(settings={"DQ_MAX_PAGES": "0"})
    assert len(project.count()) == PAGES


def test_the_next_run_crawls_pages_that_no_worker_could_serve(make: Callable[..., Made]) -> None:
    """Even with SCHEDULER_PERSIST, the pages that no worker could serve are removed from `seen`."""
    _, project = make(DQ_MAX_PAGES=PAGES - 4, SCHEDULER_PERSIST=True)
    project.run_worker()
    missing = {f"/p/{k}" for k in range(PAGES)} - set(project.count())
    deploy(project)
    assert project.run_worker(settings={"DQ_MAX_PAGES": "0"}).close_reason == "unserved"
    links = project.run_worker(settings={"DQ_MAX_PAGES": "0"})
    assert links.close_reason == "finished", links.text
    # The next run crawls the start page and follows its new links.
    assert {path for path in missing if path in project.count()} == {
        path for path in missing if int(path.removeprefix("/p/")) <= 4
    }
