"""One crawl over many shards: on one Redis, and on a cluster whose masters are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scrapy_dq.frontier import keys
from support.clusters import Cluster
from support.fault_crawl import FaultCrawl, assert_whole
from support.redis_server import RedisServer

SHARDS = 12
HORIZON_S = 2
SITE = {"pages": 1_000, "latency_s": 0.02, "hosts": [f"127.0.0.{host}" for host in range(1, 41)]}
SPREAD = {"DQ_SHARDS": SHARDS, "DQ_ROLLBACK_HORIZON": HORIZON_S}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(password="pass") as made:
        yield made


def phases(client: Any, crawl: FaultCrawl) -> list[bytes]:
    names = (keys.Shard(crawl.project.name, shard) for shard in range(SHARDS))
    return [client.hget(keys.meta(name), "phase") for name in names]


def test_a_crawl_over_shards_of_one_redis(
    fault_redis: RedisServer, fault_crawl: Callable[..., FaultCrawl]
) -> None:
    """Each page once; all shards have had some, and are cleared."""
    crawl = fault_crawl(fault_redis, site=SITE, settings=SPREAD)
    crawl.start(2)
    verdict = crawl.end(120)
    assert_whole(verdict)
    with fault_redis.client() as client:
        assert phases(client, crawl) == [b"finished"] * SHARDS


def test_a_crawl_over_shards_of_a_cluster(cluster: Cluster, fault_crawl: Callable[..., FaultCrawl]) -> None:
    """Its shards are on all masters."""
    crawl = fault_crawl(cluster, site=SITE, settings=SPREAD)
    owners = {cluster.owner(keys.meta(keys.Shard(crawl.project.name, shard))).port for shard in range(SHARDS)}
    assert len(owners) == 3
    crawl.start(2)
    assert_whole(crawl.end(120))


def test_workers_and_masters_are_killed(cluster: Cluster, fault_crawl: Callable[..., FaultCrawl]) -> None:
    """Each master in turn, and a worker at the same instant: nothing is lost."""
    crawl = fault_crawl(cluster, site=SITE | {"pages": 3_000}, settings=SPREAD)
    live = crawl.start(4)
    metas = [keys.meta(keys.Shard(crawl.project.name, shard)) for shard in range(SHARDS)]
    victims = {cluster.owner(meta).port: cluster.owner(meta) for meta in metas}
    for part, victim in zip((0.1, 0.3, 0.5), victims.values(), strict=True):
        crawl.wait_for_part(part, 120)
        victim.kill()
        worker = live.pop(0)
        worker.kill()
        crawl.killed.add(worker.pid)
        live += crawl.start()
        crawl.wait_for_part(part + 0.1, 120)
        victim.start()
    verdict = crawl.end(240)
    for w in crawl.project.workers:
        if w.close_reason == "shutdown":
            print(w.text[-3500:])
    print(verdict)
    assert not verdict.lost
    assert set(verdict.reasons) == {"finished"}
