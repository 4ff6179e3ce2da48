"""A Redis with replicas under Sentinel: the crawl goes on with the new master, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support import outages
from support.fault_crawl import FaultCrawl
from support.sentinels import Sentinels
from support.waiting import wait_until

SITE = {"pages": 2_000, "latency_s": 0.03}


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(password="pass") as made:
        yield made


def test_the_crawl_goes_on_when_its_master_is_killed(
    sentinels: Sentinels, fault_crawl: Callable[..., FaultCrawl], figures: Callable[..., None]
) -> None:
    """A replica is promoted, which may lack the last moments; the old master comes back as its replica."""
    crawl = fault_crawl(sentinels, site=SITE)
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    old = sentinels.master
    old.kill()
    sentinels.wait_for_another_master(old)
    for worker in workers:
        wait_until(lambda w=worker: outages.ended(w) >= 1, "the end of the outage is told")
    old.start()
    verdict = crawl.end()
    figures(verdict, rejoins=sum(worker.stats.get("dq/rejoins", 0) for worker in workers))
    assert not verdict.lost
    assert verdict.reasons == ("finished", "finished")
    assert verdict.leases_left == 0
