"""A simulated `scrapy crawl`: the real worker, and pages that take a while instead of an engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha1
from typing import Any
from uuid import UUID

from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import Admission, Lease, Order, Put, Status
from scrapy_dq.frontier.worker import worker as worker_module
from scrapy_dq.frontier.worker.heartbeat import Heartbeat
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.worker import Worker, WorkerOptions
from scrapy_dq.scheduling.admission import entry_ids
from simulation.store import CRAWL, BlockingClient, Client, Network
from simulation.virtual import Process, World, world

TTL_S = 3.0
STALL_S = 4.0
GRACE_S = 10.0
CAPACITY = 4
LOOK_S = 0.02
"""How often the crawler looks for work; the engine of Scrapy is called for each event."""


class Site:
    """A tree or a mesh of pages; page 0 is the start."""

    def __init__(self, world: World, pages: int) -> None:
        random = world.random
        self.links: list[list[int]] = [[] for _ in range(pages)]
        for page in range(1, pages):
            self.links[random.randrange(page)].append(page)
        for _ in range(random.choice((0, 0, pages // 2))):
            self.links[random.randrange(pages)].append(random.randrange(pages))
        self.crawled: Counter[int] = Counter()
        """How often the callback of each page has come to its end."""


class Crawler(Listener):
    """One process; `ending` is "" while it runs, and stays so if it is killed."""

    def __init__(self, network: Network, site: Site, name: str) -> None:
        self._network = network
        self._world = network.world
        self._site = site
        self._terminated = False
        self.process = Process(network.world, name)
        self.ending = ""
        self.runs: set[tuple[str, int]] = set()
        """The runs that it has joined, by epoch and number."""
        self.ids: set[str] = set()
        """The ids under which it was registered; a rejoin adds one."""
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self._ids = entry_ids()
        loop = self.process.loop
        frontier = Frontier(Client(network, self.process), CRAWL, Order.FIFO)
        self.worker = Worker(
            frontier,
            Identity(fingerprinter="f", spider="s", spider_args="{}", starts="start"),
            WorkerOptions(ttl_s=TTL_S, stall_timeout_s=STALL_S),
            self,
            connect=lambda: BlockingClient(network),
            capacity=lambda: 0 if self._terminated else CAPACITY,
        )
        self._world.at(self._world.now, lambda: loop.create_task(self._main()), self.process.main)

    @property
    def there(self) -> bool:
        """It has been started, and has neither ended nor been killed."""
        return self.process.alive and not self.ending

    @property
    def _over(self) -> bool:
        return self._terminated or self.worker.lost or self.worker.over

    def terminate(self) -> None:
        """Ask it to end, as SIGTERM does: it gives back what it has not finished."""
        self._terminated = True

    async def _main(self) -> None:
        worker = self.worker
        self.ids.add(worker.id)
        try:
            joined = await worker.start(UUID(bytes=self._world.random.randbytes(16), version=4).hex)
        except Exception as error:
            self.ending = f"not started: {error}"
            return
        self.runs.add((joined.epoch, joined.run))
        if joined.status is not Status.FINISHED:
            self._put(0, None)
            worker.seeded()
            await self._crawl()
        await worker.stop(GRACE_S)
        self.ids.add(worker.id)
        self.ending = self._reason()

    def _reason(self) -> str:
        """Return the reason with which the scheduler would close the spider."""
        if self.worker.lost:
            return "frontier_lost"
        if self._terminated:
            return "terminated"
        return "run_over" if self.worker.over and self.worker.left_over else self.worker.ending

    async def _crawl(self) -> None:
        worker = self.worker
        while not self._over and (worker.pending or self._running):
            while len(self._running) < CAPACITY and (lease := worker.take()) is not None:
                self._running[lease.entry_id] = asyncio.create_task(self._page(lease))
            await asyncio.sleep(LOOK_S)
            self.ids.add(worker.id)
        for entry_id, task in self._running.items():
            task.cancel()
            worker.release(entry_id)

    async def _page(self, lease: Lease) -> None:
        page = int(lease.payload)
        await asyncio.sleep(self._world.random.uniform(0.0, 0.3))
        self._site.crawled[page] += 1
        for child in self._site.links[page]:
            self._put(child, lease.entry_id)
        self.worker.ack(lease.entry_id)
        del self._running[lease.entry_id]

    def _put(self, page: int, parent: bytes | None) -> None:
        payload = b"%d" % page
        fingerprint = sha1(payload).digest()
        self.worker.put(Put(next(self._ids), Admission.SEEN, fingerprint, 0, 0, payload, parent))


def install() -> None:
    """Have workers beat by events instead of a thread, and be on hosts of their own."""

    def start(self: Any, worker_id: str, epoch: str) -> None:
        self._worker = (worker_id, epoch)
        if self._thread is not None:
            return
        self._thread = self._loop = loop = asyncio.get_running_loop()
        process: Process = loop._process  # type: ignore[attr-defined]
        client = self._connect()

        def beat() -> None:
            if not self._stop.is_set():
                self._beat(client)
                process.world.at(process.world.now + self._interval_s, beat, process.heartbeat)

        self._tick_at = loop.time()
        self._tick()
        process.world.at(process.world.now + self._interval_s, beat, process.heartbeat)

    Heartbeat.start = start  # type: ignore[method-assign]
    worker_module.own_identity = lambda: {  # type: ignore[attr-defined]
        "host": f"host{next(world().hosts)}", "boot": "", "pid_namespace": "", "pid": 1, "pid_start": "",
    }  # fmt: skip
