"""A stopped crawl is resumed. Nothing is lost, and only unfinished pages are crawled again."""

from __future__ import annotations

import os
import re
import signal
import time

from crawl.conftest import Plant
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import Overview, peek
from support.fault_spiders import GATHERED
from support.project import Project
from support.redis_server import RedisServer
from support.tree_spider import spider_of
from support.waiting import Stopwatch, wait_until
from support.worker import wait_all

# The callback of /work runs until the other pages have arrived.
WORKS = spider_of("""
    async def parse(self, response):
        self.record("start", page_path(response))
        if "work" in response.url:
            await asyncio.sleep(6)
        self.record("done", page_path(response))
        yield {"path": page_path(response)}
""")


def let_go(project: Project) -> None:
    for worker in project.workers:
        worker.wait_for_log("] INFO: Crawl '")
    (project.folder / "go").touch()


def overview_of(redis: RedisServer, project: Project) -> Overview:
    with connect_url(redis.url) as client:
        return peek(client, project.name)


def wait_for_pages(project: Project, count: int) -> None:
    wait_until(lambda: len(project.count("done")) >= count, f"{count} pages are done", 30)


def repeats(project: Project) -> int:
    done = project.count("done")
    return sum(done.values()) - len(done)


def test_a_stopped_crawl_resumes_without_repeats(plant: Plant) -> None:
    """One worker gets SIGTERM, the other Ctrl-C. They finish the pages in progress. All other pages wait."""
    redis, site, project = plant(spider=GATHERED, pages=150, latency_s=0.2)
    workers = project.start_workers(2)
    let_go(project)
    wait_for_pages(project, 25)

    workers[0].terminate()
    os.killpg(workers[1].pid, signal.SIGINT)  # a terminal signals the process group

    assert wait_all(workers, 20) == ["shutdown", "shutdown"]
    stopped = overview_of(redis, project)
    assert (stopped.phase, stopped.members, stopped.census.in_flight) == ("open", [], 0)
    assert stopped.census.waiting > 0
    assert stopped.census.done == len(project.count("done"))
    left = f"{stopped.census.waiting} waiting, 0 in flight"  # in the log of the last worker to leave
    told = "this worker stops (shutdown) before the run has finished: "
    assert all(told in worker.text for worker in workers)
    assert any(told + left in worker.text for worker in workers)
    last = project.run_to_end()
    assert f"resumed run 0; {stopped.census.waiting} waiting, 0 in flight" in last.text
    assert project.count("done") == dict.fromkeys(site.paths, 1)


def test_a_page_that_arrives_after_the_grace_is_left_to_the_next_worker(plant: Plant) -> None:
    """Running callbacks complete. The worker neither parses nor retries pages that arrive after the grace."""
    targets = ["/work?s=0", "/late?s=3", "/down?s=3&status=503"]
    redis, site, project = plant(targets=targets, spider=WORKS, settings={"DQ_SHUTDOWN_GRACE": 1}, pages=1)
    worker = project.start_worker()
    wait_until(
        lambda: site.hits().total() == 3 and project.count("start"), "all pages are requested, one is parsed"
    )
    worker.terminate()
    worker.wait(40)
    assert worker.close_reason == "shutdown"
    assert project.count("done") == {"/work?s=0": 1}
    assert "2 downloads are given up" in worker.text
    assert not re.search("ERROR|Traceback|Unhandled|Error while", worker.text)
    assert overview_of(redis, project).census.waiting == 3  # also the page whose callback ended late
    project.run_to_end(settings={"RETRY_ENABLED": False, "HTTPERROR_ALLOW_ALL": True})
    assert project.count("done") == {"/work?s=0": 2, "/late?s=3": 1, "/down?s=3&status=503": 1}


def test_a_close_without_redis_ends_and_loses_nothing(plant: Plant) -> None:
    """Without an answer from Redis, a stop takes little longer than DQ_SHUTDOWN_GRACE, with one ERROR.

    The grace begins with the signal, not with the end of the pages in progress.
    """
    grace_s, timeout_s = 2, 0.5
    params = {"socket_timeout": timeout_s}
    settings = {"CONCURRENT_REQUESTS": 4, "DQ_SHUTDOWN_GRACE": grace_s, "REDIS_PARAMS": params}
    redis, site, project = plant(settings=settings, pages=60, latency_s=0.1)
    worker = project.start_worker()
    wait_for_pages(project, 20)
    redis.suspend()
    try:
        wait_until(lambda: "Redis does not answer" in worker.text, "the outage is noticed")
        stopped_at, clock = time.monotonic(), Stopwatch()
        worker.terminate()
        worker.wait()
        # The limit includes the grace and one last try, which may have to connect first.
        assert clock.seconds < grace_s + 2 * timeout_s + 1.5
        assert time.monotonic() - stopped_at > grace_s - 0.5
    finally:
        redis.resume()
    assert worker.close_reason == "shutdown"
    errors = re.findall(r"^.* ERROR: .*$", worker.text, re.MULTILINE)
    assert len(errors) == 1, errors
    assert re.search("could not leave within DQ_SHUTDOWN_GRACE: Redis does not answer", errors[0])
    held = overview_of(redis, project).census.in_flight
    assert held > 0

    project.run_to_end()
    assert set(project.count("done")) == site.paths
    assert repeats(project) <= held
