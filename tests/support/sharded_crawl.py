"""A crawl of several shards, with one worker whose calls a test makes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

import msgpack
import redis

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.archive.move import BETWEEN, Moved, Mover
from scrapy_dq.frontier.archive.parts import Shape
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import Shard, shard_of
from scrapy_dq.frontier.model import ELSEWHERE, UNFINISHED, Admission, Order, Seen, Terms
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, bury, fail, put
from support.live_shards import Other
from support.stored import roll_back, stored_state

T = TypeVar("T")
HOSTS = [b"%02d.example" % n for n in range(25)]
MAX_SHARDS = 6
"""Maximum number of shards of a test's crawl."""


class Crawl:
    """A crawl of several shards. Its only worker chooses the shard of each put as a real worker does."""

    def __init__(self, url: str, name: str, seen: Seen, partitioned: bool, order: Order = Order.FIFO) -> None:
        self.url, self.name, self.seen, self.partitioned = url, name, seen, partitioned
        self.order = order
        self.redis = redis.Redis.from_url(url)
        self.numbers = count(1)
        self.workers: list[HandWorker] = []
        self._stack = ExitStack()

    def join(self, shards: int) -> None:
        """Let the worker join all shards."""
        crawl = replace(IDENTITY, shards=shards, partition_by="slot" if self.partitioned else "none")
        home = LiveFrontier(self.url, self.name, self.order, self.seen)
        self._stack.callback(home.disconnect)
        first = HandWorker(home, "worker", crawl)
        self.workers = [first]
        for number in range(1, shards):
            part = Other(self.url, first, number)
            self._stack.callback(part.disconnect)
            self.workers.append(HandWorker(part, "worker", crawl))
        home.call("note_shards", first.epoch, first.run)

    def worker_of(self, partition: bytes, token: bytes) -> HandWorker:
        return self.workers[shard_of(partition, token, len(self.workers))]

    def exchange(self, worker: HandWorker, *moves: Any, want: int = 0) -> list[bytes]:
        at = UNFINISHED if worker is self.workers[0] else ELSEWHERE
        receipt = worker.exchange(*moves, want=want, terms=Terms(finish_at=at))
        return [lease.entry_id for lease in receipt.leases]

    def put(self, **other: Any) -> tuple[bytes, bytes]:
        number = next(self.numbers)
        partition = HOSTS[number % len(HOSTS)] if self.partitioned else b""
        new = put(number, partition=partition, payload=b"%d" % number, **other)
        token = b"%020d" % number if new.admission is Admission.SEEN else new.token
        new = replace(new, token=token)
        self.exchange(self.worker_of(partition, token), new)
        return partition, token

    def settle(self, ending: Callable[[int], Any], most: int) -> None:
        """Lease up to *most* entries of each shard, and settle each lease with a move from *ending*."""
        for worker in self.workers:
            taken = self.exchange(worker, want=most)
            self.exchange(worker, *(replace(ending(0), entry_id=each) for each in taken))

    def leave(self) -> None:
        for worker in self.workers:
            worker.leave()

    def with_frontiers(self, call: Callable[[list[Frontier]], Awaitable[T]]) -> T:
        """Return the result of *call*, which gets the frontiers of MAX_SHARDS shards."""

        async def run() -> T:
            client = redis.asyncio.Redis.from_url(self.url)
            try:
                return await call(
                    [
                        Frontier(client, self.name, self.order, seen=self.seen, shard=number)
                        for number in range(MAX_SHARDS)
                    ]
                )
            finally:
                await client.aclose()

        return asyncio.run(run())

    def move(self, shards: int, url: str = "", order: Order | None = None, seen: Seen | None = None) -> Moved:
        """Move the crawl to *shards* shards, and to the Redis at *url* if given. No worker may run."""

        async def nobody(*_: Any) -> None:
            """Reclaim no worker. If the crawl still has a member, `freeze` refuses the move."""

        async def run() -> Moved:
            async with redis.asyncio.Redis.from_url(self.url) as here, redis.asyncio.Redis.from_url(
                url or self.url
            ) as there:  # fmt: skip

                def of_shard(client: Any, name: str) -> Callable[[int], Awaitable[Frontier]]:
                    async def frontier(number: int) -> Frontier:
                        return Frontier(client, name, self.order, seen=self.seen, shard=number)

                    return frontier

                shape = Shape(order or self.order, seen or self.seen, shards)
                mover = Mover(shape, int, nobody)
                if url:
                    return await mover.to_other_redis(
                        of_shard(here, self.name), of_shard(there, self.name), url
                    )
                between = of_shard(here, self.name + BETWEEN)
                return await mover.in_same_redis(of_shard(here, self.name), between)

        return asyncio.run(run())

    def entries(self) -> Counter[tuple[str, bytes]]:
        """Return the number of entries for each place and id, in all shards together."""
        found: Counter[tuple[str, bytes]] = Counter()
        for number in range(MAX_SHARDS):
            prefix = keys.prefix(Shard(self.name, number))
            for name in self.redis.scan_iter(prefix.replace("*", "\\*") + "backlog:*", count=1000):
                found.update(("backlog", each[8:20]) for each in self.redis.lrange(name, 0, -1))
            for label in ("returned", "quarantine"):
                for each in self.redis.zrange(prefix + label, 0, -1):
                    found["returned", each.partition(b"\0")[2][16:28]] += 1
            found.update(("delayed", each[:12]) for each in self.redis.zrange(prefix + "delayed", 0, -1))
            found.update(("dead", each) for each in self.redis.hkeys(prefix + "dead"))
            failed = self.redis.lrange(prefix + "failed", 0, -1)
            found.update(("failed", msgpack.unpackb(each, raw=True)[0]) for each in failed)
        return found

    def check(self, shards: int) -> None:
        """Assert that the first *shards* shards have their own entries and right counts; others are empty."""
        for number in range(MAX_SHARDS):
            shard = Shard(self.name, number)
            if number >= shards:
                assert not list(self.redis.scan_iter(keys.prefix(shard) + "*", count=1000))
                continue
            if self.partitioned:
                stored_state(self.redis, shard, self.order)
                for partition in self.redis.hkeys(keys.prefix(shard) + "bands"):
                    assert shard_of(partition, b"", shards) == number
            meta = self.redis.hgetall(keys.meta(shard))
            assert int(meta.get(b"shards", b"1")) == shards
            assert not [name for name in meta if name.startswith(b"load:")]

    def close(self) -> None:
        for number in range(MAX_SHARDS):
            roll_back(self.redis, Shard(self.name, number), {})
            roll_back(self.redis, Shard(self.name + BETWEEN, number), {})
        self._stack.close()
        self.redis.close()


def filled(crawl: Crawl, shards: int) -> list[tuple[bytes, bytes]]:
    """Fill a crawl with every kind of entry. Return the partition and token of each filtered put."""
    crawl.join(shards)
    known = [crawl.put(admission=Admission.SEEN) for _ in range(120)]
    crawl.settle(fail, 4)
    crawl.settle(lambda n: bury(n), 3)
    crawl.settle(ack, 2)
    known += [crawl.put(admission=Admission.SEEN, priority=n % 3) for n in range(60)]
    known += [crawl.put(due_in=900.0) for _ in range(20)]
    for worker in crawl.workers:
        crawl.exchange(worker, want=3)
    crawl.leave()  # the leases return to the backlog
    return known


def known_again(crawl: Crawl, known: list[tuple[bytes, bytes]]) -> int:
    """Put all requests in *known* again. Return the number of new entries."""
    admitted = 0
    for partition, token in known:
        worker = crawl.worker_of(partition, token)
        terms = Terms(finish_at=ELSEWHERE)
        waits = worker.exchange(terms=terms).census.waiting
        new = put(next(crawl.numbers), partition=partition, token=token)
        new.admission = Admission.SEEN if len(token) == 20 else Admission.ID
        admitted += worker.exchange(new, terms=terms).census.waiting - waits
    return admitted


def sums(crawl: Crawl, shards: int) -> list[int]:
    """Return the counts of waiting, done, failed and delayed entries in all shards together."""
    metas = (crawl.redis.hget(keys.meta(Shard(crawl.name, n)), "counts").split() for n in range(shards))
    counts = [[int(each[at]) for at in (1, 3, 4, 9)] for each in metas]
    return [sum(each) for each in zip(*counts, strict=True)]
