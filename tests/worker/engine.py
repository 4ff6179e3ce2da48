"""A small stand-in for Scrapy's engine: it takes leases, puts the children of a tree and acks."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from scrapy_dq.backend.connection import Connection
from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.model import MAX_LEASES, Admission, Commands, Identity, Lease, Order
from scrapy_dq.frontier.moves import Move, Put
from scrapy_dq.frontier.scripts import Function, Script
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.settings import Config
from scrapy_dq.sharding.make import worker_of
from support.waiting import patience

ORDER = Order.FIFO


def script(transition: str) -> Script:
    """Return the script of a transition, as the frontiers of these tests call it."""
    return Script(transition)


def call_of(transition: str) -> tuple[bytes, ...]:
    """Return a transition's names in calls to Redis: its digest for EVALSHA, and its function for FCALL."""
    function = Function(transition).name.encode() if transition == "exchange" else b""
    digest = script(transition).sha.encode()
    return (digest, function) if function else (digest,)


IDENTITY = Identity("fingerprinter", "spider", "{}")

_numbers = count()


async def until(probe: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Wait until *probe* is truthy, without blocking the loop; a TimeoutError names *what*."""
    timeout_s = patience(timeout_s)
    deadline = time.monotonic() + timeout_s
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(0.005)


class Sending(NamedTuple):
    """An entry and the monotonic time at which it was sent."""

    at: float
    partition: bytes
    number: int


@dataclass
class Crawl:
    """A tree of entries: number k has the children k·fan_out+1 … k·fan_out+fan_out below *size*."""

    url: str
    name: str
    size: int = 40
    fan_out: int = 3
    started: Counter[int] = field(default_factory=Counter)
    done: Counter[int] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    sent: list[Sending] = field(default_factory=list)

    def children(self, number: int) -> range:
        first = number * self.fan_out + 1
        return range(min(first, self.size), min(first + self.fan_out, self.size))

    def gaps(self, partition: bytes) -> list[float]:
        """Return the times between one sending of *partition* and the next."""
        return [
            b - a for a, b in pairwise(sending.at for sending in self.sent if sending.partition == partition)
        ]

    @property
    def once(self) -> dict[int, int]:
        """The value of `started` and `done` when each entry was processed exactly once."""
        return dict.fromkeys(range(self.size), 1)


class Engine(Listener):
    """One worker with its driver. `async with` joins the crawl, and leaves it unless the test has done so.

    The driver looks for work only after a callback of the worker, or when its own work has ended. So if the
    worker omits a callback, the test hangs.

    Args:
        url: the Redis URL, such as a proxy's; default: the crawl's.
        concurrency: how many entries are processed at once (`slots`), and how many the worker believes are
            possible (`capacity`). A test may later give the two attributes different values.
        join: whether `async with` joins. If not, the test calls `join`.
        limit: how many requests of a partition may download at once; default: all. If it is given, a download
            ends when the test calls `downloaded`.
        pace: the worker's pace; default: the pace of a crawl.
        make: makes the worker.
        options: the arguments of WorkerOptions.
    """

    def __init__(
        self,
        crawl: Crawl,
        *,
        url: str = "",
        concurrency: int = 4,
        work_s: float = 0.0,
        join: bool = True,
        identity: Identity = IDENTITY,
        timeout_s: float = 2.0,
        limit: Callable[[bytes], int] | None = None,
        pace: Pace | None = None,
        make: Callable[..., Worker] = worker_of,
        **options: Any,
    ) -> None:
        self.crawl = crawl
        self.slots = self.capacity = concurrency
        self.work_s = work_s
        self.may_send, self.may_put, self.may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        """While one of these events is cleared, each entry waits: before it is sent (`may_send`), before it
        puts its children (`may_put`), or before it ends (`may_end`)."""
        self.may_send.set()
        self.may_put.set()
        self.may_end.set()
        self.works: dict[bytes, asyncio.Task[None]] = {}
        self.dropped: list[Put] = []
        self.counts: Counter[Count | type[Move]] = Counter()
        self.told_lost = self.told_finished = 0
        self.commands: list[Commands] = []
        self._join = join
        self._identity = identity
        self._limit = limit
        self._pace = pace
        self._make = make
        self.downloading: set[bytes] = set()
        self._options = WorkerOptions(**options)
        self._wake = asyncio.Event()
        self._connection = Connection(
            Config(crawl.name, redis_url=url or crawl.url, redis_params={"socket_timeout": timeout_s}), Path()
        )
        self._stopped = False

    async def __aenter__(self) -> Engine:
        client = await self._connection.open()
        shards = range(self._identity.shards)
        frontiers = [Frontier(client, self.crawl.name, ORDER, shard=shard) for shard in shards]
        self.frontier = frontiers[0]
        self.worker = self._make(
            frontiers, self._identity, self._options, self,
            connect=lambda shard: self._connection.another(), capacity=lambda: self.capacity,
            limit=self._limit or (lambda partition: MAX_LEASES), pace=lambda shard: self._pace or Pace(),
        )  # fmt: skip
        if self._join:
            await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for work in self.works.values():
            work.cancel()
        if not self._stopped:
            await self.stop(0)
        await self._connection.close()

    @property
    def parts(self) -> Sequence[Worker]:
        return self.worker.parts

    @property
    def home(self) -> Worker:
        return self.worker.parts[0]

    async def until_stored(self, count: int = 1) -> None:
        """Wait until *count* entries wait or are in flight."""
        await until(
            lambda: self.worker.census.waiting + self.worker.census.in_flight == count, "entries are stored"
        )

    async def join(self) -> Joined:
        return await self.worker.start(uuid.uuid4().hex)

    async def stop(self, deadline_s: float = 5.0) -> None:
        self._stopped = True
        self.abandon()
        await self.worker.stop(deadline_s)

    def abandon(self) -> None:
        """Drop all unfinished work, like a process that ends."""
        for work in self.works.values():
            work.cancel()
        self.works.clear()

    def put(
        self, number: int, parent: bytes | None = None, partition: bytes = b"", after_s: float = 0.0
    ) -> bool:
        entry_id, token = b"%012d" % next(_numbers), b"%d" % number
        put = Put(entry_id, Admission.SEEN, token, 0, False, token, parent, partition=partition)
        put.due_at = time.monotonic() + after_s if after_s else 0.0
        return self.worker.put(put)

    def seed(self, numbers: Iterable[int] = (0,)) -> None:
        """Put *numbers* like a `start()` that yields them and ends."""
        for number in numbers:
            self.put(number)
        self.worker.seeded()

    def take(self) -> None:
        """Take leases while there is room, and start to work on them."""
        while len(self.works) < self.slots and (lease := self.worker.take()):
            assert lease.entry_id not in self.works, "an entry that is in work was handed out again"
            self.works[lease.entry_id] = asyncio.create_task(self._work(lease))

    async def run(self) -> None:
        """Work until the crawl has nothing pending or the frontier is lost."""
        while not self.told_lost:
            self._wake.clear()
            self.take()
            if not self.works and not self.worker.pending:
                return
            await self._wake.wait()

    async def _work(self, lease: Lease) -> None:
        number = int(lease.payload)
        self.crawl.started[number] += 1
        self.crawl.attempts[number] = max(self.crawl.attempts[number], lease.attempts)
        await self.may_send.wait()
        self.crawl.sent.append(Sending(time.monotonic(), lease.partition, number))
        self.worker.sent(lease.entry_id)
        self.downloading.add(lease.entry_id)
        if self._limit is None:
            self.downloaded(lease.entry_id)
        await asyncio.sleep(self.work_s)
        await self.may_put.wait()
        for child in self.crawl.children(number):
            self.put(child, lease.entry_id)
        await self.may_end.wait()
        self.crawl.done[number] += 1
        del self.works[lease.entry_id]
        self.worker.ack(lease.entry_id)
        self._wake.set()

    def downloaded(self, entry_id: bytes) -> None:
        """End a download; its callback continues."""
        self.downloading.discard(entry_id)
        self.worker.downloaded(entry_id)
        self._wake.set()

    # The worker calls these methods.

    def leases_arrived(self) -> None:
        self._wake.set()

    def run_finished(self) -> None:
        self.told_finished += 1
        self._wake.set()

    def frontier_lost(self) -> None:
        self.told_lost += 1
        self._wake.set()

    def put_dropped(self, put: Put) -> None:
        self.dropped.append(put)

    def outbox_lost(self, parentless: bool) -> None:
        self.counts["outbox lost, parentless" if parentless else "outbox lost"] += 1

    def commanded(self, before: Commands, commands: Commands) -> None:
        self.commands.append(commands)

    def counted(self, kind: Count | type[Move], amount: float) -> None:
        self.counts[kind] += amount  # type: ignore[assignment]

    @property
    def held(self) -> set[bytes]:
        """The ids of the entries in work."""
        return set(self.works)


def held_by(state: dict[str, Any], worker_id: str) -> set[bytes]:
    """Return the ids of a worker's entries in flight in a stored state."""
    return {entry_id for entry_id, entry in state["entries"].items() if entry[0] == worker_id}


def entries(state: dict[str, Any], where: str) -> dict[int, tuple[str, int, bool, bytes]]:
    """Return the entries in one place of a stored state, by number."""
    return {int(entry[3]): entry for entry in state["entries"].values() if entry[0] == where}
