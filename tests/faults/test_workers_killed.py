"""Workers are killed with SIGKILL. No page is lost, and few pages are processed twice."""

from __future__ import annotations

import random

import pytest

from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl
from support.waiting import wait_until

PAGES = 1_000
SLOW_S = 5.0


def kill_at_random(crawl: FaultCrawl, kills: int, rng: random.Random, latest: float = 0.85) -> None:
    """Kill and replace one of two workers *kills* times, before the part *latest* of all pages is done."""
    crawl.site.slow_down(int(crawl.pages * latest), SLOW_S)  # so that the last kill comes before the end
    live = crawl.start(2)
    for threshold in sorted(rng.sample(range(crawl.pages // 50, int(crawl.pages * latest)), kills)):
        crawl.wait_for(threshold)
        victim = live.pop(rng.randrange(len(live)))
        assert victim.running, f"the worker closed before its kill: {victim.text[-3000:]}"
        crawl.kill(victim)
        live += crawl.start()
    crawl.site.set_latency(crawl.site.tree.latency_s)


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.soak)])
def test_no_page_is_lost_however_often_workers_are_killed(kills: int, fault_crawl: MakeCrawl) -> None:
    """Each page of a tree is processed. At most the killed workers' leases are processed twice."""
    crawl = fault_crawl(
        site={"pages": PAGES * kills // 25, "latency_s": 0.15},
        # The last replacement may start after the other worker has finished the crawl. It must not
        # begin a new run.
        settings={"DQ_WORKER_TTL": 30, "DQ_RUN_NAME": "once"},
    )
    kill_at_random(crawl, kills, random.Random(kills))

    crawl.end_whole(crawl.leases_at_kills, timeout_s=120, kills=kills)
    overview = crawl.overview()
    assert (overview.phase, overview.members) == ("finished", [])


def test_the_next_crawl_on_the_same_host_resumes_at_once(fault_crawl: MakeCrawl) -> None:
    """All workers are killed. A later worker finishes the crawl long before DQ_WORKER_TTL has passed."""
    crawl = fault_crawl(site={"pages": 300}, settings={"DQ_WORKER_TTL": 600})
    workers = crawl.start(2)
    crawl.wait_for(60)
    for worker in workers:
        crawl.kill(worker)

    (last,) = crawl.start()

    crawl.end_whole(crawl.leases_at_kills, workers=1)
    assert "resumed run 0" in last.text or "joined run 0" in last.text


def test_a_worker_of_another_host_is_reclaimed_after_the_ttl(fault_crawl: MakeCrawl) -> None:
    """A frozen process looks like one on another host. After a silence of the TTL, its leases return."""
    crawl = fault_crawl(site={"pages": 200}, settings={"DQ_WORKER_TTL": 1.5})
    frozen, other = crawl.start(2)
    wait_until(lambda: len(crawl.project.count(pids=[frozen.pid])) >= 20, "20 pages are done", 30)
    frozen.suspend()
    try:
        assert other.wait(60) == 0
        assert other.close_reason == "finished"
        assert not crawl.verdict().lost
        assert "its heartbeat has stopped" in other.text
    finally:
        frozen.resume()
    # The worker continues, learns that its run is over, and changes nothing.
    assert frozen.wait(30) == 0
    assert frozen.close_reason == "finished"
