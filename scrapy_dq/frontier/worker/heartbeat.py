"""The heartbeat: a thread that increments this worker's counter, and detects dead workers by theirs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.frontier.worker.counting import Counting

logger = logging.getLogger(__name__)
BEATS_PER_TTL = 6
TICK_S = 0.1
BLOCKED_S = 0.4
"""An event loop that is this late was blocked: timeouts that end then say nothing about Redis."""
LONGEST_INTERVAL_S = 1.0
"""A dead process on the same machine is detected after two intervals, whatever the TTL."""


class Observer:
    """Detects dead workers by their heartbeat counters; clocks of different hosts are never compared.

    A worker is dead if its counter did not change over at least three successful observations that
    together span `ttl_s` of our own monotonic clock. A gap between two observations counts as at most two
    intervals: if Redis or this process was frozen, the other workers may have been, too.
    """

    def __init__(self, ttl_s: float, interval_s: float) -> None:
        self._ttl_s = ttl_s
        self._longest_gap_s = 2 * interval_s
        self._last: float | None = None
        self._still: dict[str, tuple[int, float, int]] = {}

    def missed(self) -> None:
        """Note a failed observation: it restarts the TTL of every worker."""
        self._last = None
        self._still.clear()

    def observe(self, beats: dict[str, int], now: float) -> tuple[list[str], list[str]]:
        """Process all counters, read at *now* (monotonic seconds).

        Returns:
            the ids whose counter did not change since the last observation, and those of them that are dead.
        """
        passed = min(now - self._last, self._longest_gap_s) if self._last is not None else 0.0
        self._last = now
        silent, dead = [], []
        still: dict[str, tuple[int, float, int]] = {}
        for worker_id, beat in beats.items():
            before = self._still.get(worker_id)
            if before is None or before[0] != beat:
                still[worker_id] = (beat, 0.0, 0)
                continue
            span, times = before[1] + passed, before[2] + 1
            still[worker_id] = (beat, span, times)
            silent.append(worker_id)
            if span >= self._ttl_s and times >= 3:
                dead.append(worker_id)
        self._still = still
        return silent, dead


class Heartbeat:
    """Beats from a thread with its own connection, so that a slow callback does not look like a dead worker.

    It stops beating while the event loop has not run for `stall_timeout_s`: a worker that hangs forever
    must lose its leases. `observed(silent, dead)` and, at each beat, `told(words)` with `Words.count` are
    called on the event loop.
    """

    def __init__(
        self,
        frontier: Frontier,
        connect: Callable[[], Any],
        *,
        ttl_s: float,
        stall_timeout_s: float,
        observed: Callable[[list[str], list[str]], None],
        told: Callable[[int], None] = lambda words: None,
        counting: Counting | None = None,
    ) -> None:
        """
        Args:
            counting: what to report from time to time; None: nothing.
        """
        self._frontier = frontier
        self._counting = counting
        self._connect = connect
        self._interval_s = min(ttl_s / BEATS_PER_TTL, LONGEST_INTERVAL_S)
        self._stall_timeout_s = stall_timeout_s
        self._observed = observed
        self._told = told
        self._observer = Observer(ttl_s, self._interval_s)
        self._stalled = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._client: Any = None
        self._worker = ("", "")
        # Of the event loop: when the next tick is due, the number of ticks, when it was last found blocked.
        self._tick_at = 0.0
        self._ticks = 0
        self._blocked_at = 0.0
        # Of the thread: the ticks it has seen, and the number of its own rounds without a new tick.
        self._seen_ticks = 0
        self._rounds_without = 0

    def start(self, worker_id: str, epoch: str) -> None:
        """Beat for *worker_id* from now on; call it again after a rejoin."""
        self._worker = (worker_id, epoch)
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._tick_at = time.monotonic()
            self._tick()
            self._thread = threading.Thread(target=self._run, name="scrapy-dq-heartbeat", daemon=True)
            self._thread.start()

    def blocked_since(self, moment: float) -> bool:
        """Tell whether the event loop has been found blocked after *moment* (monotonic seconds)."""
        return self._blocked_at > moment

    def stop(self) -> None:
        """Stop beating, without waiting for the thread: it may be in the middle of a timeout."""
        self._stop.set()

    def _tick(self) -> None:
        # A timer, because the loop runs late timers in the order in which they were due: this one comes
        # before the timeout of a pending read. A thread may detect a freeze only after that.
        now = time.monotonic()
        if now - self._tick_at > BLOCKED_S:
            self._blocked_at = now
        self._ticks += 1
        self._tick_at = now + TICK_S
        if not self._stop.is_set():
            self._loop.call_later(TICK_S, self._tick)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s) and not self._loop.is_closed():
                self._beat()
        finally:
            if self._client is not None:
                self._client.close()

    def _on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop was closed without stop() being called
            self._loop.call_soon_threadsafe(callback, *args)

    def _beat(self) -> None:
        ticks = self._ticks
        self._rounds_without = self._rounds_without + 1 if ticks == self._seen_ticks else 0
        self._seen_ticks = ticks
        # By rounds, not by the clock: while the process is frozen, the loop does not count as blocked.
        stalled_s = self._rounds_without * self._interval_s
        if stalled_s > self._stall_timeout_s:
            if not self._stalled:
                logger.warning(
                    "The event loop has been blocked for %.0f s, longer than DQ_STALL_TIMEOUT: "
                    "this worker stops its heartbeat, and its requests go to other workers",
                    stalled_s,
                )
            self._stalled = True
            self._observer.missed()
            return
        self._stalled = False
        worker_id, epoch = self._worker
        try:
            if self._client is None:
                self._client = self._connect()
            beats, words = self._look(worker_id, epoch)
        except FrontierUnavailable:
            self._observer.missed()
            return
        except Exception:
            # Without this thread the worker would be fenced again and again.
            logger.exception("Unexpected error in the heartbeat; trying again")
            self._observer.missed()
            return
        beats.pop(worker_id, None)
        silent, dead = self._observer.observe(beats, time.monotonic())
        if self._stop.is_set():
            return
        # At each beat: an answer that was pending when the word was sent clears the call, but lacks the word.
        self._on_loop(self._told, words)
        if silent:
            self._on_loop(self._observed, silent, dead)

    def _look(self, worker_id: str, epoch: str) -> tuple[dict[str, int], int]:
        report = self._counting and self._counting.due(time.monotonic())
        if not (self._counting and report):
            return self._frontier.beats_blocking(self._client, worker_id, epoch)
        found = self._frontier.report_blocking(self._client, worker_id, epoch, report.counted, report.ended_s)
        self._counting.reported(report, time.monotonic())
        return found
