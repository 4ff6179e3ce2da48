"""Budgets under kills and roll-backs: they are kept, and nothing that is over them is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from scrapy_dq.backend.connection import connect_url
from scrapy_dq.frontier import limit
from support.fault_crawl import FaultCrawl
from support.given import Figures, MakeCrawl
from support.redis_server import RedisServer
from support.tree_site import TreeSite
from support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SITE = {"pages": 150, "fan_out": 5, "hosts": HOSTS}


def crawled(site: TreeSite) -> Counter[str]:
    """Return how many requests each host has answered."""
    return Counter(hit.host for hit in site.log())


def strike(redis: RedisServer, crawl: FaultCrawl) -> int:
    """Roll Redis back and kill a worker; return how many requests of before do not count any more.

    Those that Redis has forgotten: sent, or held by a worker, and not done as far as Redis knows.
    """
    snapshot = redis.snapshot()
    crawl.wait_for(len(crawl.done) + 6)
    for worker in crawl.live:  # so that nothing changes between what is counted
        worker.suspend()
        wait_until(lambda each=worker: each.suspended, "it is frozen")
    before = crawled(crawl.site).total() + crawl.leases()
    redis.roll_back(snapshot)
    forgotten = before - crawl.overview().census.done
    killed, *live = crawl.live
    killed.kill()
    crawl.killed.add(killed.pid)
    for worker in live:
        worker.resume()
    crawl.start()
    return forgotten


def test_each_host_keeps_its_budget(
    fault_redis: RedisServer, fault_crawl: MakeCrawl, figures: Figures
) -> None:
    """No host gets more than that and what Redis has forgotten; what was over it is all there."""
    crawl = fault_crawl(
        site=SITE | {"latency_s": 0.2},
        settings={"DQ_DOMAIN_BUDGET": 20, "CONCURRENT_REQUESTS": 4},
    )
    crawl.start(3)
    for pages in (10, 25):
        crawl.wait_for(pages)
        forgotten = strike(fault_redis, crawl)
    first = crawl.end()
    assert set(first.reasons) == {"domain_budget"}
    assert crawled(crawl.site).total() <= 3 * 20 + forgotten
    assert first.leases_left == 0
    with connect_url(fault_redis.url) as client:
        for host in HOSTS:
            assert limit(client, crawl.project.name, host, budget=0) is not None
    crawl.start()
    last = crawl.end()
    figures(last)
    assert not last.lost
    assert last.reasons[-1] == "finished"


@pytest.mark.parametrize("shards", [1, 3])
def test_the_number_of_pages_is_kept(
    fault_redis: RedisServer,
    fault_crawl: MakeCrawl,
    figures: Figures,
    shards: int,
) -> None:
    """Of all workers together (with shards: nearly); more pages, and the crawl ends complete."""
    settings = {"DQ_MAX_PAGES": 60, "CONCURRENT_REQUESTS": 4, "DQ_SHARDS": shards}
    crawl = fault_crawl(site=SITE | {"latency_s": 0.2}, settings=settings)
    crawl.start(3)
    for pages in (10, 30):
        crawl.wait_for(pages)
        forgotten = strike(fault_redis, crawl)
    first = crawl.end()
    assert set(first.reasons) == {"max_pages"}
    assert shards > 1 or crawled(crawl.site).total() <= 60 + forgotten
    assert first.leases_left == 0
    crawl.start(settings={"DQ_MAX_PAGES": 0})
    last = crawl.end()
    figures(last)
    assert not last.lost
    assert last.reasons[-1] == "finished"
