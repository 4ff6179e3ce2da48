"""A crawl of several shards, each a `LiveFrontier`, and entries for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import Terms
from scrapy_dq.sharding.membership import Home, follow_home
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, put

SHARDS = 3
SPREAD = replace(IDENTITY, shards=SHARDS, partition_by="slot")
HOSTS = [b"%s.example" % name for name in (b"books", b"news", b"shop", b"wiki", b"maps", b"mail")]


class Other(LiveFrontier):
    """A shard other than home."""

    def __init__(self, url: str, home: HandWorker, shard: int) -> None:
        super().__init__(url, home.live.crawl, home.live.order, home.live.seen)
        self.frontier = Frontier(self._client, self.crawl, self.order, seen=self.seen, shard=shard)
        at_home = Frontier(self._client, self.crawl, self.order)
        self._home = Home(home.epoch, home.run, home.joined.shards_exist, at_home.run_state)

    def asked(self, method: str, *args: Any, **named: Any) -> Any:
        if method != "join":
            return super().asked(method, *args, **named)
        worker_id, identity, _, crawl = args
        return follow_home(self.frontier, worker_id, identity, crawl, self._home)


def fill(workers: list[HandWorker]) -> None:
    """Put one entry of each host into the host's shard. Every shard gets some entries."""
    for number, host in enumerate(HOSTS):
        worker = workers[shard_of(host, b"", SHARDS)]
        worker.exchange(put(number, partition=host, payload=b"%d" % number), terms=Terms(finish_at=-1))
    assert {shard_of(host, b"", SHARDS) for host in HOSTS} == set(range(SHARDS))
