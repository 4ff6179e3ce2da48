"""How long a crawl with nothing left to do stays open for start payloads."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from scrapy_dq.frontier.worker.worker import Worker

logger = logging.getLogger(__name__)
SILENT_S = 2.0
"""Seconds. After this long without an exchange, new start payloads may wait unnoticed."""


class IdleTimeout:
    """Keeps the run open until the whole crawl has had nothing to do for long enough.

    While any worker listens, the run is not finished. Each worker decides separately when to stop listening,
    but all stop at about the same time. When the last worker has stopped, the run is finished, and all close.
    """

    def __init__(self, worker: Worker, patience_s: float, paused: Callable[[], bool]) -> None:
        """
        Args:
            patience_s: seconds without anything to do; 0: do not listen at all; inf: no limit.
            paused: returns whether this worker takes no requests now, although some may wait.
        """
        self._paused = paused
        self._worker = worker
        self._patience_s = patience_s
        self._timer: asyncio.TimerHandle | None = None
        self._since = self._answered_at = 0.0
        self._moved: tuple[int, ...] = ()
        self._was_idle = False
        self.on = patience_s > 0
        if self.on:
            worker.listen(True)

    def idle(self) -> bool:
        """Tell whether the crawl does nothing except listen; if so, begin to measure for how long."""
        if not self._worker.idle:
            return False
        if self._timer is None and math.isfinite(self._patience_s):
            self._since, self._moved = time.monotonic(), self._movements()
            self._check()
        return True

    def exchanged(self) -> bool:
        """Tell whether the crawl has just become idle.

        An idle crawl does nothing except listen. If the crawl is idle at the first exchange, it counts as
        having just become idle.
        """
        self._answered_at = time.monotonic()
        if self.on:  # only while listening, because reading the census of many shards takes time
            self._note_movements()
        was_idle, self._was_idle = self._was_idle, self.on and self._worker.idle
        return self._was_idle and not was_idle

    def stop(self) -> None:
        """Stop listening, because the spider closes."""
        self.on = False
        if self._timer is not None:
            self._timer.cancel()

    def _note_movements(self) -> None:
        """Begin to measure again if any worker has done something since the last call."""
        moved = self._movements()
        if moved != self._moved:
            self._since, self._moved = time.monotonic(), moved

    def _check(self) -> None:
        """Stop listening if the crawl has had nothing to do for long enough, else look again later."""
        self._timer = None
        if not self.on or not self._worker.idle:
            return  # idle() begins the next measurement
        now = time.monotonic()
        if self._worker.outage or now - self._answered_at > SILENT_S or self._paused():
            self._since = now  # there may have been work
        self._note_movements()
        left_s = self._since + self._patience_s - now
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._check)
            return
        logger.info(
            "The crawl has been idle for %.0f s: this worker stops waiting for start payloads, and closes "
            "when the whole crawl is done",
            time.monotonic() - self._since,
        )
        self.stop()
        self._worker.listen(False)

    def _movements(self) -> tuple[int, ...]:
        # Work that other workers took and finished between two calls changes only these counts.
        census = self._worker.census
        return census.done, census.failed, census.dead
