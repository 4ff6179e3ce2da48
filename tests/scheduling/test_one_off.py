"""`scrapy shell`, `fetch`, `view`, `parse` and `check` leave a crawl unchanged, and need no Redis."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from scrapy_dq.frontier import peek
from support.given import MakeProject, StartProxy, StartSite
from support.live_frontier import HandWorker, LiveFrontier, put
from support.project import Project
from support.tree_site import TreeSite
from support.tree_spider import spider_of

START = "/start?s=0"
WAITING = 50
IN_FLIGHT = 3
SHELL = "print('status', response.status, crawler.spidercls.name)"
SPIDER = spider_of("""
    def parse(self, response):
        yield from super().parse(response)
    parse.__doc__ = f'''Follow the tree.

    @url {PAGE}
    @returns items 1 1
    @returns requests 4 4
    '''
""")


@pytest.fixture
def site(start_site: StartSite) -> TreeSite:
    return start_site(pages=9)


@pytest.fixture
def crawl(redis_url: str, crawl_name: str) -> Iterator[LiveFrontier]:
    """Yield a crawl with waiting entries, and entries in flight with a worker on another host."""
    with closing(LiveFrontier(redis_url, crawl_name)) as live:
        worker = HandWorker(live, "elsewhere")
        worker.exchange(*(put(n) for n in range(WAITING + IN_FLIGHT)), want=IN_FLIGHT)
        yield live


def run_all(project: Project, site: TreeSite) -> dict[str, str]:
    """Run the five commands at the same time, and require exit status 0. Return each output with its log."""
    name, page = project.name, site.start_url
    commands = {
        "shell": ("shell", "-c", SHELL, "--spider", name, page),
        "fetch": ("fetch", "--spider", name, page),
        "view": ("view", "--spider", name, page),
        "parse": ("parse", "--spider", name, "--depth", "2", page),
        "check": ("check", name),
    }
    environ = project.environ() | {"BROWSER": "true"}  # the program that `view` opens, without effect
    running = {
        command: subprocess.Popen(
            project.command(*words),
            cwd=project.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, words in commands.items()
    }
    try:
        printed = {command: process.communicate(timeout=120)[0] for command, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait(10)
    for command, process in running.items():
        assert process.returncode == 0, printed[command]
        assert "Traceback" not in printed[command], printed[command]
    return printed


def assert_all_worked(printed: dict[str, str], project: Project, site: TreeSite) -> None:
    assert f"status 200 {project.name}" in printed["shell"]
    assert '<a href="/p/4">4</a>' in printed["fetch"]
    assert "Spider closed (finished)" in printed["view"]
    assert "{'path': '/p/1'}" in printed["parse"]  # an item of depth 2
    assert "Ran 2 contracts" in printed["check"]
    assert "OK" in printed["check"]
    # The commands fetch only their own pages: all five fetch the root, and one also fetches its children.
    # (The shell of Scrapy 2.13 also runs start().)
    hits = {path: times for path, times in site.hits().items() if path != START}
    assert hits == {"/p/0": 5} | {f"/p/{child}": 1 for child in (1, 2, 3, 4)}


def test_one_off_commands_do_not_touch_a_waiting_crawl(
    crawl: LiveFrontier,
    redis_url: str,
    site: TreeSite,
    make_project: MakeProject,
    start_proxy: StartProxy,
) -> None:
    """Fifty entries wait, and three are in flight. No command sends anything to Redis."""
    proxy = start_proxy(redis_url)
    project = make_project(
        [site.url(START)],
        redis_url=proxy.url,
        spider=SPIDER,
        settings={"PAGE": site.start_url},
        name=crawl.crawl,
    )
    before = crawl.dump()
    printed = run_all(project, site)
    assert_all_worked(printed, project, site)
    assert proxy.commands == {}
    assert crawl.dump() == before
    census = peek(crawl.redis, crawl.crawl).census
    assert (census.waiting, census.in_flight) == (WAITING, IN_FLIGHT)


def test_one_off_commands_start_no_embedded_redis(site: TreeSite, make_project: MakeProject) -> None:
    """ADDONS enables scrapy_dq, but the five commands need no Redis. `%(dq_worker)s` is "local"."""
    project = make_project(
        [site.url(START)],
        spider=SPIDER,
        settings={
            "PAGE": site.start_url,
            "SCHEDULER": None,
            "DUPEFILTER_CLASS": None,
            "ADDONS": {"scrapy_dq.Addon": 500},
            "FEEDS": {"items-%(dq_worker)s.jsonl": {"format": "jsonlines"}},
        },
    )
    assert_all_worked(run_all(project, site), project, site)
    assert not (project.folder / ".scrapy").exists()
    assert (project.folder / "items-local.jsonl").exists()
