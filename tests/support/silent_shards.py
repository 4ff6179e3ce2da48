"""A crawl with shards on the nodes of a Redis Cluster. One node may be silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Terms
from support.clusters import Cluster
from support.live_frontier import HandWorker, LiveFrontier, fail, numbers
from support.live_shards import SHARDS, SPREAD, Other, fill
from support.redis_server import RedisServer

SILENT = 1


class Spread:
    """A crawl with shards on three nodes, and a worker."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        def nodes(crawl: str) -> list[RedisServer]:
            return [cluster.owner(keys.meta(keys.Shard(crawl, shard))) for shard in range(SHARDS)]

        self.crawl = next(name for n in count() if len({*nodes(name := f"crawl {n}")}) == SHARDS)
        self.nodes = nodes(self.crawl)
        live = stack.enter_context(closing(LiveFrontier(self.nodes[0].url, self.crawl)))
        home = HandWorker(live, "host-1-00000000000a", SPREAD)
        others = [
            stack.enter_context(closing(Other(self.nodes[shard].url, home, shard)))
            for shard in range(1, SHARDS)
        ]
        self.workers = [
            home,
            *(HandWorker(other, f"host-1-00000000000{n}", SPREAD) for n, other in enumerate(others)),
        ]

    def fail_all(self) -> None:
        fill(self.workers)
        for number, worker in enumerate(self.workers):
            ends = Terms(finish_at=-2 if number else -1)
            while taken := numbers(worker.exchange(want=9, terms=ends)):
                worker.exchange(*map(fail, taken), terms=ends)

    def kept(self, shard: int) -> int:
        name = keys.prefix(keys.Shard(self.crawl, shard)) + "failed"
        return self.workers[shard].live.redis.llen(name)

    @contextmanager
    def silent(self, shard: int = SILENT) -> Iterator[None]:
        self.nodes[shard].suspend()
        try:
            yield
        finally:
            self.nodes[shard].resume()
