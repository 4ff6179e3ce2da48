"""One process of a measurement by `scale.py`: it runs workers without Scrapy, or scrapy-redis's commands."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha1
from typing import Any, NoReturn
from uuid import uuid4

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from scrapy_dq.codec.formats import REQUEST
from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.answers import Receipt
from scrapy_dq.frontier.model import Admission, Identity, Lease, Order
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.scheduling.admission import entry_ids
from scrapy_dq.sharding.make import worker_of

CRAWL = "scale"
LINKS = 13
KNOWN = 0.92
"""The share of a page's links that the worker has found before."""
HOSTS = 10_000
PAYLOAD_BYTES = 250
AT_ONCE = 16
"""The maximum number of pages that a worker holds. If two bursts have more, their pages are the maximum."""
LOCAL_SEEN = 100_000
OF_SITE = 20
"""Number of pages of a site that its other pages link to."""
SOME_PAGES = 20
"""The number of pages that a worker without a rate does before other workers of its process continue."""


class Pages:
    """The links of each page, and numbers for newly found pages. A page's number modulo HOSTS is its site."""

    def __init__(self, seed: int, away: float, starts: int) -> None:
        self._random = random.Random(seed)
        self._away = away
        self._starts = starts
        self._new = seed << 30
        self._recent: list[int] = []
        self._of_site: dict[int, list[int]] = {}

    def starts(self) -> list[int]:
        """Return the numbers of the first pages."""
        return [self._found(self._random.randrange(HOSTS)) for _ in range(self._starts)]

    def links(self, site: int) -> list[int]:
        """Return the links of a page of this site. The worker has found most of them before."""
        return [self._link(site) for _ in range(LINKS)]

    def _link(self, site: int) -> int:
        known = self._random.random() < KNOWN
        if self._random.random() < self._away:
            return self._random.choice(self._recent) if known else self._found(self._random.randrange(HOSTS))
        if known and site in self._of_site:
            return self._random.choice(self._of_site[site])
        return self._found(site)

    def _found(self, site: int) -> int:
        self._new += 1
        page = self._new * HOSTS + site
        for some, most in ((self._recent, LOCAL_SEEN), (self._of_site.setdefault(site, []), OF_SITE)):
            if len(some) < most:
                some.append(page)
            else:
                some[self._random.randrange(most)] = page
        return page


class Crawler(Listener):
    """A worker with an engine that only follows links."""

    def __init__(self, pages: Pages, urls: Sequence[str], shards: int, page_s: float, burst: int) -> None:
        self._pages = pages
        self._page_s, self._burst = page_s, burst if page_s else SOME_PAGES
        self._sent: OrderedDict[bytes, int] = OrderedDict()
        self._ids = entry_ids()
        self._wake = asyncio.Event()
        self.done = 0
        self.exchange_s: list[float] = []
        clients = [redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) for url in urls]
        frontiers = [
            Frontier(clients[shard % len(urls)], CRAWL, Order.PRIORITY_LIFO, shard=shard)
            for shard in range(shards)
        ]
        for frontier in frontiers:
            self._time(frontier)
        self.worker = worker_of(
            frontiers, Identity("f", "s", "{}", partition_by="slot", shards=shards), WorkerOptions(), self,
            connect=lambda shard: redis.asyncio.Redis.from_url(urls[shard % len(urls)]),
            capacity=lambda: max(AT_ONCE, 2 * burst),
        )  # fmt: skip

    def _time(self, frontier: Frontier) -> None:
        exchange = frontier.exchange

        async def timed(*args: Any) -> Receipt:
            began = time.perf_counter()
            receipt = await exchange(*args)
            self.exchange_s.append(time.perf_counter() - began)
            return receipt

        frontier.exchange = timed  # type: ignore[method-assign]

    async def run(self, after_s: float, until: float) -> None:
        """Start after *after_s*, and crawl until the clock reaches *until*."""
        await asyncio.sleep(after_s)
        await self.worker.start(uuid4().hex)
        for page in self._pages.starts():
            self._put(page, None)
        self.worker.seeded()
        began = time.monotonic()
        while time.monotonic() < until:
            self._wake.clear()
            leases = []
            while len(leases) < self._burst and (lease := self.worker.take()) is not None:
                leases.append(lease)
            for lease in leases:
                self._crawl(lease)
            if leases:
                await asyncio.sleep(max(0.0, began + self.done * self._page_s - time.monotonic()))
            else:
                await self._wake.wait()

    def _crawl(self, lease: Lease) -> None:
        self.worker.downloaded(lease.entry_id)
        for link in self._pages.links(int(lease.partition[12:17])):
            self._put(link, lease.entry_id)
        self.worker.ack(lease.entry_id)
        self.done += 1

    def _put(self, page: int, parent: bytes | None) -> None:
        fingerprint = sha1(page.to_bytes(12, "big")).digest()
        if fingerprint in self._sent:
            if parent is not None:
                self.worker.depends([parent], self._sent[fingerprint])
            return
        partition = b"www.example-%05d.com" % (page % HOSTS)
        payload = bytes((REQUEST,)) + fingerprint * (PAYLOAD_BYTES // 20)
        put = Put(next(self._ids), Admission.SEEN, fingerprint, 0, 0, payload, parent, partition=partition)
        self.worker.put(put)
        self._sent[fingerprint] = put.reference
        if len(self._sent) > LOCAL_SEEN:
            self._sent.popitem(last=False)

    def leases_arrived(self) -> None:
        self._wake.set()


class Peer:
    """Sends the commands of scrapy-redis 0.9 for the same pages, one after the other."""

    def __init__(self, pages: Pages, url: str) -> None:
        self._pages = pages
        self._client = redis.Redis.from_url(url)
        self.done = 0
        self.exchange_s: list[float] = []

    def run(self, until: float) -> None:
        """Crawl until the clock reaches *until*."""
        if not self.done:
            for page in self._pages.starts():
                self._put(page)
        while time.monotonic() < until:
            began = time.perf_counter()
            pipe = self._client.pipeline()
            pipe.multi()
            pipe.zrange("peer:requests", 0, 0).zremrangebyrank("peer:requests", 0, 0)
            popped = pipe.execute()[0]
            self.exchange_s.append(time.perf_counter() - began)
            if popped:
                for link in self._pages.links(self.done % HOSTS):  # the site does not matter
                    self._put(link)
                self.done += 1

    def _put(self, page: int) -> None:
        fingerprint = sha1(page.to_bytes(12, "big")).hexdigest()
        if self._client.sadd("peer:dupefilter", fingerprint):
            payload = fingerprint * (PAYLOAD_BYTES // 40)
            self._client.execute_command("ZADD", "peer:requests", 0, payload)


def crawl(options: dict[str, Any]) -> NoReturn:
    """Crawl, print the number of pages that this process did between two moments, and end."""
    began, until, of_pages = options["begin"], options["until"], (options["away"], options["starts"])
    if options["shards"]:
        given = options["urls"], options["shards"], options["page_s"], options["burst"]
        crawlers = [Crawler(Pages(seed, *of_pages), *given) for seed in options["seeds"]]
        import uvloop

        # The event loop sends the heartbeats, because hundreds of threads would block each other.
        Heartbeat._start_thread = _beat_on_the_loop  # type: ignore[method-assign]
        uvloop.run(_run(crawlers, began, until))
    (seed,) = options["seeds"]
    peer = Peer(Pages(seed, *of_pages), options["urls"][0])
    peer.run(began)
    before, cpu, count = peer.done, time.process_time(), len(peer.exchange_s)
    peer.run(until)
    _end(peer.done - before, time.process_time() - cpu, peer.exchange_s[count:])


def _end(pages: int, cpu_s: float, exchange_s: Sequence[float]) -> NoReturn:
    """Print the counts of this process. End without waiting for requests in flight."""
    print(json.dumps({"pages": pages, "cpu_s": cpu_s, "s": exchange_s}), flush=True)
    os._exit(0)


def _beat_on_the_loop(heartbeat: Heartbeat) -> None:
    heartbeat._thread = asyncio.create_task(heartbeat._rounds())  # type: ignore[assignment]


async def _run(crawlers: Sequence[Crawler], began: float, until: float) -> NoReturn:
    # Start workers one after the other, because Redis queues only 511 new connections, and the system refuses
    # further ones for seconds.
    pause_s = (began - time.monotonic()) / 2 / len(crawlers)
    tasks = [asyncio.create_task(each.run(n * pause_s, until)) for n, each in enumerate(crawlers)]
    await asyncio.sleep(began - time.monotonic())
    before, cpu = sum(each.done for each in crawlers), time.process_time()
    counts = [len(each.exchange_s) for each in crawlers]
    await asyncio.wait(tasks, timeout=until - time.monotonic())
    taken = [s for each, count in zip(crawlers, counts, strict=True) for s in each.exchange_s[count:]]
    _end(sum(each.done for each in crawlers) - before, time.process_time() - cpu, taken)


if __name__ == "__main__":
    crawl(json.loads(sys.argv[1]))
