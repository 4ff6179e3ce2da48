"""In a Redis Cluster, the crawl follows its keys to another node, and loses nothing."""

from __future__ import annotations

from scrapy_dq.frontier import keys
from support import outages
from support.clusters import Cluster
from support.given import MakeCrawl
from support.waiting import wait_until

SITE = {"pages": 500, "latency_s": 0.3}


def test_the_crawl_continues_when_the_master_of_its_slot_is_killed(
    cluster: Cluster, fault_crawl: MakeCrawl
) -> None:
    """The replica that takes over may lack the newest data. Later, the old master returns as a replica."""
    crawl = fault_crawl(cluster, site=SITE)
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    old, before = cluster.owner(keys.meta(crawl.project.name)), crawl.leases() - crawl.done.total()
    old.kill()
    outages.wait_for_ends(workers, timeout_s=60)
    may_repeat = before + crawl.leases() + crawl.done.total()
    old.start()
    crawl.end_whole(may_repeat, timeout_s=120)


def test_the_crawl_pauses_while_its_slot_is_moved(cluster: Cluster, fault_crawl: MakeCrawl) -> None:
    """The slot moves twice, key by key. While two nodes have its keys, no script runs. No page runs twice."""
    crawl = fault_crawl(cluster, site=SITE)
    workers = crawl.start(2)
    meta = keys.meta(crawl.project.name)
    for part in (0.1, 0.4):
        crawl.wait_for_part(part)
        ends = [outages.ended(worker) for worker in workers]
        masters = [each for each in cluster.servers if cluster.run(each, "ROLE")[0] == b"master"]
        target = next(each for each in masters if each is not cluster.owner(meta))
        told = [worker.text.count("is moving this crawl's keys") for worker in workers]

        def both_wait(told: list[int] = told) -> bool:
            now = [worker.text.count("is moving this crawl's keys") for worker in workers]
            return all(a > b for a, b in zip(now, told, strict=True))

        cluster.migrate(meta, target, pause=lambda: wait_until(both_wait, "both workers wait", 30))
        for worker, before in zip(workers, ends, strict=True):
            wait_until(lambda w=worker, b=before: outages.ended(w) > b, "the wait ends", 30)
        assert cluster.owner(meta) is target
    crawl.end_whole(timeout_s=120)
    assert all("dq/rejoins" not in worker.stats for worker in workers)
