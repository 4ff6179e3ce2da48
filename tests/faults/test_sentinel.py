"""With replicas under Sentinel, the crawl continues at the new master, and nothing is lost."""

from __future__ import annotations

import time

import pytest
import redis

from support import outages
from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl, StartProxy, StartRedis
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.sentinels import Sentinels
from support.waiting import free_port, wait_until
from support.worker import Worker

SITE = {"pages": 500, "latency_s": 0.3}
SLOW_SITE = {"pages": 600, "latency_s": 0.6}  # connections look up the master only every five seconds


def test_the_crawl_continues_when_its_master_is_killed(sentinels: Sentinels, fault_crawl: MakeCrawl) -> None:
    """Sentinel promotes a replica that may lack the newest data. The old master returns as a replica."""
    crawl = fault_crawl(sentinels, site=SITE)
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    old, before = sentinels.master, crawl.leases() - crawl.done.total()
    old.kill()
    sentinels.wait_for_another_master(old)
    outages.wait_for_ends(workers)
    may_repeat = before + crawl.leases() + crawl.done.total()
    old.start()
    crawl.end_whole(may_repeat)


def test_the_crawl_follows_a_failover_when_its_master_is_separated(
    sentinels: Sentinels, fault_crawl: MakeCrawl
) -> None:
    """Workers write to the old master for a while. When it returns as a replica, these writes are lost."""
    crawl = fault_crawl(sentinels, site=SLOW_SITE)
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    old, before = sentinels.master, crawl.leases() - crawl.done.total()
    sentinels.separate(old)
    new = sentinels.wait_for_another_master(old)
    done = len(crawl.done)
    wait_until(lambda: len(crawl.done) > done, "pages are done that only the old master knows")
    may_repeat = _wait_for_rejoins(crawl, workers) + before
    old.restart()  # with its data and in the role of a master
    with old.client() as client:
        wait_until(lambda: _role(client) == b"slave", "the old master is a replica", 60)
    crawl.end_whole(may_repeat, timeout_s=120)
    assert sentinels.master is new


def _role(client: redis.Redis) -> bytes | None:
    """Return the server's role, or None if the server closed the connection because its role changed."""
    try:
        role: bytes = client.role()[0]
    except redis.exceptions.ConnectionError:
        return None
    return role


class Pair:
    """A Redis and its replica without Sentinel, and an address that leads to the master."""

    def __init__(self, old: RedisServer, new: RedisServer, address: RedisProxy) -> None:
        self.old, self.new, self.address = old, new, address
        self._replicate(new, old.port)
        with old.client() as client:
            wait_until(
                lambda: client.info("replication").get("slave0", {}).get("state") == "online",
                "the replica is online",
            )

    def cut(self) -> None:
        """Cut the link between the two servers, so that the replica gets no new data."""
        self._replicate(self.new, free_port())

    def promote(self) -> None:
        """Make the replica the master, and lead the address to it."""
        with self.new.client() as client:
            client.replicaof("NO", "ONE")
        self.address.lead_to(self.new.url)
        self._replicate(self.old, self.new.port)

    @staticmethod
    def _replicate(server: RedisServer, port: int) -> None:
        with server.client() as client:
            client.replicaof("127.0.0.1", str(port))


@pytest.fixture
def pair(start_redis: StartRedis, start_proxy: StartProxy) -> Pair:
    old, new = start_redis(appendonly=True), start_redis(appendonly=True)
    return Pair(old, new, start_proxy(old.url))


def test_the_crawl_continues_when_a_user_promotes_a_replica(pair: Pair, fault_crawl: MakeCrawl) -> None:
    """A user promotes a replica that lacks the newest data. Then the address leads to this replica."""
    crawl = fault_crawl(pair.new, through=pair.address.url, site=SITE)
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    done = crawl.done.total()
    pair.cut()
    before = crawl.leases() - done
    wait_until(lambda: crawl.done.total() > done + 100, "pages are done that the replica does not know")
    pair.promote()
    may_repeat = _wait_for_rejoins(crawl, workers) + before
    assert crawl.end_whole(may_repeat, timeout_s=120).repeats


def test_only_moves_that_a_replica_has_are_confirmed(pair: Pair, fault_crawl: MakeCrawl) -> None:
    """With DQ_WAIT_REPLICAS, no move is lost, even if the replica is cut off for longer than the horizon."""
    settings = {"DQ_WAIT_REPLICAS": 1, "DQ_ROLLBACK_HORIZON": 1}
    crawl = fault_crawl(pair.new, through=pair.address.url, site=SITE, settings=settings)
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    pair.cut()
    leases = crawl.leases()
    for worker in workers:
        wait_until(lambda w=worker: "0 of 1 replicas (DQ_WAIT_REPLICAS)" in w.text, "the worker waits")
    time.sleep(2.0)  # twice the horizon, so no log still has moves from before the cut
    pair.promote()  # the old master becomes a replica of the new one, so the workers continue
    crawl.end_whole(leases, timeout_s=120)


def _wait_for_rejoins(crawl: FaultCrawl, workers: list[Worker]) -> int:
    """Wait until all workers use the new master. Return the sum of leases and done pages."""
    wait_until(
        lambda: all("continues as" in worker.text for worker in workers), "both workers have followed", 30
    )
    return crawl.leases() + crawl.done.total()
