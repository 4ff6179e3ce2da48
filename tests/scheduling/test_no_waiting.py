"""Scrapy's loop never waits for Redis, even if Redis is slow."""

from __future__ import annotations

from support.given import MakeProject, StartProxy, StartSite
from support.timed_scheduler import TIMED, longest_call_ms
from support.waiting import Stopwatch

ROUND_TRIP_S = 1.0
LONGEST_MS = 200


def test_the_engine_never_waits_for_a_slow_redis(
    redis_url: str, make_project: MakeProject, start_site: StartSite, start_proxy: StartProxy
) -> None:
    """Each round trip takes 1 s. All pages are crawled, and no call of the engine takes 200 ms."""
    proxy = start_proxy(redis_url)
    proxy.set_delay(ROUND_TRIP_S / 2)
    site = start_site(pages=13, fan_out=12)
    project = make_project([site.start_url], redis_url=proxy.url, settings={"SCHEDULER": TIMED})
    clock = Stopwatch()
    worker = project.run_worker(timeout_s=60)
    stalled_ms = clock.stalled_s * 1000
    assert worker.close_reason == "finished"
    assert project.count() == project.count("item") == dict.fromkeys(site.paths, 1)
    stats = worker.stats
    assert stats["dq/exchanges/seconds"] >= stats["dq/exchanges"] * ROUND_TRIP_S
    assert "dq/redis_errors" not in stats
    assert longest_call_ms(project, 1) < min(LONGEST_MS + stalled_ms, ROUND_TRIP_S * 1000)
