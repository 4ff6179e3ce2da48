"""Keys of a crawl are deleted, or evicted: what can be rebuilt is, and the rest is reported."""

from __future__ import annotations

from functools import partial

import pytest

from scrapy_dq.frontier import keys
from support.fault_crawl import FaultCrawl, assert_whole
from support.fault_spiders import GATHERED, start_together
from support.given import Figures, MakeCrawl
from support.outages import lines
from support.redis_server import RedisServer
from support.waiting import wait_until
from support.worker import Worker

# Broad, so that much waits; each page takes long enough to leave time for a hand that deletes.
SETTINGS = {"DQ_ORDER": "fifo", "CONCURRENT_REQUESTS": 4, "DQ_WORKER_TTL": 1.5}


def begun(crawl: FaultCrawl, count: int = 2) -> list[Worker]:
    """Return workers that are at a tenth of the crawl."""
    workers = start_together(crawl, count)
    crawl.wait_for_part(0.1)
    return workers


def assert_told(workers: list[Worker], says: str) -> None:
    """Assert that the log of at least one of *workers* has an ERROR about keys, which says so."""
    found = [line for worker in workers for line in lines(worker, "ERROR")]
    assert any("were deleted or evicted" in line and says in line for line in found)


@pytest.mark.parametrize("names", [["bands"], ["rotation"], ["members"], ["beats"], ["bands", "rotation"]])
def test_derived_keys_are_rebuilt(
    names: list[str],
    fault_redis: RedisServer,
    fault_crawl: MakeCrawl,
    figures: Figures,
) -> None:
    """What leads to the requests is deleted, and a worker killed then: nothing is lost, nothing hangs."""
    crawl = fault_crawl(site={"pages": 300}, settings=SETTINGS, spider=GATHERED)
    workers = begun(crawl)
    with fault_redis.client() as client:
        for name in names:
            key = keys.prefix(crawl.project.name) + name
            # While all is leased, there is no rotation.
            wait_until(partial(client.delete, key), f"{name} is there")
    crawl.wait_for(len(crawl.done) + 20)
    crawl.kill(workers[0])

    verdict = crawl.end()

    figures(verdict, deleted=" ".join(names))
    assert_whole(verdict, crawl.leases_at_kills + 2 * 2 * 4, workers=1)


@pytest.mark.parametrize("what", ["a list of requests", "the leases of a worker", "what came back"])
def test_requests_that_are_gone_are_reported(
    what: str, fault_redis: RedisServer, fault_crawl: MakeCrawl, figures: Figures
) -> None:
    """The rest is crawled; every worker says that something is gone, and none closes with `finished`."""
    crawl = fault_crawl(site={"pages": 300}, settings=SETTINGS, spider=GATHERED)
    workers = begun(crawl)
    prefix = keys.prefix(crawl.project.name)
    with fault_redis.client() as client:
        if what == "the leases of a worker":
            name = next(client.scan_iter(f"{prefix}in-flight:*"))
        elif what == "a list of requests":
            name = max(client.scan_iter(f"{prefix}backlog:*"), key=client.llen)
        else:
            workers[0].suspend()  # its leases come back by the hand of the other one
            name = (prefix + "quarantine").encode()
            wait_until(lambda: client.zcard(name), "leases come back", 20)
        assert client.delete(name)
        if what == "what came back":
            workers[0].resume()

    verdict = crawl.end()

    figures(verdict, deleted=what)
    assert set(verdict.reasons) == {"frontier_damaged"}
    assert verdict.leases_left == 0
    assert crawl.overview().census.gone >= 1
    assert_told(workers, "requests are gone")


def test_an_eviction_policy_that_is_set_in_mid_crawl_is_reported(
    fault_redis: RedisServer, fault_crawl: MakeCrawl, figures: Figures
) -> None:
    """allkeys-random, and no room: whatever is evicted, no worker closes with `finished` over a loss."""
    site = {"pages": 600, "latency_s": 0.3}
    crawl = fault_crawl(site=site, settings=SETTINGS, spider=GATHERED)
    workers = begun(crawl)
    with fault_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        for worker in workers:
            wait_until(lambda w=worker: "maxmemory-policy" in w.text, "it says so", 60)
        client.config_set("maxmemory", 1)
        wait_until(lambda: client.info("stats")["evicted_keys"] >= 3, "keys are evicted", 20)
        client.config_set("maxmemory", 0)

    verdict = crawl.end()

    figures(verdict, reasons=" ".join(str(reason) for reason in verdict.reasons))
    assert not verdict.lost or "finished" not in verdict.reasons
    assert {reason for reason in verdict.reasons if reason != "finished"} <= {
        "frontier_damaged", "frontier_lost", "frontier_rolled_back", "start_incomplete",
    }  # fmt: skip
    for worker in workers:
        assert sum("maxmemory-policy" in line for line in lines(worker, "ERROR")) == 1
