"""A crawl that scrapy-redis has begun is taken over, and ends complete."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from support.project import Project
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import MeshSpider, interrupt_under_scrapy_redis, run_dq
from support.tree_site import TreeSite
from support.tree_spider import spider_source

PAGES = 150


@pytest.mark.parametrize("queue", ["PriorityQueue", "FifoQueue", "LifoQueue"])
def test_a_crawl_of_scrapy_redis_is_adopted_and_ends_complete(
    queue: str,
    start_redis: Callable[..., RedisServer],
    start_site: Callable[..., TreeSite],
    make_project: Callable[..., Project],
) -> None:
    """Interrupted half-way, adopted, ended by two workers: every page once, though linked three times.

    But the start page: scrapy-redis notes no request with dont_filter, so nobody knows that it was done.
    """
    site = start_site(pages=PAGES, fan_out=2, latency_s=0.02)
    redis = start_redis(appendonly=True)
    spider = spider_source(MeshSpider)
    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 4, "SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}"}
    project = make_project([site.start_url], redis_url=redis.url, spider=spider, settings=settings)
    interrupt_under_scrapy_redis(project, site, queue, 0.4)
    half = project.count("done")
    with redis.client() as client:
        keys = [f"{project.name}:requests", f"{project.name}:dupefilter"]
        before = [client.dump(key) for key in keys]

        adopted = run_dq(project, "adopt", project.name, "--trust-pickle")

        assert adopted.returncode == 0, adopted.stdout + adopted.stderr
        assert re.search(r"^dead letters +0$", adopted.stdout, re.MULTILINE)
        assert [client.dump(key) for key in keys] == before  # the source is as it was
    project.start_workers(2)
    reasons = project.wait(60)[1:]
    assert reasons == ["finished", "finished"]
    done = project.count("done")
    assert PAGES * 0.4 <= len(half) < PAGES
    assert set(done) == site.paths
    assert {path: times for path, times in done.items() if times > 1} == {"/p/0": 2}
    assert {path: times for path, times in site.hits().items() if times > 1} == {"/p/0": 2}
