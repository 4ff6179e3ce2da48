"""`scrapy crawl` with STATS_CLASS = scrapy_dq.SharedStats adds up the stats of all workers."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from scrapy_dq.frontier import shared_stats
from support.given import MakeProject, StartSite, Tree
from support.project import PLAIN
from support.waiting import wait_until

SHARED = {"STATS_CLASS": "scrapy_dq.SharedStats", "MEMUSAGE_ENABLED": False}


def told_every(seconds: float) -> dict[str, Any]:
    return {"CONSTANTS": {"scrapy_dq.stats.collector.EVERY_S": seconds}}


AFTER_CLOSE = ("log_count/", "feedexport/")
"""Stats that still change after the scheduler has closed."""


def test_the_sums_equal_the_stats_of_both_workers(tree: Tree, client: redis.Redis) -> None:
    """The sums include each counted stat up to the last page and exchange. The depth is the maximum."""
    _, project = tree(settings=SHARED | told_every(0.2), pages=300, latency_s=0.01)
    workers = project.start_workers(2)
    assert project.wait(30) == ["finished", "finished"]
    first, second = (worker.stats for worker in workers)
    sums = shared_stats(client, project.name)
    assert min(first["response_received_count"], second["response_received_count"]) > 0
    assert sums["response_received_count"] == sums["item_scraped_count"] == sums["dq/acked"] == 300
    deepest = (
        worker.get("request_depth_max", 0) for worker in (first, second)
    )  # one worker may have seen only leaves
    assert sums.pop("request_depth_max") == max(deepest)
    counted = {name: n for name, n in sums.items() if not name.startswith(AFTER_CLOSE)}
    assert counted == pytest.approx({name: first.get(name, 0) + second.get(name, 0) for name in counted})
    for one in (first, second):
        never = {"elapsed_time_seconds", "items_per_minute", "responses_per_minute", "request_depth_max"}
        numeric = {n for n, value in one.items() if isinstance(value, (int, float)) and n not in never}
        assert {n for n in numeric if not n.startswith(AFTER_CLOSE)} <= sums.keys()
    # The next run begins without sums.
    assert project.run_worker(timeout_s=30).close_reason == "finished"
    assert shared_stats(client, project.name)["item_scraped_count"] == 300


def test_stats_counted_as_a_worker_leaves_are_in_the_sums(tree: Tree, client: redis.Redis) -> None:
    """A worker that closes early releases leases and acks its last pages while it leaves."""
    settings = SHARED | {"CLOSESPIDER_ITEMCOUNT": 10, "CONCURRENT_REQUESTS": 2}
    _, project = tree(settings=settings, pages=100, latency_s=0.01)
    worker = project.run_worker(timeout_s=20)
    assert worker.close_reason == "closespider_itemcount"
    sums = shared_stats(client, project.name)
    assert sums.get("dq/released") == worker.stats.get("dq/released")  # both are None if the buffer was empty
    assert sums["dq/acked"] == worker.stats["dq/acked"] == worker.stats["item_scraped_count"]


def test_a_killed_worker_loses_at_most_one_interval_of_stats(tree: Tree, client: redis.Redis) -> None:
    """Numbers that the worker had reported stay counted. Only numbers since its last report are missing."""
    interval_s = 0.5
    site, project = tree(
        settings=SHARED | told_every(interval_s) | {"CONCURRENT_REQUESTS": 4}, pages=150, latency_s=0.05
    )

    def told() -> float:
        return shared_stats(client, project.name).get("item_scraped_count", 0)

    worker = project.start_worker()
    wait_until(lambda: told() >= 20, "the worker has reported 20 items", 20)
    worker.kill()
    scraped, counted = project.count("item").total(), told()
    # Four requests at a time with a latency of 0.05 s give at most 80 items per second. At most the items of
    # one interval and of one round trip (8 items) are not reported.
    assert 0 <= scraped - counted <= 80 * interval_s + 8
    last = project.run_worker(timeout_s=30)
    assert told() == counted + last.stats["item_scraped_count"]
    assert project.count("item").keys() == site.paths


@pytest.mark.parametrize("settings", [PLAIN, {"DQ_ENABLED": False}], ids=["Scrapy's", "not enabled"])
def test_under_the_scheduler_of_scrapy_the_collector_shares_nothing(
    make_project: MakeProject, start_site: StartSite, settings: dict[str, Any]
) -> None:
    """Without our scheduler, the collector connects to no Redis and logs no warning."""
    site = start_site(pages=10)
    project = make_project([site.start_url], redis_url="redis://127.0.0.1:9", settings=SHARED | settings)
    worker = project.run_to_end(timeout_s=20)
    assert worker.stats["item_scraped_count"] == 10
    assert "Deprecat" not in worker.text
    assert "ERROR" not in worker.text
