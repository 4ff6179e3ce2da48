"""Budgets under kills and roll-backs: they are kept, and nothing that is over them is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from scrapy_dq.frontier import limit
from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl
from support.tree_site import TreeSite
from support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SITE = {"pages": 150, "fan_out": 5, "hosts": HOSTS, "latency_s": 0.2}


def crawled(site: TreeSite) -> Counter[str]:
    """Return how many requests each host has answered."""
    return Counter(hit.host for hit in site.log())


def strike(crawl: FaultCrawl) -> int:
    """Roll Redis back and kill a worker; return how many requests of before do not count any more.

    Those that Redis has forgotten: sent, or held by a worker, and not done as far as Redis knows.
    """
    snapshot = crawl.redis.snapshot()
    crawl.wait_for(len(crawl.done) + 6)
    for worker in crawl.live:  # so that nothing changes between what is counted
        worker.suspend()
        wait_until(lambda each=worker: each.suspended, "it is frozen")
    before = crawled(crawl.site).total() + crawl.leases()
    crawl.redis.roll_back(snapshot)
    forgotten = before - crawl.overview().census.done
    killed, *live = crawl.live
    killed.kill()
    crawl.killed.add(killed.pid)
    for worker in live:
        worker.resume()
    crawl.start()
    return forgotten


def end_early(crawl: FaultCrawl, strikes: Sequence[int], reason: str) -> int:
    """Let three workers crawl, and strike after so many pages; all close for *reason*. Return as `strike`."""
    crawl.start(3)
    for pages in strikes:
        crawl.wait_for(pages)
        forgotten = strike(crawl)
    verdict = crawl.end()
    assert set(verdict.reasons) == {reason}
    assert verdict.leases_left == 0
    return forgotten


def complete(crawl: FaultCrawl, **options: Any) -> None:
    """Start one more worker, which crawls all that is left."""
    crawl.start(**options)
    verdict = crawl.end()
    crawl.note(verdict)
    assert not verdict.lost
    assert verdict.reasons[-1] == "finished"


def test_each_host_keeps_its_budget(fault_crawl: MakeCrawl) -> None:
    """No host gets more than that and what Redis has forgotten; what was over it is all there."""
    crawl = fault_crawl(site=SITE, settings={"DQ_DOMAIN_BUDGET": 20, "CONCURRENT_REQUESTS": 4})
    forgotten = end_early(crawl, (10, 25), "domain_budget")
    assert crawled(crawl.site).total() <= 3 * 20 + forgotten
    with crawl.redis.client() as client:
        for host in HOSTS:
            assert limit(client, crawl.project.name, host, budget=0) is not None
    complete(crawl)


@pytest.mark.parametrize("shards", [1, 3])
def test_the_number_of_pages_is_kept(fault_crawl: MakeCrawl, shards: int) -> None:
    """Of all workers together (with shards: nearly); more pages, and the crawl ends complete."""
    settings = {"DQ_MAX_PAGES": 60, "CONCURRENT_REQUESTS": 4, "DQ_SHARDS": shards}
    crawl = fault_crawl(site=SITE, settings=settings)
    forgotten = end_early(crawl, (10, 30), "max_pages")
    assert shards > 1 or crawled(crawl.site).total() <= 60 + forgotten
    complete(crawl, settings={"DQ_MAX_PAGES": 0})
