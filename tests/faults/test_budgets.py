"""Despite kills and roll-backs, budgets are kept, and requests above a budget are not lost."""

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
    """Return the number of requests that each host has answered."""
    return Counter(hit.host for hit in site.log())


def strike(crawl: FaultCrawl) -> int:
    """Roll Redis back and kill a worker. Return the number of requests that Redis has forgotten.

    Workers had sent or leased these requests before the roll-back, but Redis does not count them as done.
    """
    snapshot = crawl.redis.snapshot()
    crawl.wait_for(len(crawl.done) + 6)
    for worker in crawl.live:  # so that no count changes before the roll-back
        worker.suspend()
        wait_until(lambda each=worker: each.suspended, "the worker is frozen")
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
    """Let three workers crawl, and strike after each number of pages. All workers must close for *reason*."""
    crawl.start(3)
    for pages in strikes:
        crawl.wait_for(pages)
        forgotten = strike(crawl)
    verdict = crawl.end()
    assert set(verdict.reasons) == {reason}
    assert verdict.leases_left == 0
    return forgotten


def complete(crawl: FaultCrawl, **options: Any) -> None:
    """Start one more worker, and assert that it crawls all remaining pages."""
    crawl.start(**options)
    verdict = crawl.end()
    crawl.note(verdict)
    assert not verdict.lost
    assert verdict.reasons[-1] == "finished"


def test_each_host_keeps_its_budget(fault_crawl: MakeCrawl) -> None:
    """Each host gets at most as many requests as its budget, plus the requests that Redis forgot.

    The other requests stay stored. A worker crawls them after the budgets are lifted.
    """
    crawl = fault_crawl(site=SITE, settings={"DQ_DOMAIN_BUDGET": 20, "CONCURRENT_REQUESTS": 4})
    forgotten = end_early(crawl, (10, 25), "domain_budget")
    assert crawled(crawl.site).total() <= 3 * 20 + forgotten
    with crawl.redis.client() as client:
        for host in HOSTS:
            assert limit(client, crawl.project.name, host, budget=0) is not None
    complete(crawl)


@pytest.mark.parametrize("shards", [1, 3])
def test_max_pages_is_kept(fault_crawl: MakeCrawl, shards: int) -> None:
    """All workers together keep the limit (not with several shards). Another worker completes the crawl."""
    settings = {"DQ_MAX_PAGES": 60, "CONCURRENT_REQUESTS": 4, "DQ_SHARDS": shards}
    crawl = fault_crawl(site=SITE, settings=settings)
    forgotten = end_early(crawl, (10, 30), "max_pages")
    assert shards > 1 or crawled(crawl.site).total() <= 60 + forgotten
    complete(crawl, settings={"DQ_MAX_PAGES": 0})
