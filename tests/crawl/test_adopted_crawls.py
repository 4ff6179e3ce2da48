"""A crawl that scrapy-redis or Scrapy has begun is adopted and completed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from support.given import MakeProject, StartRedis, StartSite
from support.project import PLAIN, Project
from support.scrapy_redis_crawl import SCRAPY_REDIS, MeshSpider, interrupt, run_dq
from support.tree_site import TreeSite
from support.tree_spider import spider_source
from support.waiting import wait_until

PAGES = 150


@pytest.mark.parametrize("queue", ["PriorityQueue", "FifoQueue", "LifoQueue"])
def test_a_crawl_of_scrapy_redis_is_adopted_and_ends_complete(
    queue: str,
    start_redis: StartRedis,
    start_site: StartSite,
    make_project: MakeProject,
) -> None:
    """A crawl is interrupted and adopted. Two workers complete it. Each page is crawled once.

    The start page is crawled twice: scrapy-redis does not record requests with dont_filter, so after the
    adoption no record shows that this request was done.
    """
    site = start_site(pages=PAGES, fan_out=2, latency_s=0.02)
    redis = start_redis(appendonly=True)
    spider = spider_source(MeshSpider)
    given = {"CONCURRENT_REQUESTS_PER_DOMAIN": 4, "SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}"}
    project = make_project([site.start_url], redis_url=redis.url, spider=spider, settings=given)
    interrupt(project, site, SCRAPY_REDIS, 0.4)
    half = project.count("done")
    with redis.client() as client:
        keys = [f"{project.name}:requests", f"{project.name}:dupefilter"]
        before = [client.dump(key) for key in keys]

        adopted = run_dq(project, "adopt", project.name, "--trust-pickle")

        assert adopted.returncode == 0, adopted.stdout + adopted.stderr
        assert re.search(r"^dead letters +0$", adopted.stdout, re.MULTILINE)
        assert [client.dump(key) for key in keys] == before  # adopting has not changed the source
    settings = travels(project) if queue == "FifoQueue" else {}
    assert_ends_complete(project, site, half, starts=2, settings=settings)


@pytest.mark.parametrize("queue", ["PickleLifoDiskQueue", "MarshalFifoSQLiteQueue"])
def test_a_crawl_of_a_jobdir_is_adopted_and_ends_complete(
    queue: str,
    start_redis: StartRedis,
    start_site: StartSite,
    make_project: MakeProject,
) -> None:
    """A crawl of Scrapy's own scheduler is also adopted, but not while it runs."""
    site = start_site(pages=PAGES, fan_out=2, latency_s=0.02)
    redis = start_redis(appendonly=True)
    given = {"CONCURRENT_REQUESTS_PER_DOMAIN": 4, "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{queue}"}
    spider = spider_source(MeshSpider)
    project = make_project([site.start_url], redis_url=redis.url, spider=spider, settings=given)
    jobdir = project.folder / "job"
    alone = {**PLAIN, "JOBDIR": str(jobdir)}
    interrupt(project, site, alone, 0.2)
    before = project.count("done")

    again = project.start_worker(settings=alone)
    wait_until(lambda: len(project.count("done")) > len(before) + 20, "more pages are done", 30)
    again.suspend()  # so that it cannot finish before the command runs
    refused = run_dq(project, "adopt", project.name, "--jobdir", str(jobdir))
    assert refused.returncode != 0
    assert f"process {again.pid} uses" in refused.stderr
    assert "stop its crawl with one Ctrl-C" in refused.stderr
    again.terminate()
    again.resume()
    again.wait(30)
    half = project.count("done")

    adopted = run_dq(project, "adopt", project.name, "--jobdir", str(jobdir))
    assert adopted.returncode == 0, adopted.stdout + adopted.stderr
    assert re.search(r"^dead letters +0$", adopted.stdout, re.MULTILINE)
    settings = travels(project) if queue == "MarshalFifoSQLiteQueue" else {}
    assert_ends_complete(project, site, half, starts=3, settings=settings)


def travels(project: Project) -> dict[str, Any]:
    """Export the crawl, import it with other settings and return these settings."""
    settings = {"DQ_SHARDS": 4, "DQ_ORDER": "lifo", "DQ_SEEN": "compact", "DQ_CRAWL": "elsewhere"}
    given = [part for name, value in settings.items() for part in ("-s", f"{name}={value}")]
    for command in (["export", project.name, "crawl.jsonl"], ["import", project.name, "crawl.jsonl", *given]):
        done = run_dq(project, *command)
        assert done.returncode == 0, done.stdout + done.stderr
    return settings


def assert_ends_complete(
    project: Project, site: TreeSite, half: Counter[str], starts: int, settings: dict[str, Any]
) -> None:
    """Let two workers finish. Assert that each page was crawled once, and the start page *starts* times."""
    first = len(project.workers)
    project.start_workers(2, settings=settings)
    reasons = project.wait(60)[first:]
    assert reasons == ["finished", "finished"]
    done = project.count("done")
    assert PAGES * 0.2 <= len(half) < PAGES
    assert set(done) == site.paths
    for counts in (done, site.hits()):
        assert {path: times for path, times in counts.items() if times > 1} == {"/p/0": starts}
