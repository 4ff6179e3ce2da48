"""Reclaim: fence a dead worker, then drain it, in bounded steps."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.frontier.worker.identity import certainly_dead

logger = logging.getLogger(__name__)
DRAIN_LIMIT = 500
"""Most leases that one step moves: bounds how long it blocks Redis."""


def names_of_arguments(starts: str) -> str:
    """Return, for a log, the names of the arguments that a start() was called with; see `Identity.starts`."""
    try:
        names = sorted(json.loads(starts.lstrip("*")))
    except (ValueError, TypeError, RecursionError):
        names = []
    return ascii(", ".join(f"-a {name}" for name in names))[1:-1][:500] or "none"


class Reclaimer:
    """Reclaims the leases of dead workers. Any worker continues a reclaim that was interrupted."""

    def __init__(
        self,
        frontier: Frontier,
        own_identity: dict[str, Any],
        max_attempts: int,
        reclaimed: Callable[[int], None],
    ) -> None:
        self._frontier = frontier
        self._own = own_identity
        self._max_attempts = max_attempts
        self._reclaimed = reclaimed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled = False

    async def reclaim(
        self, worker_id: str, epoch: str, run: int, why: str, *, gone: bool = False, by: str = ""
    ) -> None:
        """Fence *worker_id* and move its leases to quarantine.

        Args:
            gone: its process has ended; else it may come back.
            by: see `Frontier.fence`.
        Raises:
            FrontierUnavailable: it may be fenced, and partly drained; repeat the call.
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
        shown = ascii(worker_id)[1:-1]  # it may be untrusted data
        logger.info("Worker %s is dead (%s): %d requests reclaimed, %d buried", shown, why, moved, buried)
        if broken_start:
            logger.info(
                "Worker %s died before its start() was complete: the run finishes when a worker with the "
                "same arguments (%s) has completed its own",
                shown,
                names_of_arguments(broken_start),
            )
        self._reclaimed(moved)

    async def reclaim_local(
        self, epoch: str, run: int, among: Iterable[str] | None = None, by: str = ""
    ) -> None:
        """Reclaim from workers whose process on this machine is gone, without waiting for the TTL."""
        for member in await self._frontier.members():
            if (among is None or member.worker_id in among) and certainly_dead(member.identity, self._own):
                why = "its process on this machine is gone"
                await self.reclaim(member.worker_id, epoch, run, why, gone=True, by=by)

    def observed(self, own_id: str, epoch: str, run: int, silent: list[str], dead: list[str]) -> None:
        """Reclaim in the background after an observation of the heartbeat; *dead* is a subset of *silent*."""
        for worker_id in dead:
            if worker_id != own_id:
                self._spawn(worker_id, self.reclaim(worker_id, epoch, run, "its heartbeat has stopped"))
        if set(silent) - set(dead):
            self._spawn("local", self.reclaim_local(epoch, run, set(silent) - {own_id}))

    def cancel(self) -> None:
        self._cancelled = True
        for task in self._tasks.values():
            task.cancel()

    def _spawn(self, name: str, work: Any) -> None:
        if name in self._tasks or self._cancelled:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _guard(self, work: Any) -> None:
        try:
            await work
        except FrontierError as error:
            logger.debug("A reclaim was interrupted and will be continued: %s", error)
