"""A Redis user loses a right during a crawl, and gets it back. The crawl pauses and loses nothing."""

from __future__ import annotations

import pytest

from support import outages
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl, StartRedis
from support.redis_server import Kind
from support.waiting import wait_until

# Every crawl uses these commands. tests/frontier/test_denied.py tests all commands.
COMMANDS = [
    "rpush",
    "hset",
    *(pytest.param(each, marks=pytest.mark.soak) for each in ("zadd", "hdel", "sadd", "hget")),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_crawl_waits_until_it_has_its_rights_again(
    command: str,
    redis_kind: Kind,
    start_redis: StartRedis,
    fault_crawl: MakeCrawl,
) -> None:
    """Each of two workers warns once, and rejoins at most once. Each page is done once."""
    server = start_redis(redis_kind, appendonly=True)
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "crawler", "on", ">password", "~*", "+@all")
        crawl = fault_crawl(
            server,
            through=server.url.replace("redis://", "redis://crawler:password@"),
            site={"pages": 500, "latency_s": 0.3},
            spider=GATHERED,
        )
        workers = start_together(crawl)
        crawl.wait_for_part(0.2)
        admin.execute_command("ACL", "SETUSER", "crawler", f"-{command}")
        for worker in workers:
            wait_until(lambda w=worker: w.text.count(outages.WARNING) == 1, "a warning")
        admin.execute_command("ACL", "SETUSER", "crawler", f"+{command}")
        crawl.end_whole()

    outages.assert_outages_logged(workers, 1, "denies access")
    assert all(worker.stats.get("dq/rejoins", 0) <= 1 for worker in workers)
