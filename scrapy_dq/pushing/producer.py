"""A worker for a command. It puts requests, and leases none, because it has no capacity."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable, Identity, Status
from scrapy_dq.frontier.moves import Move, Put
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.pace import Alarm
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.sharding.make import worker_of

logger = logging.getLogger(__name__)
T = TypeVar("T")
PATIENCE_S = 60.0
"""Seconds to wait for a Redis that does not answer."""
LEAVING_S = 5.0
POLL_S = 1.0
"""Seconds between two checks of how long Redis has not answered."""


class Producer(Listener):
    """Joins a run, puts requests in order, and leaves the run open. While it is a member, the run cannot
    finish.

    If it is killed, other workers detect its death, and the run can finish without it.
    """

    def __init__(
        self,
        frontiers: Sequence[Frontier],
        crawl: Identity,
        options: WorkerOptions,
        *,
        connect: Callable[[int], Any],
        dropped: Callable[[Put], None],
        durable: bool = True,
    ) -> None:
        """
        Args:
            frontiers: the frontiers of all shards; the first one is home.
            connect: returns a client of `redis.asyncio` for the heartbeat in the shard with this number;
                called in the heartbeat's thread.
            dropped: called with each put that was already seen.
            durable: do not leave before all puts are on Redis's disk; after an error, leave at once.
        """
        self.disturbed = False
        """Redis was rolled back, or this process was declared dead, so some puts may be missing."""
        self.doubt = ""
        """Why it is not certain that all puts are on disk, in a sentence without a full stop."""
        self._frontiers, self._connect = frontiers, connect
        self._options = replace(options, outage_note=f"Trying again for {PATIENCE_S:.0f} s")
        # This process has no start(), and no supervisor has restarted it.
        self._crawl = replace(crawl, starts="", restart_window_s=0.0)
        self._dropped = dropped
        self._durable = durable
        self._answered, self._waiting = Alarm(), asyncio.Lock()
        self._worker = self._new_worker()

    @property
    def members(self) -> list[tuple[Frontier, str]]:
        """The frontier of each shard, and the id under which this process is registered there."""
        ids = (part.id for part in self._worker.parts)
        return list(zip(self._frontiers, ids, strict=True))

    @property
    def epoch(self) -> str:
        return self._worker.epoch

    @property
    def run(self) -> int:
        return self._worker.run

    @property
    def unconfirmed(self) -> int:
        """Number of puts that Redis has not confirmed."""
        return self._worker.unstored_puts or self._worker.unconfirmed_puts

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[Joined]:
        """Be a member of the run until the end of the block.

        Raises:
            FrontierError: this process cannot join, and has changed nothing. At the end of the block: see
                `hand_in`.
        """
        try:
            joined = await self.with_retries(self._join)
            if joined.loss:
                logger.warning("%s", joined.loss)
            yield joined
            if self._durable:
                deadline = time.monotonic() + PATIENCE_S
                self.doubt = await self._worker.wait_until_durable(self.hand_in, deadline)
            await self.hand_in()
        finally:
            await self._worker.stop(LEAVING_S, durable=False)

    def _new_worker(self) -> Worker:
        return worker_of(
            self._frontiers, self._crawl, self._options, self, connect=self._connect, capacity=lambda: 0
        )

    async def _join(self) -> Joined:
        while True:
            # If an answer was lost, this process may be a member. So it repeats the join under the same id,
            # unless it has left.
            if self._worker.handed_in:
                self._worker = self._new_worker()
            joined = await self._worker.start(uuid.uuid4().hex)
            if joined.status is not Status.FINISHED:
                return joined
            await self._worker.stop(0)
            if self._crawl.run_name:
                raise FrontierRefused(
                    "the run that DQ_RUN_NAME names is finished: another DQ_RUN_NAME starts a new run"
                )
            # With several shards, the run may end while this process joins them. The next try begins a new
            # run.

    async def put(self, put: Put) -> None:
        """Add *put* to the outbox, and hand the outbox in if it fills an exchange.

        Raises:
            FrontierError: see `hand_in`.
        """
        if not self._worker.put(put):
            self._require_run()
        if any(part.full for part in self._worker.parts):
            await self.hand_in()

    async def hand_in(self) -> None:
        """Wait until each shard has answered a new exchange, and has confirmed all puts.

        Raises:
            FrontierError: the crawl has changed, or Redis refuses this process or does not answer.
        """
        async with self._waiting:  # at the end, `wait_until_durable` of each shard calls this
            parts = self._worker.parts
            await self._confirmed(parts)
            if len(parts) > 1:
                # If home has declared this process dead, other workers may have finished the run without
                # these puts.
                await self._confirmed(parts[:1])

    async def _confirmed(self, parts: Sequence[Worker]) -> None:
        worker, silent_since = self._worker, 0.0
        since = worker.composed
        while late := [part for part in parts if not part.has_all(since)]:
            self._require_run()
            for part in worker.parts:
                if part.refusal is not None:
                    raise part.refusal
            now, reason = time.monotonic(), worker.outage
            silent_since = (silent_since or now) if reason else 0.0
            if reason and now - silent_since >= PATIENCE_S:
                raise FrontierUnavailable(reason)
            for part in late:
                part.ask_if_idle()
            # Not asyncio.wait_for, which before Python 3.12 loses a Ctrl-C that comes with an answer.
            await self._answered.wait(POLL_S)
        self._require_run()

    async def with_retries(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of *call*; while Redis does not answer, repeat it for at most PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        logged = False
        while True:
            try:
                answer = await call()
                # redis-py sends inside asyncio.wait_for. Before Python 3.12, that loses a Ctrl-C that comes
                # just after the bytes are sent. Python 3.10 does not cancel the task for Ctrl-C.
                if getattr(asyncio.current_task(), "cancelling", int)():
                    await asyncio.sleep(0)  # since Python 3.12 it may arrive late: let it arrive here
                    raise asyncio.CancelledError
                return answer
            except FrontierUnavailable as error:
                if time.monotonic() >= deadline:
                    raise
                if not logged:
                    logger.warning("%s. Trying again for %.0f s", error, PATIENCE_S)
                    logged = True
                await asyncio.sleep(0.5)

    def _require_run(self) -> None:
        if self._worker.lost or self._worker.over:
            raise FrontierRefused("the run has ended, or the crawl was deleted or replaced: start again")

    # Called by the worker.

    def put_dropped(self, put: Put) -> None:
        self._dropped(put)

    def rolled_back(self, parentless: bool) -> None:
        self.disturbed = True

    def frontier_lost(self) -> None:
        self._answered.ring()

    def counted(self, kind: Count | type[Move], amount: float) -> None:
        if kind is Count.REJOIN:
            self.disturbed = True
        elif kind in (Count.EXCHANGE, Count.ERROR):
            self._answered.ring()
