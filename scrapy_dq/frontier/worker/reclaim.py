"""Reclaims the leases of dead workers: fences a worker, then drains it in bounded steps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.frontier.worker.heartbeat import LONGEST_INTERVAL_S
from scrapy_dq.frontier.worker.identity import certainly_dead, on_this_machine
from scrapy_dq.frontier.worker.log import LabelledLog

logger = logging.getLogger(__name__)
DRAIN_LIMIT = 500
"""Maximum number of leases that one step moves. It bounds the time for which a step blocks Redis."""
BELIEVED_S = 2 * LONGEST_INTERVAL_S
"""For how many seconds an observation is used. It may be older if this process was frozen, and then a worker
that seemed dead may be back."""


class Reclaimer:
    """Reclaims the leases of dead workers. Any worker continues a reclaim that was interrupted."""

    def __init__(
        self,
        frontier: Frontier,
        own_identity: dict[str, Any],
        max_attempts: int,
        reclaimed: Callable[[int], None],
    ) -> None:
        self._logger = LabelledLog(logger, frontier.name.label)
        self._frontier = frontier
        self._own = own_identity
        self._max_attempts = max_attempts
        self._reclaimed = reclaimed
        self._task: asyncio.Task[None] | None = None
        """The only task for reclaims, so that many simultaneous deaths do not use all connections."""
        self._silent: set[str] = set()
        self._elsewhere: set[str] = set()
        """Silent workers of other machines. Only their heartbeats can show whether they are dead."""
        self._dead: dict[str, None] = {}
        """Dead workers of the last observation that are not reclaimed yet. They are reclaimed in this
        order."""
        self._in_run = ("", 0)
        self._observed_at = 0.0
        self._busy_with = ""
        self._cancelled = False

    async def reclaim(
        self, worker_id: str, epoch: str, run: int, reason: str, *, gone: bool = False, by: str = ""
    ) -> None:
        """Fence *worker_id* and drain its leases.

        Args:
            gone: the worker's process has ended. False: the worker may come back.
            by: see `Frontier.fence`.
        Raises:
            FrontierUnavailable: the worker may be fenced, and partly drained; repeat the call.
        """
        # Fence first: otherwise the worker could take new leases between the steps of the drain.
        status, broken_start = await self._frontier.fence(worker_id, epoch, run, gone, by)
        if status != "OK":
            return
        moved = buried = 0
        left = 1
        while left:
            step_moved, step_buried, left = await self._frontier.drain(
                worker_id, epoch, run, DRAIN_LIMIT, self._max_attempts
            )
            moved += step_moved
            buried += step_buried
        self._logger.info(
            "Worker %s is dead (%s): %d requests reclaimed, %d buried", worker_id, reason, moved, buried
        )
        if broken_start:
            self._logger.info(
                "Worker %s died before its start() was complete: the run cannot finish until a worker with "
                "the same arguments has completed a start()",
                worker_id,
            )
        self._reclaimed(moved)

    async def reclaim_local(
        self, epoch: str, run: int, among: Iterable[str] | None = None, by: str = ""
    ) -> None:
        """Reclaim the leases of workers whose process on this machine is gone, before their TTL has passed.

        Args:
            among: reclaim only workers with these ids; None: all.
            by: see `Frontier.fence`.
        """
        for member in await self._frontier.members():
            if not on_this_machine(member.identity, self._own):
                self._elsewhere.add(member.worker_id)
            if (among is None or member.worker_id in among) and certainly_dead(member.identity, self._own):
                reason = "its process on this machine is gone"
                await self.reclaim(member.worker_id, epoch, run, reason, gone=True, by=by)

    def observed(self, own_id: str, epoch: str, run: int, silent: list[str], dead: list[str]) -> None:
        """Begin reclaims in the background after an observation of heartbeats; *dead* is part of *silent*."""
        dead_now = dict.fromkeys(each for each in dead if each not in (own_id, self._busy_with))
        # The workers that wait longest come first, so that no worker waits behind others whose reclaim fails.
        self._dead = {each: None for each in self._dead if each in dead_now} | dead_now
        self._elsewhere &= set(silent)
        self._silent = set(silent) - set(dead) - {own_id} - self._elsewhere
        self._in_run, self._observed_at = (epoch, run), time.monotonic()
        if (self._dead or self._silent) and self._task is None and not self._cancelled:
            self._task = asyncio.get_running_loop().create_task(self._reclaim_observed())

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _reclaim_observed(self) -> None:
        try:
            while (self._dead or self._silent) and time.monotonic() - self._observed_at < BELIEVED_S:
                if self._silent:
                    among, self._silent = self._silent, set()
                    await self._attempt(self.reclaim_local(*self._in_run, among))
                if self._dead:
                    self._busy_with = next(iter(self._dead))
                    del self._dead[self._busy_with]
                    reason = "its heartbeat has stopped"
                    await self._attempt(self.reclaim(self._busy_with, *self._in_run, reason))
                    self._busy_with = ""
        finally:
            self._task, self._busy_with = None, ""

    async def _attempt(self, work: Awaitable[None]) -> None:
        try:
            await work
        except FrontierError as error:
            self._logger.debug("A reclaim was interrupted and will be continued: %s", error)
