"""`scrapy crawl` with STATS_CLASS = scrapy_dq.SharedStats: the numbers of all workers together."""

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
"""What goes on to be counted after the scheduler has closed."""


def test_the_sums_are_those_of_both_workers_logs(tree: Tree, client: redis.Redis) -> None:
    """Every stat that is counted, to the last page and the last exchange; of the depth, the largest."""
    _, project = tree(settings=SHARED | told_every(0.2), pages=300, latency_s=0.01)
    workers = project.start_workers(2)
    assert project.wait(30) == ["finished", "finished"]
    first, second = (worker.stats for worker in workers)
    sums = shared_stats(client, project.name)
    assert min(first["response_received_count"], second["response_received_count"]) > 0
    assert sums["response_received_count"] == sums["item_scraped_count"] == sums["dq/acked"] == 300
    deepest = (
        worker.get("request_depth_max", 0) for worker in (first, second)
    )  # one may have seen leaves alone
    assert sums.pop("request_depth_max") == max(deepest)
    counted = {name: n for name, n in sums.items() if not name.startswith(AFTER_CLOSE)}
    assert counted == pytest.approx({name: first.get(name, 0) + second.get(name, 0) for name in counted})
    for one in (first, second):
        never = {"elapsed_time_seconds", "items_per_minute", "responses_per_minute", "request_depth_max"}
        numeric = {n for n, value in one.items() if isinstance(value, (int, float)) and n not in never}
        assert {n for n in numeric if not n.startswith(AFTER_CLOSE)} <= sums.keys()
    # The next run begins with none.
    assert project.run_worker(timeout_s=30).close_reason == "finished"
    assert shared_stats(client, project.name)["item_scraped_count"] == 300


def test_what_leaving_counts_is_in_the_sums(tree: Tree, client: redis.Redis) -> None:
    """A worker that closes in the middle gives leases back, and acknowledges its last pages, as it leaves."""
    settings = SHARED | {"CLOSESPIDER_ITEMCOUNT": 10, "CONCURRENT_REQUESTS": 2}
    _, project = tree(settings=settings, pages=100, latency_s=0.01)
    worker = project.run_worker(timeout_s=20)
    assert worker.close_reason == "closespider_itemcount"
    sums = shared_stats(client, project.name)
    assert sums.get("dq/released") == worker.stats.get("dq/released")  # as a rule there is one in the buffer
    assert sums["dq/acked"] == worker.stats["dq/acked"] == worker.stats["item_scraped_count"]


def test_a_killed_worker_takes_one_interval_with_it(tree: Tree, client: redis.Redis) -> None:
    """What it had reported stays counted; only what it had not reported is missing."""
    interval_s = 0.5
    site, project = tree(
        settings=SHARED | told_every(interval_s) | {"CONCURRENT_REQUESTS": 4}, pages=150, latency_s=0.05
    )

    def told() -> float:
        return shared_stats(client, project.name).get("item_scraped_count", 0)

    worker = project.start_worker()
    wait_until(lambda: told() >= 20, "it has told of 20 items", 20)
    worker.kill()
    scraped, counted = project.count("item").total(), told()
    # 4 at a time, 0.05 s each: 80 a second at most, for an interval and a trip.
    assert 0 <= scraped - counted <= 80 * interval_s + 8
    last = project.run_worker(timeout_s=30)
    assert told() == counted + last.stats["item_scraped_count"]
    assert project.count("item").keys() == site.paths


@pytest.mark.parametrize("settings", [PLAIN, {"DQ_ENABLED": False}], ids=["Scrapy's", "not enabled"])
def test_under_scrapys_scheduler_it_is_scrapys_collector(
    make_project: MakeProject, start_site: StartSite, settings: dict[str, Any]
) -> None:
    """Nothing is shared, no Redis is needed, no warning comes."""
    site = start_site(pages=10)
    project = make_project([site.start_url], redis_url="redis://127.0.0.1:9", settings=SHARED | settings)
    worker = project.run_to_end(timeout_s=20)
    assert worker.stats["item_scraped_count"] == 10
    assert "Deprecat" not in worker.text
    assert "ERROR" not in worker.text
