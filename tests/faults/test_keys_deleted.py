"""Keys of a crawl are deleted or evicted. Workers rebuild derived keys, and report other losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from scrapy_dq.frontier import keys
from support.fault_crawl import FaultCrawl
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl
from support.outages import lines
from support.waiting import wait_until
from support.worker import Worker

# With FIFO, many requests wait when the test deletes keys.
SETTINGS = {"DQ_ORDER": "fifo", "CONCURRENT_REQUESTS": 4, "DQ_WORKER_TTL": 1.5}


def begun(make: MakeCrawl, **site: Any) -> tuple[FaultCrawl, list[Worker]]:
    """Return a crawl with a tenth of its pages done, and its workers."""
    crawl = make(site=site, settings=SETTINGS, spider=GATHERED)
    workers = start_together(crawl)
    crawl.wait_for_part(0.1)
    return crawl, workers


@pytest.mark.parametrize("names", [["bands"], ["rotation"], ["members"], ["beats"], ["bands", "rotation"]])
def test_derived_keys_are_rebuilt(names: list[str], fault_crawl: MakeCrawl) -> None:
    """Keys that follow from others are deleted. Then a worker is killed. The crawl ends without a loss."""
    crawl, workers = begun(fault_crawl, pages=300)
    with crawl.redis.client() as client:
        for name in names:
            key = keys.prefix(crawl.project.name) + name
            # The key `rotation` does not exist while all requests are leased.
            wait_until(partial(client.delete, key), f"the key {name} exists")
    crawl.wait_for(len(crawl.done) + 20)
    crawl.kill(workers[0])

    crawl.end_whole(crawl.leases_at_kills + 2 * 2 * 4, workers=1, deleted=" ".join(names))


@pytest.mark.parametrize("what", ["a list of requests", "the leases of a worker", "what came back"])
def test_requests_that_are_gone_are_reported(what: str, fault_crawl: MakeCrawl) -> None:
    """Workers crawl the other requests. One worker reports the loss. No worker closes with `finished`."""
    crawl, workers = begun(fault_crawl, pages=300)
    prefix = keys.prefix(crawl.project.name)
    with crawl.redis.client() as client:
        if what == "the leases of a worker":
            name = next(client.scan_iter(f"{prefix}in-flight:*"))
        elif what == "a list of requests":
            name = max(client.scan_iter(f"{prefix}backlog:*"), key=client.llen)
        else:
            crawl.kill(workers[0])  # the other worker reclaims its leases
            name = (prefix + "quarantine").encode()
            wait_until(lambda: client.zcard(name), "the dead worker's leases are in the quarantine", 20)
        assert client.delete(name)

    verdict = crawl.end()

    crawl.note(verdict, deleted=what)
    assert set(verdict.reasons) == {"frontier_damaged"}
    assert verdict.leases_left == 0
    assert crawl.overview().census.gone >= 1
    told = [line for worker in workers for line in lines(worker, "ERROR")]
    assert any(
        "were deleted, evicted, or lost in a failover" in line and "requests that are gone: " in line
        for line in told
    )


def test_an_eviction_policy_that_is_set_in_mid_crawl_is_reported(fault_crawl: MakeCrawl) -> None:
    """If evictions lose requests, no worker closes with `finished`. Each worker reports the policy once."""
    crawl, workers = begun(fault_crawl, pages=600, latency_s=0.3)
    with crawl.redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        for worker in workers:
            wait_until(lambda w=worker: "maxmemory-policy" in w.text, "the worker reports the policy", 60)
        client.config_set("maxmemory", 1)
        wait_until(lambda: client.info("stats")["evicted_keys"] >= 3, "keys are evicted", 20)
        client.config_set("maxmemory", 0)

    verdict = crawl.end()

    crawl.note(verdict, reasons=" ".join(str(reason) for reason in verdict.reasons))
    assert not verdict.lost or "finished" not in verdict.reasons
    assert {reason for reason in verdict.reasons if reason != "finished"} <= {
        "frontier_damaged", "frontier_lost", "frontier_rolled_back", "start_incomplete",
    }  # fmt: skip
    for worker in workers:
        assert sum("maxmemory-policy" in line for line in lines(worker, "ERROR")) == 1
