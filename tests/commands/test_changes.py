"""The commands that change a crawl, as a user runs them: in their own processes, beside real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scrapy_dq.frontier import peek
from support.given import MakeProject, StartRedis, StartSite
from support.project import Project
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq, run_dq_each
from support.tree_spider import FED, spider_of
from support.waiting import wait_until

PASSWORD = "s3cr3t-w0rd"
FAILS = spider_of("""
    def parse(self, response):
        if not Path("mended").exists() and page_path(response) != "/p/0":
            raise ValueError("not mended")
        return super().parse(response)
""")
ASKS = spider_of("""
    async def start(self):
        while not Path("enough").exists():
            yield Request(f"{START_URLS[0]}?by={os.getpid()}")
            await asyncio.sleep(0.02)
""")


@pytest.fixture
def look(server: RedisServer) -> Iterator[Callable[[Project], Any]]:
    """Yield a function that reads the state of a project's crawl."""
    with server.client() as client:
        yield lambda project: peek(client, project.name)


def start_dq(project: Project, *words: str) -> subprocess.Popen[str]:
    """Start a command that reads from a pipe. The caller has to end the command."""
    return subprocess.Popen(
        project.command("dq", *words), cwd=project.folder, env=project.environ(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_a_live_crawl_takes_pushed_requests_and_is_not_cleared(
    make_project: MakeProject, start_site: StartSite, server: RedisServer, look: Callable[[Project], Any]
) -> None:
    """A waiting worker crawls pushed requests soon. `clear` needs --force while the worker lives."""
    site = start_site(pages=5)
    project = make_project([], redis_url=server.url, spider=FED)
    worker = project.start_worker()
    worker.wait_for_log("Fed by")
    done = run_dq(project, "push", project.name, "--priority", "2", site.url("/p/3"), site.url("/p/4"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "requests pushed  2" in done.stdout
    assert "Continue with" not in done.stdout
    wait_until(lambda: set(site.hits()) == {"/p/3", "/p/4"}, "the worker crawls what was pushed", 3)
    refused, cleared = run_dq_each(
        project,
        [
            ["clear", project.name, "--all", "--yes"],
            ["clear", "--crawl", project.name, "--all", "--yes", "--force", "--json"],
        ],
    )
    assert refused.returncode == 1
    assert f"{worker.pid}-" in refused.stderr.splitlines()[-1]
    assert "alive: nothing was deleted" in refused.stderr
    assert json.loads(cleared.stdout)["deleted"]["workers"] == 1
    assert worker.wait(20) == 0
    assert worker.close_reason == "frontier_lost"
    for done in (refused, cleared):
        assert PASSWORD not in done.stdout + done.stderr


def test_a_push_that_is_killed_does_not_keep_a_run_open(
    make_project: MakeProject, start_site: StartSite, server: RedisServer, look: Callable[[Project], Any]
) -> None:
    """The worker waits for a live push and crawls its pages. After the push is killed, the run finishes."""
    site = start_site(pages=3)
    project = make_project([site.start_url], redis_url=server.url, settings={"DQ_WORKER_TTL": 60})
    push = start_dq(project, "push", project.name, "--file", "-")
    assert push.stdin is not None
    push.stdin.write(f"{site.url('/p/2?pushed')}\n")
    push.stdin.flush()
    wait_until(lambda: look(project).census.waiting == 1, "the first line is pushed", 20)
    worker = project.start_worker()
    wait_until(lambda: look(project).census.done == 4, "all is crawled", 20)
    assert worker.running
    assert look(project).phase == "open"
    os.kill(push.pid, signal.SIGKILL)
    push.communicate()
    assert worker.wait(10) == 0
    assert worker.close_reason == "finished"
    assert "/p/2?pushed" in site.hits()
    assert look(project).phase == "finished"


def test_an_interrupted_push_reports_how_many_requests_it_stored(
    make_project: MakeProject, server: RedisServer, look: Callable[[Project], Any]
) -> None:
    """The user presses Ctrl-C while the push waits for more lines. Earlier lines are stored."""
    project = make_project([], redis_url=server.url)
    push = start_dq(project, "push", project.name, "--file", "-", "--json")
    assert push.stdin is not None
    push.stdin.write("http://a.example/1\nhttp://a.example/2\nhttp://a.exam")
    push.stdin.flush()
    wait_until(lambda: look(project).census.waiting == 2, "two lines are pushed", 20)
    os.kill(push.pid, signal.SIGINT)
    out, err = push.communicate(timeout=120)
    assert push.returncode == 1
    assert json.loads(out)["pushed"] == 2
    assert err.splitlines()[-1] == "scrapy dq push: interrupted"
    overview = look(project)
    assert (overview.members, overview.phase, overview.census.waiting) == ([], "open", 2)


def test_failed_pages_are_crawled_again_after_the_cause_is_mended(
    make_project: MakeProject, start_site: StartSite, server: RedisServer, look: Callable[[Project], Any]
) -> None:
    """`retry` opens the finished run again. Only failed pages and their links are crawled, each once."""
    site = start_site(pages=13)
    project = make_project([site.start_url], redis_url=server.url, spider=FAILS)
    assert project.run_worker().close_reason == "finished"
    failed = look(project).census.failed
    assert failed == len(site.hits()) - 1 > 0
    (project.folder / "mended").touch()
    done = run_dq(project, "retry", project.name, "--all", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Back in the backlog: {failed} failed requests." in done.stdout
    assert f"Continue with: scrapy crawl {project.name}" in " ".join(done.stdout.split())
    worker = project.run_to_end()
    assert f"resumed run 0; {failed} waiting" in worker.text
    assert project.count("done") == dict.fromkeys(site.paths, 1)
    assert look(project).census.failed == 0


def test_workers_also_forget_pages_in_their_own_memory(
    make_project: MakeProject, start_site: StartSite, server: RedisServer
) -> None:
    """Each worker yields its own page repeatedly. After `clear --seen`, both pages are crawled again."""
    site = start_site(pages=1)
    project = make_project([site.start_url], redis_url=server.url, spider=ASKS)
    workers = project.start_workers(2)
    pages = [f"/p/0?by={worker.pid}" for worker in workers]
    wait_until(lambda: site.hits() == dict.fromkeys(pages, 1), "each page is crawled", 20)
    done = run_dq(project, "clear", project.name, "--seen", *map(site.url, pages))
    assert "forgotten        2" in done.stdout
    wait_until(lambda: site.hits() == dict.fromkeys(pages, 2), "each page is crawled again", 5)
    (project.folder / "enough").touch()
    assert project.wait() == ["finished", "finished"]
    assert site.hits() == dict.fromkeys(pages, 2)
    assert all(worker.stats["dq/duplicates"] > 5 for worker in workers)


def test_commands_that_join_do_not_warn_about_a_missing_aof(
    make_project: MakeProject, start_redis: StartRedis
) -> None:
    """Without an AOF, a worker's log has a warning, but commands that join print none."""
    project = make_project([], redis_url=start_redis().url)
    name = project.name
    for done in run_dq_each(project, [["push", name, "http://127.0.0.1:9/"], ["adopt", name]]):
        assert done.stderr == ""
    assert "has no AOF" in project.run_worker(settings={"RETRY_ENABLED": False}).text


def test_requests_are_pushed_to_a_crawl_in_the_embedded_redis(make_project: MakeProject) -> None:
    """Each command starts the embedded Redis for a short time. The request is still there afterwards."""
    project = make_project([])
    pushed, looked, cleared = run_dq_each(
        project,
        [["push", project.name, "http://a.example/1"], ["status", project.name, "--no-rate", "--json"],
         ["clear", project.name, "--all", "--yes"]],
    )  # fmt: skip
    assert "requests pushed  1" in pushed.stdout
    assert json.loads(looked.stdout)["waiting"] == 1
    assert "is deleted" in cleared.stdout
