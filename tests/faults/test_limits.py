"""Despite faults, no partition with limits and no delayed request is lost or gets stuck."""

from __future__ import annotations

import random
from typing import Any

import pytest

from faults.test_workers_killed import kill_at_random
from support.fault_crawl import FaultCrawl
from support.fault_spiders import DELAYED
from support.given import MakeCrawl
from support.stored import HISTORY, crawl_keys

HOSTS = tuple(f"127.0.0.{k}" for k in range(1, 9))
LIMITS = {
    "DQ_DOMAIN_DELAY": 0.05, "DQ_DOMAIN_CONCURRENCY": 3, "DQ_WORKER_TTL": 30, "DQ_RUN_NAME": "once",
}  # fmt: skip
# Keys that a run keeps after all workers have left: the tombstone, the limits and the history.
LEFT = {"meta", "limits", *HISTORY}


def assert_all_done(crawl: FaultCrawl, **more: Any) -> None:
    verdict = crawl.end(120)
    crawl.note(verdict, **more)
    assert not verdict.lost
    assert set(crawl.project.count("item")) == crawl.site.paths
    assert verdict.repeats <= crawl.leases_at_kills
    assert set(verdict.reasons) == {"finished"}


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.soak)])
def test_a_killed_worker_delays_no_partition_that_has_limits(kills: int, fault_crawl: MakeCrawl) -> None:
    """After a reclaim, the dead worker's leases no longer count against the limits."""
    crawl = fault_crawl(site={"pages": 100 * kills, "hosts": HOSTS, "latency_s": 0.02}, settings=LIMITS)
    kill_at_random(crawl, kills, random.Random(kills))

    assert_all_done(crawl, kills=kills, leases_at_kills=crawl.leases_at_kills)
    with crawl.redis.client() as client:
        names = {key.decode().rpartition("}:")[2] for key in crawl_keys(client, crawl.project.name)}
    assert names <= LEFT


def test_a_roll_back_delays_no_partition_that_has_limits(fault_crawl: MakeCrawl) -> None:
    """Redis forgets that leases were sent, counted and settled. This delays no partition."""
    crawl = fault_crawl(site={"pages": 400, "hosts": HOSTS, "latency_s": 0.02}, settings=LIMITS)
    crawl.start(2)
    for part in (0.1, 0.3, 0.6):
        crawl.wait_for_part(part)
        snapshot = crawl.redis.snapshot()
        crawl.wait_for_part(part + 0.1)
        crawl.redis.roll_back(snapshot)

    crawl.end_whole(crawl.pages, timeout_s=120)


def test_delayed_requests_outlive_all_workers(fault_crawl: MakeCrawl) -> None:
    """All workers are killed while most requests are not due. The next workers crawl all requests."""
    crawl = fault_crawl(
        site={"pages": 60, "latency_s": 0.02},
        # A worker that starts after the end must not begin a new run.
        settings={"DQ_WORKER_TTL": 30, "DQ_RUN_NAME": "one"},
        spider=DELAYED,
    )
    # If a kill came later, the last pages would be due by then, and the crawl could end before the kill.
    kill_at_random(crawl, 4, random.Random(1), latest=0.3)

    assert_all_done(crawl, leases_at_kills=crawl.leases_at_kills)
