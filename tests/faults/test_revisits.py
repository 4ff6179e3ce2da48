"""A crawl that never ends always has one entry for each page, even after kills and roll-backs."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from scrapy_dq.frontier.model import Order
from support.given import MakeProject, StartSite
from support.redis_server import RedisServer
from support.stored import stored_state
from support.tree_site import TreeSite
from support.waiting import wait_until

PAGES = 40
SETTINGS = {
    "DQ_REVISIT": "fixed:1s", "DQ_WORKER_TTL": 2, "DQ_ROLLBACK_HORIZON": 3, "DQ_SHUTDOWN_GRACE": 30,
    "LOGSTATS_INTERVAL": 0,
}  # fmt: skip


def visited(site: TreeSite, times: int) -> None:
    """Wait until the site has received *times* more requests for each page."""
    before = site.hits()
    wait_until(
        lambda: all(site.hits()[f"/p/{n}"] >= before[f"/p/{n}"] + times for n in range(PAGES)),
        "each page is visited", 60,
    )  # fmt: skip


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)]
)
def test_each_page_keeps_one_entry_through_kills_and_roll_backs(
    fault_redis: RedisServer,
    start_site: StartSite,
    make_project: MakeProject,
    seed: int,
) -> None:
    """Workers and Redis are killed, Redis is rolled back, and at the end the workers get SIGTERM."""
    draw = random.Random(seed)
    site = start_site(pages=PAGES, fan_out=3, flaky_every=7, latency_s=0.02)
    project = make_project([site.start_url], redis_url=fault_redis.url, settings=SETTINGS)
    workers = project.start_workers(3)
    visited(site, 1)
    for _ in range(3):
        snapshot = fault_redis.snapshot()
        visited(site, 1)
        workers.pop(draw.randrange(len(workers))).kill()
        fault_redis.roll_back(snapshot)
        workers.append(project.start_worker())
        visited(site, 1)
        fault_redis.restart(kill=True)
        visited(site, 1)
    for worker in workers:
        worker.terminate()
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    late = project.start_worker()  # reclaims the leases of a killed worker
    visited(site, 2)
    late.terminate()
    assert late.wait() == 0
    with fault_redis.client() as client:
        state = stored_state(client, project.name, Order.PRIORITY_LIFO)
    places = (*state["entries"].values(), *state["delayed"].values())
    found = (re.search(rb"/p/(\d+)", place[-1]) for place in places)
    pages = Counter(int(url[1]) for url in found if url)
    assert pages == Counter(range(PAGES))
    assert len(places) == PAGES
