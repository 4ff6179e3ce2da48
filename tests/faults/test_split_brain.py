"""Split brain: one of two masters is cut off, and a worker's calls may reach either of them."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest
import redis

from support import outages
from support.given import MakeCrawl, StartProxy
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.sentinels import SERVICE, Sentinels
from support.waiting import repeated, wait_until
from support.worker import Worker

HORIZON_S = 10.0
CUT_EVERY_S = 0.1
ALTERNATIONS = 3
"""Each worker has to notice at least this often that it talks to another master than before."""


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_switching_between_two_masters_is_not_taken_for_a_roll_back(
    seed: int, sentinels: Sentinels, fault_crawl: MakeCrawl, start_proxy: StartProxy
) -> None:
    """Each master has a sentinel. Connections are cut repeatedly, so workers ask one of the sentinels again.

    The split ends within the horizon, so no log has an error, and no page is lost.
    """
    crawl = fault_crawl(
        sentinels, site={"pages": 2_400, "latency_s": 0.3}, settings={"DQ_ROLLBACK_HORIZON": HORIZON_S}
    )
    sides = [f"redis://127.0.0.1:{port}" for port in sentinels.ports[:2]]
    proxies = [start_proxy(sides[0]), start_proxy(sides[0])]
    workers = [crawl.project.start_worker(settings={"REDIS_URL": _by_way_of(proxy)}) for proxy in proxies]
    crawl.wait_for(1)
    time.sleep(HORIZON_S + 2)  # from now on, a lost put may be older than the log of its worker
    old, may_repeat = sentinels.master, crawl.leases() - crawl.done.total()
    split_at = time.monotonic()
    sentinels.split()
    new = _wait_for_both(sentinels, old)
    before = _calls(old), _calls(new)
    for number, proxy in enumerate(proxies):
        proxy.lead_to(*sides, seed=2 * seed + number)
    with old.client() as one, new.client() as other, repeated(lambda: _cut(one, other), CUT_EVERY_S):
        wait_until(
            lambda: (
                time.monotonic() - split_at > 0.6 * HORIZON_S
                and all(_rejoins(worker) >= ALTERNATIONS or not worker.running for worker in workers)
            ),
            "each worker has alternated between the masters",
        )
    served = _calls(old) - before[0], _calls(new) - before[1]
    rejoins = [_rejoins(worker) for worker in workers]
    for proxy in proxies:
        proxy.lead_to(sides[1])
    sentinels.heal(old)
    lasted_s = time.monotonic() - split_at
    may_repeat += crawl.leases() + crawl.done.total()

    verdict = crawl.end(120)
    errors = [line for worker in workers for line in outages.lines(worker, "ERROR", "CRITICAL")]
    crawl.note(
        verdict, may_repeat=may_repeat, reasons=verdict.reasons, errors=len(errors),
        rejoins=rejoins, calls=served, lasted_s=round(lasted_s, 1),
    )  # fmt: skip
    if lasted_s > HORIZON_S:
        pytest.skip(f"the machine is too busy: the split lasted {lasted_s:.0f} s, longer than the horizon")
    assert not errors
    assert min(rejoins) >= ALTERNATIONS
    assert min(served) > 0
    crawl.assert_whole(verdict, may_repeat)
    assert sentinels.master is new


def _by_way_of(proxy: RedisProxy) -> str:
    """Return a URL with which a worker asks the sentinel behind *proxy*."""
    return f"redis+sentinel://:pass@{urlsplit(proxy.url).netloc}/{SERVICE}/0"


def _wait_for_both(sentinels: Sentinels, old: RedisServer) -> RedisServer:
    """Wait until most sentinels name another master, and return it. The first sentinel still names *old*."""
    new = sentinels.wait_for_another_master(old)
    with sentinels.sentinel(sentinels.ports[0]) as client:
        assert client.sentinel_master(SERVICE)["port"] == old.port
    return new


def _cut(*clients: redis.Redis) -> None:
    """Close all client connections to these servers, except from replicas and sentinels."""
    for client in clients:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "USER", "default")


def _calls(server: RedisServer) -> int:
    """Return the number of script calls on this server."""
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "fcall"))


def _rejoins(worker: Worker) -> int:
    """Return how often the worker has noticed the other master."""
    return worker.text.count(" continues as ")
