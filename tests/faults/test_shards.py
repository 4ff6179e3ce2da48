"""One crawl over many shards: on one Redis, and on a cluster whose masters are killed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis

from scrapy_dq.frontier import keys
from support.clusters import Cluster
from support.fault_crawl import FaultCrawl, assert_whole
from support.given import Figures, MakeCrawl
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.waiting import wait_until

SHARDS = 12
HORIZON_S = 2
SITE = {"pages": 1_000, "latency_s": 0.02, "hosts": [f"127.0.0.{host}" for host in range(1, 41)]}
SLOW_S = 5.0
"""Four workers get some 12 pages a second."""
SPREAD = {"DQ_SHARDS": SHARDS, "DQ_ROLLBACK_HORIZON": HORIZON_S}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(password="pass") as made:
        yield made


def phases(client: Any, crawl: FaultCrawl) -> list[bytes]:
    names = (keys.Shard(crawl.project.name, shard) for shard in range(SHARDS))
    return [client.hget(keys.meta(name), "phase") for name in names]


def test_a_crawl_over_shards_of_one_redis(fault_redis: RedisServer, fault_crawl: MakeCrawl) -> None:
    """Each page once; all shards have had some, and are cleared."""
    crawl = fault_crawl(site=SITE, settings=SPREAD)
    crawl.start(2)
    verdict = crawl.end(120)
    assert_whole(verdict)
    with fault_redis.client() as client:
        assert phases(client, crawl) == [b"finished"] * SHARDS


def test_a_crawl_over_shards_of_a_cluster(cluster: Cluster, fault_crawl: MakeCrawl) -> None:
    """Its shards are on all masters."""
    crawl = fault_crawl(cluster, site=SITE, settings=SPREAD)
    owners = {cluster.owner(keys.meta(keys.Shard(crawl.project.name, shard))).port for shard in range(SHARDS)}
    assert len(owners) == 3
    crawl.start(2)
    assert_whole(crawl.end(120))


def test_workers_are_killed(fault_crawl: MakeCrawl) -> None:
    """What waits for links in other shards is crawled again, and nothing is lost."""
    crawl = fault_crawl(site=SITE, settings=SPREAD | {"DQ_WORKER_TTL": 30})
    live = crawl.start(2)
    for part in (0.05, 0.15, 0.3, 0.5):
        crawl.wait_for_part(part)
        crawl.kill(live.pop(0))
        live += crawl.start()
    verdict = crawl.end(120)
    assert_whole(verdict, crawl.leases_at_kills)


def test_all_slots_of_the_cluster_are_moved(cluster: Cluster, fault_crawl: MakeCrawl) -> None:
    """Each master gives all of its slots to the next one, while the crawl runs."""
    crawl = fault_crawl(cluster, site=SITE | {"pages": 3_000}, settings=SPREAD)
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    cluster.move_slots()
    verdict = crawl.end(120)
    assert_whole(verdict)
    assert all("dq/rejoins" not in worker.stats for worker in workers)


def test_a_crawl_at_rest_is_moved_into_other_shards(cluster: Cluster, fault_crawl: MakeCrawl) -> None:
    """All its workers were killed; in the cluster, each shard is on another node before and after."""
    crawl = fault_crawl(cluster, site=SITE, settings=SPREAD)
    for worker in crawl.start(2):
        crawl.wait_for_part(0.2)
        crawl.kill(worker)
    for to in (5, 8):
        done = run_dq(crawl.project, "move", crawl.project.name, "--shards", str(to), "-s", "DQ_WORKER_TTL=2")
        assert done.returncode == 0, done.stderr
    crawl.start(2, settings={"DQ_SHARDS": 8})
    assert_whole(crawl.end(120), crawl.leases_at_kills)


def kill_at_once(cluster: Cluster, crawl: FaultCrawl, parts: Sequence[float]) -> None:
    """Kill a master, each in its turn, and a worker at the same instant."""
    live = crawl.start(4)
    metas = [keys.meta(keys.Shard(crawl.project.name, shard)) for shard in range(SHARDS)]
    for number, part in enumerate(parts):
        crawl.wait_for_part(part, 120)
        victim = cluster.owner(metas[number % SHARDS])
        worker = live.pop(0)
        victim.kill()
        worker.kill()
        crawl.killed.add(worker.pid)
        live += crawl.start()
        crawl.wait_for_part(part + 0.02, 120)
        victim.start()


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_a_master_and_a_worker_are_killed_at_the_same_instant(
    cluster: Cluster, fault_crawl: MakeCrawl, figures: Figures, times: int
) -> None:
    """What the worker had put there may be gone, and its log with it: its pages are in flight elsewhere."""
    crawl = fault_crawl(cluster, site=SITE | {"pages": 1_000 * times}, settings=SPREAD)
    kill_at_once(cluster, crawl, [0.1 + 0.7 * number / times for number in range(times)])
    verdict = crawl.end(600)
    figures(verdict, times=times)
    assert not verdict.lost
    assert set(verdict.reasons) == {"finished"}
    assert verdict.leases_left == 0


def answers(crawl: FaultCrawl) -> bool:
    with suppress(redis.RedisError):
        return not crawl.overview().unreachable
    return False


@pytest.mark.soak
def test_every_master_is_killed_in_turn_and_workers_and_slots_are_moved(
    cluster: Cluster, fault_crawl: MakeCrawl, figures: Figures
) -> None:
    """In one crawl. What was held, or done, around the kill of a master may repeat."""
    crawl = fault_crawl(cluster, site=SITE | {"pages": 5_000}, settings=SPREAD)
    live = crawl.start(4)
    may_repeat = 0
    crawl.wait_for_part(0.05, 120)
    crawl.site.set_latency(SLOW_S)  # the crawl must not end meanwhile, however long this takes
    cluster.move_slots()
    crawl.site.set_latency(SITE["latency_s"])
    masters = [each for each in cluster.servers if cluster.run(each, "ROLE")[0] == b"master"]
    for number, master in enumerate(masters):
        crawl.wait_for_part(0.1 + 0.25 * number, 120)
        crawl.kill(live.pop(0))
        live += crawl.start()
        crawl.wait_for_part(0.2 + 0.25 * number, 120)
        may_repeat += crawl.leases() - crawl.done.total()
        assert crawl.done.total() < crawl.pages, "the crawl has ended before the kills"
        master.kill()
        crawl.wait_for_part(0.25 + 0.25 * number, 120)
        crawl.site.set_latency(SLOW_S)
        master.start()
        wait_until(lambda: answers(crawl), "all nodes answer again", 60)
        crawl.site.set_latency(SITE["latency_s"])
        may_repeat += crawl.leases() + crawl.done.total()
    crawl.wait_for(crawl.pages, 300)
    all_done = time.monotonic()
    verdict = crawl.end(120)
    figures(
        verdict, may_repeat=may_repeat + crawl.leases_at_kills, end_s=round(time.monotonic() - all_done, 1)
    )
    assert_whole(verdict, may_repeat + crawl.leases_at_kills, workers=4)
