"""Runs of a crawl: when a new run begins, which keys a finished run leaves, and what crawls share."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from crawl.conftest import Plant
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.embedded.directory import PID, RedisDirectory
from scrapy_dq.frontier import peek
from support import stored
from support.given import MakeProject, StartSite
from support.redis_server import RedisServer
from support.tree_spider import spider_of
from support.waiting import wait_until

NEW_LINK = spider_of("""
    new = ""

    def parse(self, response):
        yield from super().parse(response)
        if self.new:
            yield response.follow(self.new)
""")


def key_names(redis: RedisServer, crawl: str) -> set[str]:
    """Return the names of the crawl's Redis keys, without their prefix, and without its history."""
    with connect_url(redis.url) as client:
        found = {key.decode().rpartition("}:")[2] for key in stored.crawl_keys(client, crawl)}
    return found - set(stored.HISTORY)


def test_a_crawl_after_a_finished_one_is_a_new_run(plant: Plant) -> None:
    """The new run crawls all pages again. A finished run leaves only its tombstone in Redis."""
    redis, site, project = plant(pages=20)

    project.run_to_end()
    assert project.count("done") == dict.fromkeys(site.paths, 1)
    assert key_names(redis, project.name) == {"meta"}

    second = project.run_to_end()
    assert "new run 1; 0 waiting, 0 in flight, 0 seen" in second.text
    assert project.count("done") == dict.fromkeys(site.paths, 2)
    assert key_names(redis, project.name) == {"meta"}


STARTING = spider_of("""
    RECEIVERS = {"idle": signals.spider_idle}

    def idle(self):
        self.record("idle", "asks for more")

    async def start(self):
        self.record("began", "start()")
        async for request in super().start():
            yield request
""")


def test_a_run_reports_that_all_its_start_requests_were_already_seen(plant: Plant) -> None:
    """As in a SitemapSpider, the start requests are filtered. So the second run crawls nothing."""
    spider = STARTING.replace("yield request", "yield request.replace(dont_filter=False)")
    _, site, project = plant(spider=spider, settings={"SCHEDULER_PERSIST": True}, pages=5)
    first, second = project.run_worker(), project.run_worker()
    assert project.count("done") == dict.fromkeys(site.paths, 1)
    assert "nothing was crawled in this run" not in first.text
    assert "nothing was crawled in this run" in second.text


def test_persist_keeps_seen_for_the_next_run(plant: Plant) -> None:
    """With SCHEDULER_PERSIST, the second run crawls only its start requests and new pages."""
    settings = {"SCHEDULER_PERSIST": True}
    redis, site, project = plant(spider=NEW_LINK, settings=settings, pages=20)

    project.run_worker()
    assert key_names(redis, project.name) == {"meta", "seen"}
    assert project.count("done") == dict.fromkeys(site.paths, 1)
    second = project.run_worker(args={"new": "/new?s=0"})

    assert "new run 1; 0 waiting, 0 in flight, 19 seen" in second.text
    assert second.close_reason == "finished"
    assert project.count("done", pids=[second.pid]) == {"/p/0": 1, "/new?s=0": 1}
    assert key_names(redis, project.name) == {"meta", "seen"}


def test_a_named_run_is_crawled_once(plant: Plant) -> None:
    """A worker closes if the run with its DQ_RUN_NAME is finished. Another name starts a new run.

    The late worker calls neither start() nor spider_idle handlers, because their requests would be dropped.
    """
    settings = {"FEEDS": {"items.json": {"format": "json", "overwrite": True}}}
    redis, site, project = plant(spider=STARTING, settings=settings, pages=20)

    first = project.run_worker(settings={"DQ_RUN_NAME": "monday"})
    items = (project.folder / "items.json").read_text()
    late = project.run_worker(settings={"DQ_RUN_NAME": "monday"})
    assert (project.folder / "items.json").read_text() == items
    assert len(json.loads(items)) == 20
    after_monday = project.count("done")
    next_day = project.run_worker(settings={"DQ_RUN_NAME": "tuesday"})

    assert [w.close_reason for w in (first, late, next_day)] == ["finished"] * 3
    assert after_monday == dict.fromkeys(site.paths, 1)
    assert "run 'monday' is finished: nothing to do" in late.text
    assert "downloader/request_count" not in late.stats
    for what in ("began", "idle"):
        assert {event.pid for event in project.events() if event.event == what} == {first.pid, next_day.pid}
    assert "new run 1" in next_day.text
    assert project.count("done") == dict.fromkeys(site.paths, 2)
    assert key_names(redis, project.name) == {"meta"}


@pytest.fixture
def embedded_folder() -> Iterator[list[Path]]:
    """Yield a list. After the test, the embedded Redis of each folder in the list is killed."""
    folders: list[Path] = []
    yield folders
    for folder in folders:
        if RedisDirectory(folder).server_lives():
            os.kill(int((folder / PID).read_text()), signal.SIGKILL)


def test_the_embedded_redis_carries_a_crawl_through_the_death_of_all_workers(
    start_site: StartSite,
    make_project: MakeProject,
    embedded_folder: list[Path],
) -> None:
    """Without a REDIS_URL, workers share a server of the project. The last worker stops the server.

    After a kill of all workers, the server still has the crawl, and the next worker continues it.
    """
    site = start_site(pages=120, latency_s=0.15)
    project = make_project([site.start_url], settings={"DQ_RUN_NAME": "once"})
    folder = project.folder / ".scrapy" / "dq"
    embedded_folder.append(folder)
    workers = project.start_workers(2, settings={"CONCURRENT_REQUESTS": 2})
    wait_until(lambda: len({event.pid for event in project.events()}) == 2, "both workers crawl", 20)
    wait_until(lambda: len(project.count("done")) >= 20, "20 pages are done", 20)
    server = int((folder / PID).read_text())
    for worker in workers:
        worker.kill()
    assert psutil.pid_exists(server)
    with connect_url(f"unix://{RedisDirectory(folder).socket()}") as client:
        held = peek(client, project.name).census.in_flight

    last = project.run_to_end()
    assert re.search(rf"Embedded Redis: joined \w+ [\d.]+, pid {server}", last.text)
    done = project.count("done")
    assert set(done) == site.paths
    assert sum(done.values()) - len(done) <= held
    assert not RedisDirectory(folder).server_lives()
    with suppress(psutil.NoSuchProcess):
        # The server has ended, but its parent is gone. If process 1 does not reap the server, it stays a
        # zombie.
        assert psutil.Process(server).status() == psutil.STATUS_ZOMBIE
    others = stat.S_IRWXG | stat.S_IRWXO
    for path in (folder, *folder.rglob("*")):
        assert not path.lstat().st_mode & others, path

    late = project.run_worker()

    assert "run 'once' is finished: nothing to do" in late.text
    assert project.count("done") == done
    assert not RedisDirectory(folder).server_lives()
