"""A simulated program that uses a `Queue` of the crawl: the real `Member`, but without its thread."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.frontier.moves import Move
from scrapy_dq.frontier.worker.listener import Count
from scrapy_dq.queue import member as member_module
from scrapy_dq.queue.calls import Call, Get, ShutDown, putting
from scrapy_dq.queue.member import Member
from scrapy_dq.settings import Config
from simulation.crawler import GRACE_S
from simulation.network import Client, HeartbeatClient, Network
from simulation.plan import Setup
from simulation.pusher import Program
from simulation.site import Page
from simulation.store import CRAWL
from simulation.virtual import Process
from simulation.visits import FED_MARK, Visit, parts

ITEMS: Any = SimpleNamespace(decode=lambda payload: payload)
MAX_GETS = 3
"""Maximum number of gets. The program returns an item that it cannot process, and may get it again."""


@cache
def _config() -> Config:
    return Config.read({"DQ_CRAWL": CRAWL, "REDIS_URL": "redis://simulated"}, {})


class _Thread:
    """A double of LoopThread: the coroutine runs on the simulated process's loop."""

    def __init__(self, live: Callable[[], Coroutine[Any, Any, None]], last: Callable[[], None]) -> None:
        self.opened: Future[None] = Future()
        self.ended = asyncio.Event()
        self._live, self._last = live, last
        self._accepts = True

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def submit(self, call: Callable[..., object], *args: Any) -> None:
        if not self._accepts:
            raise ShutDown
        asyncio.get_running_loop().call_soon(call, *args)

    async def stop_accepting(self) -> None:
        self._accepts = False
        await asyncio.sleep(0)

    async def _run(self) -> None:
        try:
            await self._live()
        finally:
            self._accepts = False
            self._last()
            self.ended.set()


class _Connection:
    """A double of Connection with clients of the simulated network."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process

    async def open(self) -> Client:
        return Client(self._network, self._process)

    async def client_of(self, shard: int) -> Client:
        return Client(self._network, self._process)

    def another(self, shard: int = 0) -> HeartbeatClient:
        return HeartbeatClient(self._network, self._process)

    def note_no_answer(self) -> None: ...

    async def close(self) -> None: ...


class _Member(Member):
    """A member that reports Redis's confirmations to the user."""

    user: QueueUser

    def counted(self, kind: Count | type[Move], amount: float) -> None:
        super().counted(kind, amount)
        self.user.counted(kind)

    async def _join(self) -> None:
        self.user.unconfirmed.clear()
        await super()._join()


class QueueUser(Program):
    """One process that puts pages into the crawl, takes some, and processes pages without links."""

    def __init__(self, network: Network, setup: Setup, site: list[Page], name: str, random: Random) -> None:
        super().__init__(network, name)
        self.name = name
        self.gave_up = True
        """The member has not left in time, or not yet. After an error it may be frozen while it closes."""
        self.visits: list[Visit] = []
        self.unconfirmed: list[Visit] = []
        self._world, self._setup, self._site, self._random = network.world, setup, site, random
        self._network = network
        self._config = replace(
            _config(), worker_ttl_s=setup.ttl_s,
            rollback_horizon_s=setup.horizon_s, max_attempts=setup.max_attempts, data_dir=setup.spill_dir,
            shutdown_grace_s=GRACE_S, redis_params={"socket_timeout": setup.timeout_s}, shards=setup.shards,
        )  # fmt: skip
        self._world.at(
            self._world.now, lambda: self.process.loop.create_task(self._main()), self.process.main
        )
        if random.random() < 0.3:
            self._world.at(self._world.now + random.uniform(0.0, 0.6), self.process.kill)
        elif random.random() < 0.3:
            seconds = random.uniform(0.1, 2.5 * setup.ttl_s)
            self._world.at(self._world.now + random.uniform(0.0, 0.6), lambda: self.process.freeze(seconds))

    @property
    def worker_ids(self) -> set[str]:
        """The ids with which the member considers itself a member."""
        return {each.id for each in self._member.worker.parts}

    def counted(self, kind: Count) -> None:
        """Record the visits that Redis has confirmed."""
        if kind is Count.EXCHANGE:
            dialogues = self._member.worker.parts
            owned = {entry_id for each in dialogues for entry_id in each.leases.owned}
            for visit in self.unconfirmed:
                if visit.entry_id not in owned:
                    visit.confirmed_at = self._world.now
            self.unconfirmed = [visit for visit in self.unconfirmed if not visit.settled]
        elif kind is Count.REJOIN:
            self.unconfirmed.clear()

    async def _main(self) -> None:
        self._member = _Member(self._config, self._setup.order, ITEMS, 0, durable=self._random.random() < 0.5)
        self._member.user = self
        self._member._connection = _Connection(self._network, self.process)  # type: ignore[assignment]
        thread: Any = self._member._thread
        self._member.start()
        try:
            await asyncio.wrap_future(thread.opened)
            await self._put()
            await self._take()
        except (FrontierError, ShutDown) as error:
            self.ending = f"failed: {error}"
        began = self._world.now
        if thread.opened.done() and thread.opened.exception() is None:
            self._member.begin_close()
        await thread.ended.wait()
        self.gave_up = bool(self.ending) or self._world.now - began >= GRACE_S
        self.ending = self.ending or "done"

    async def _put(self) -> None:
        for number in range(self._random.choice((0, 1, 3))):
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            page, origin = self._random.randrange(len(self._site)), f"{self.name}-{number}"
            call = putting([b"%d.0.%s" % (page, origin.encode())], patient=True)
            await self._answer(call)
            self.stored.add((page, origin))

    async def _take(self) -> None:
        for _ in range(self._random.choice((0, MAX_GETS))):
            call = Get()
            try:
                entry_id, payload = await self._answer(call, self._random.uniform(0.05, 0.5))
            except queue.Empty:
                return
            worker, taken_at = self._member.worker, self._world.now
            taken_by = self.worker_ids
            number, attempt, origin = parts(payload)
            page = self._site[number]
            if payload.startswith(FED_MARK) or not page.plain:
                self._member.abandon(call)  # as if its caller was interrupted
                continue
            await asyncio.sleep(page.seconds)
            self._visited(worker, taken_by, number, attempt, origin, taken_at, entry_id)
            self._member.done(entry_id)

    def _visited(
        self, worker: Any, taken_by: set[str], number: int, attempt: int, origin: str, taken_at: float,
        entry_id: bytes,
    ) -> None:  # fmt: skip
        visit = Visit(
            number, attempt, self.name, (worker.epoch, worker.run), worker.id, taken_at, self._world.now,
            entry_id, origin, last=True,
        )  # fmt: skip
        self.visits.append(visit)
        if worker is self._member.worker and self.worker_ids == taken_by:
            self.unconfirmed.append(visit)  # otherwise the lease may be lost by the run's end or a rejoin

    async def _answer(self, call: Call, timeout_s: float | None = None) -> Any:
        self._member.ask(call)
        answer = asyncio.wrap_future(call.future)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), timeout_s)
        except asyncio.TimeoutError:
            self._member.expire(call)
            return await answer


def install() -> None:
    """Let members run without threads and without real connections to Redis."""
    member_module.LoopThread = _Thread  # type: ignore[misc, assignment]
    member_module.Connection = lambda config, folder: None  # type: ignore[misc, assignment]
    # When this process exits, no member is left to close.
    member_module.lifetime = SimpleNamespace(  # type: ignore[assignment]
        opened=lambda member: None, closed=lambda member: None, CLOSING_S=0.0
    )
