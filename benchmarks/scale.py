"""How many pages a second workers without Scrapy can do, in one or several shards, and what they cost Redis.

Workers speak the real protocol, but there is no Scrapy: a page is a number, and has its links at once. Beside
it the same pages with what scrapy-redis asks of Redis. Run with PYTHONPATH=tests, and with the extra `bench`;
it prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from uuid import uuid4

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from benchmarks.redis_here import found_kinds, used_seconds
from benchmarks.tables import markdown, spread, tell, write_json
from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.keys import PREFIX
from scrapy_dq.frontier.model import Admission, Lease, Order, Put, Receipt
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling.admission import entry_ids
from support.conditions import measured_on
from support.redis_server import Kind, RedisServer

CRAWL = "scale"
LINKS = 13
KNOWN = 0.92
"""Of the links of a page, the share that was seen before."""
STARTS, STARTS_LEAST = 20_000, 50
"""Of all workers together, and the least of each: with so few new links a crawl of one page would soon have
none."""
PEER_STARTS = 100
"""Of a scrapy-redis worker: each takes a round trip."""
HOSTS = 10_000
PAYLOAD_BYTES = 250
AT_ONCE = 16
"""Pages of a worker, or two bursts."""
LOCAL_SEEN = 100_000
OF_SITE = 20
"""Pages of a site to which its others link."""
SOME_PAGES = 20
"""How many a worker does before the others of its process have their turn, if it does as many as it can."""


class Load(NamedTuple):
    """What the workers do, and on what."""

    workers: int
    server: Kind
    rate: float = float("inf")
    """Pages a second, of all workers together."""
    burst: int = 1
    """So many pages of a worker come at once. A busy Scrapy handles several responses before its event loop
    has time for anything else."""
    processes: int = 2
    seconds: float = 10.0
    warm_up: float = 15.0
    away: float = 0.1
    """Of the links, those to another site: a share."""


@dataclass
class Run:
    """One measurement."""

    what: str
    """The number of shards, or scrapy-redis."""
    servers: int
    workers: int
    repetition: int
    pages_per_s: float = 0.0
    redis_us: float = 0.0
    """CPU time of all servers per page."""
    client_us: float = 0.0
    """CPU time of all worker processes per page."""
    batch: float = 0.0
    """Pages per exchange of a worker."""
    busiest: float = 0.0
    """Cores that the busiest server used."""
    p99_ms: float = 0.0
    """Of an exchange, as its worker sees it."""
    worker_bytes: float = 0.0
    """Of Redis's memory per worker: its keys, with its leases, and its connections."""
    idle_us: float = 0.0
    """CPU time of all servers per second and worker."""


class Pages:
    """The links of each page, and the numbers that a worker finds anew. The rest of a number is its site."""

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
        """Return the links of a page: most of them were found before, by this worker."""
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
    """A worker with an engine that does nothing but to follow links."""

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
        self.worker = Worker(
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
        """Start after so many seconds, and crawl until the clock says *until*."""
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
        payload = fingerprint * (PAYLOAD_BYTES // 20)
        put = Put(next(self._ids), Admission.SEEN, fingerprint, 0, 0, payload, parent, partition=partition)
        self.worker.put(put)
        self._sent[fingerprint] = self.worker.shard_of(partition, fingerprint)
        if len(self._sent) > LOCAL_SEEN:
            self._sent.popitem(last=False)

    def leases_arrived(self) -> None:
        self._wake.set()


class Peer:
    """What scrapy-redis 0.9 asks of Redis for the same pages, one command after the other."""

    def __init__(self, pages: Pages, url: str) -> None:
        self._pages = pages
        self._client = redis.Redis.from_url(url)
        self.done = 0
        self.exchange_s: list[float] = []

    def run(self, until: float) -> None:
        """Crawl until the clock says *until*."""
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
                for link in self._pages.links(self.done % HOSTS):  # of any site: the commands are the same
                    self._put(link)
                self.done += 1

    def _put(self, page: int) -> None:
        fingerprint = sha1(page.to_bytes(12, "big")).hexdigest()
        if self._client.sadd("peer:dupefilter", fingerprint):
            payload = fingerprint * (PAYLOAD_BYTES // 40)
            self._client.execute_command("ZADD", "peer:requests", 0, payload)


def child(options: dict[str, Any]) -> None:
    """Be one process of workers; print how many pages they have done between two moments."""
    began, until, of_pages = options["begin"], options["until"], (options["away"], options["starts"])
    if options["shards"]:
        given = options["urls"], options["shards"], options["page_s"], options["burst"]
        crawlers = [Crawler(Pages(seed, *of_pages), *given) for seed in options["seeds"]]
        import uvloop

        # Not in a thread for each: hundreds of them in one process would wait for each other.
        Heartbeat._start_thread = _beat_on_the_loop  # type: ignore[method-assign]
        uvloop.run(_children(crawlers, began, until))
    (seed,) = options["seeds"]
    peer = Peer(Pages(seed, *of_pages), options["urls"][0])
    peer.run(began)
    before, cpu, count = peer.done, time.process_time(), len(peer.exchange_s)
    peer.run(until)
    _end(peer.done - before, time.process_time() - cpu, peer.exchange_s[count:])


def _end(pages: int, cpu_s: float, exchange_s: Sequence[float]) -> NoReturn:
    """Print what this process has done, and end; what is in flight is of no interest."""
    print(json.dumps({"pages": pages, "cpu_s": cpu_s, "s": exchange_s}), flush=True)
    os._exit(0)


def _beat_on_the_loop(heartbeat: Heartbeat) -> None:
    heartbeat._thread = asyncio.create_task(heartbeat._rounds())  # type: ignore[assignment]


async def _children(crawlers: Sequence[Crawler], began: float, until: float) -> NoReturn:
    # One after the other: Redis queues 511 connections, the system refuses more of them for seconds.
    pause_s = (began - time.monotonic()) / 2 / len(crawlers)
    tasks = [asyncio.create_task(each.run(n * pause_s, until)) for n, each in enumerate(crawlers)]
    await asyncio.sleep(began - time.monotonic())
    before, cpu = sum(each.done for each in crawlers), time.process_time()
    counts = [len(each.exchange_s) for each in crawlers]
    await asyncio.wait(tasks, timeout=until - time.monotonic())
    taken = [s for each, count in zip(crawlers, counts, strict=True) for s in each.exchange_s[count:]]
    _end(sum(each.done for each in crawlers) - before, time.process_time() - cpu, taken)


def measure(what: str, shards: int, servers: int, repetition: int, load: Load) -> Run:
    """Crawl for a while, and return what it came to.

    Args:
        shards: 0: by what scrapy-redis asks of Redis, as fast as it can, each worker in its own process.
    """
    run = Run(what, servers, load.workers, repetition)
    with ExitStack() as stack:
        redises = [stack.enter_context(RedisServer(load.server, appendonly=True)) for _ in range(servers)]
        looks = [stack.enter_context(each.client()) for each in redises]
        began = time.monotonic() + load.warm_up
        until = began + load.seconds
        processes = load.processes if shards else load.workers
        seeds = [list(range(1, load.workers + 1))[number::processes] for number in range(processes)]
        starts = max(STARTS_LEAST, STARTS // load.workers) if shards else PEER_STARTS
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.scale", "--child", json.dumps({
                    "urls": [each.url for each in redises], "shards": shards, "seeds": mine,
                    "away": load.away, "page_s": load.workers / load.rate, "burst": load.burst,
                    "starts": starts, "begin": began, "until": until,
                })],
                stdout=subprocess.PIPE, text=True,
            )
            for mine in seeds if mine
        ]  # fmt: skip
        time.sleep(max(0.0, began - time.monotonic()))
        before = [used_seconds(look) for look in looks]
        time.sleep(max(0.0, until - time.monotonic()))
        used = [used_seconds(look) - was for look, was in zip(looks, before, strict=True)]
        run.worker_bytes = sum(map(_bytes_of_workers, looks)) / load.workers
        reports = [json.loads(each.communicate()[0]) for each in children]
    pages = sum(each["pages"] for each in reports)
    taken = sorted(s for each in reports for s in each["s"])
    run.pages_per_s = pages / load.seconds
    run.redis_us = sum(used) / max(1, pages) * 1e6
    run.client_us = sum(each["cpu_s"] for each in reports) / max(1, pages) * 1e6
    run.busiest = max(used) / load.seconds
    run.idle_us = sum(used) / load.seconds / load.workers * 1e6
    run.batch = pages / max(1, len(taken))
    run.p99_ms = taken[int(len(taken) * 0.99)] * 1000 if taken else 0.0
    return run


def _bytes_of_workers(look: Any) -> int:
    names: list[bytes] = []
    for kind in ("worker", "in-flight"):
        names += look.scan_iter(f"{PREFIX}*}}:{kind}:*", 1000)
    of_keys = sum(look.memory_usage(name, samples=0) or 0 for name in names)
    return int(of_keys + look.info("memory")["mem_clients_normal"])


def table(runs: Sequence[Run], load: Load, repetitions: int) -> str:
    """Return the markdown table, with the conditions below it."""
    head = [
        "shards", "servers", "pages/s", "Redis µs/page", "workers µs/page", "pages/exchange",
        "cores of the busiest", "p99, ms",
    ]  # fmt: skip
    rows = []
    for what, servers in dict.fromkeys((run.what, run.servers) for run in runs):
        of = [run for run in runs if (run.what, run.servers) == (what, servers)]
        rows.append([
            what, str(servers), spread([run.pages_per_s for run in of]),
            spread([run.redis_us for run in of], 1), spread([run.client_us for run in of], 1),
            spread([run.batch for run in of], 1), spread([run.busiest for run in of], 2),
            spread([run.p99_ms for run in of], 1),
        ])  # fmt: skip
    return (
        f"{markdown(head, rows)}\n\nMedians (lowest–highest) of {repetitions} repetitions of "
        f"{load.seconds:g} s; {load.workers} workers in {load.processes} processes, without Scrapy, "
        f"{'as fast as they can' if load.rate == float('inf') else f'{load.rate:g} pages/s'}; "
        f"{LINKS} links a page, {KNOWN:.0%} known, {load.away:.0%} to another "
        f"one of {HOSTS:,} sites.\n\n"
        f"{measured_on(('redis',), 'AOF everysec', load.server)}."
    )


def main() -> None:
    """Run what the command line asks for."""
    usual = Load._field_defaults
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tests python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4, 12], metavar="N")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 1, 1, 1], metavar="N", help="for each")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--processes", type=int, default=usual["processes"])
    parser.add_argument(
        "--rate", type=float, default=usual["rate"], metavar="PAGES",
        help="a second, of all workers together: what a page costs Redis depends on how busy it is, too",
    )  # fmt: skip
    parser.add_argument("--burst", type=int, default=usual["burst"], metavar="PAGES", help="at once")
    parser.add_argument(
        "--away", type=float, default=usual["away"], metavar="SHARE",
        help="of the links, those to another site",
    )  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=usual["seconds"])
    parser.add_argument(
        "--warm-up", type=float, default=usual["warm_up"], help="longer than DQ_ROLLBACK_HORIZON"
    )
    parser.add_argument("--server", choices=found_kinds(), default=found_kinds()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single run there, too")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    load = Load(*(getattr(options, name) for name in Load._fields))
    runs: list[Run] = []
    kinds = [(str(n), n, m) for n, m in zip(options.shards, options.servers, strict=True)]
    for repetition in range(options.repetitions):
        for what, shards, servers in (*kinds, ("scrapy-redis", 0, 1)):
            runs.append(measure(what, shards, servers, repetition, load))
            tell(f"{runs[-1]}")
            write_json(options.json, [asdict(run) for run in runs])
    print(table(runs, load, options.repetitions))


if __name__ == "__main__":
    main()
