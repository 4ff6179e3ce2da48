"""A crawl has many shards on one Redis, or on a cluster whose masters are killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
import redis

from scrapy_dq.frontier import keys
from support.clusters import Cluster
from support.fault_crawl import FaultCrawl
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl
from support.scrapy_redis_crawl import run_dq
from support.waiting import wait_until

SHARDS = 12
HORIZON_S = 2
SITE = {"pages": 400, "latency_s": 0.2, "hosts": [f"127.0.0.{host}" for host in range(1, 41)]}
SLOW_S = 5.0
"""With this latency, four workers fetch about 12 pages per second."""
SPREAD = {"DQ_SHARDS": SHARDS, "DQ_ROLLBACK_HORIZON": HORIZON_S}


def metas(crawl: FaultCrawl) -> list[str]:
    """Return the name of the key `meta` in each shard."""
    return [keys.meta(keys.Shard(crawl.project.name, shard)) for shard in range(SHARDS)]


def test_killed_workers_lose_no_page(fault_crawl: MakeCrawl) -> None:
    """A page whose puts in other shards are lost is crawled again. At the end, all shards are finished."""
    crawl = fault_crawl(site=SITE, settings=SPREAD | {"DQ_WORKER_TTL": 30})
    live = crawl.start(2)
    for part in (0.05, 0.15, 0.3, 0.5):
        crawl.wait_for_part(part)
        crawl.kill(live.pop(0))
        live += crawl.start()
    crawl.end_whole(crawl.leases_at_kills, timeout_s=120)
    with crawl.redis.client() as client:
        assert [client.hget(meta, "phase") for meta in metas(crawl)] == [b"finished"] * SHARDS


@pytest.mark.parametrize("lost", [keys.HOME, 5], ids=["home", "another one"])
def test_a_worker_that_is_cut_off_from_a_shard_returns_its_leases(lost: int, fault_crawl: MakeCrawl) -> None:
    """The worker returns leases that it cannot finish, and the other worker finishes the run.

    The cut-off worker rejoins when it reaches the shard again, or closes with `cut_off`. In both cases, the
    other worker does not have to wait for it.
    """
    settings = SPREAD | {"DQ_WORKER_TTL": 2}
    crawl = fault_crawl(proxied=True, site=SITE, settings=settings, spider=GATHERED)
    (cut_off,) = crawl.start()
    other = start_together(crawl, 1, beside=cut_off, settings={"REDIS_URL": crawl.redis_url})[1]
    crawl.wait_for_part(0.2)
    crawl.proxy.lose(keys.prefix(keys.Shard(crawl.project.name, lost)).encode())
    held = [0]

    def gives_up() -> bool:
        held.append(crawl.leases({cut_off.pid}))
        return f"Shard {lost} of crawl" in cut_off.text

    wait_until(gives_up, "the worker gives up the shard", 30)
    other.wait(60)
    assert set(crawl.done) == crawl.site.paths
    crawl.proxy.pass_through()
    verdict = crawl.end()
    crawl.note(verdict, held=max(held))
    assert other.text.count("Spider closed (finished)") == 1
    assert set(verdict.reasons) <= {"finished", "cut_off"}
    assert verdict.repeats <= max(held)
    assert verdict.leases_left == 0


def test_a_crawl_continues_while_all_slots_of_the_cluster_are_moved(
    cluster: Cluster, fault_crawl: MakeCrawl
) -> None:
    """Each master has shards of the crawl, and gives all its slots to the next master during the crawl."""
    crawl = fault_crawl(cluster, site=SITE | {"pages": 1_000}, settings=SPREAD)
    before = [cluster.owner(meta).port for meta in metas(crawl)]
    assert len({*before}) == 3
    workers = crawl.start(2)
    crawl.wait_for_part(0.1)
    done = len(crawl.done)
    cluster.move_slots()
    during = len(crawl.done) - done
    assert not any(cluster.owner(meta).port == port for meta, port in zip(metas(crawl), before, strict=True))
    crawl.end_whole(timeout_s=120, during=during)
    assert all("dq/rejoins" not in worker.stats for worker in workers)


def test_a_crawl_at_rest_is_moved_into_other_shards(cluster: Cluster, fault_crawl: MakeCrawl) -> None:
    """All workers of the crawl were killed. Before and after the move, the shards are on several nodes."""
    crawl = fault_crawl(cluster, site=SITE, settings=SPREAD)
    for worker in crawl.start(2):
        crawl.wait_for_part(0.2)
        crawl.kill(worker)
    for to in (5, 8):
        done = run_dq(crawl.project, "move", crawl.project.name, "--shards", str(to), "-s", "DQ_WORKER_TTL=2")
        assert done.returncode == 0, done.stderr
    crawl.start(2, settings={"DQ_SHARDS": 8})
    crawl.end_whole(crawl.leases_at_kills, timeout_s=120)


def kill_at_once(cluster: Cluster, crawl: FaultCrawl, parts: Sequence[float]) -> None:
    """Kill one master after another, and each time a worker at the same moment."""
    live = crawl.start(4)
    for number, part in enumerate(parts):
        crawl.wait_for_part(part, 120)
        victim = cluster.owner(metas(crawl)[number % SHARDS])
        worker = live.pop(0)
        victim.kill()
        worker.kill()
        crawl.killed.add(worker.pid)
        live += crawl.start()
        crawl.wait_for_part(part + 0.02, 120)
        victim.start()


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_killing_a_master_and_a_worker_at_once_loses_no_page(
    cluster: Cluster, fault_crawl: MakeCrawl, times: int
) -> None:
    """The master may lose the worker's puts, which no log has. But other shards have the worker's leases."""
    crawl = fault_crawl(cluster, site=SITE | {"pages": 300 * times}, settings=SPREAD)
    kill_at_once(cluster, crawl, [0.1 + 0.7 * number / times for number in range(times)])
    verdict = crawl.end(600)
    crawl.note(verdict, times=times)
    assert not verdict.lost
    assert set(verdict.reasons) == {"finished"}
    assert verdict.leases_left == 0


def answers(crawl: FaultCrawl) -> bool:
    with suppress(redis.RedisError):
        return not crawl.overview().unreachable
    return False


@pytest.mark.soak
def test_every_master_is_killed_in_turn_and_workers_and_slots_are_moved(
    cluster: Cluster, fault_crawl: MakeCrawl
) -> None:
    """Pages that are leased or done shortly before a master is killed may be repeated."""
    crawl = fault_crawl(cluster, site=SITE | {"pages": 5_000}, settings=SPREAD)
    live = crawl.start(4)
    may_repeat = 0
    crawl.wait_for_part(0.05, 120)
    crawl.site.set_latency(SLOW_S)  # so that the crawl does not end before the slots are moved
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
    crawl.end_whole(may_repeat + crawl.leases_at_kills, workers=4, timeout_s=120)
    crawl.note(end_s=round(time.monotonic() - all_done, 1))
