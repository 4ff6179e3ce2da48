"""The heartbeat: a thread that increments this worker's counters, and detects dead workers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.frontier.worker.counting import Counting
from scrapy_dq.frontier.worker.log import LabelledLog
from scrapy_dq.frontier.worker.outage import Outage, Wait

logger = logging.getLogger(__name__)
BEATS_PER_TTL = 6
TICK_S = 0.1
BLOCKED_S = 0.4
"""If the event loop runs a timer this many seconds late, it was blocked. A timeout at such a time is no sign
of an outage of Redis."""
LONGEST_INTERVAL_S = 1.0
"""A dead process on the same machine is detected after two intervals, however long the TTL is."""
LONGEST_ELSEWHERE_S = 5.0
"""The longest interval in shards other than home. They need no short interval, because only home has commands
for the workers. With many shards, more frequent heartbeats would be a large part of the calls of a slow
worker."""
MANY = 100
"""If there are more members, not every beat reads all heartbeats, because the cost would grow with the square
of their number."""
OBSERVE_PER_MEMBER_S = LONGEST_INTERVAL_S / MANY


class Observer:
    """Detects dead workers by their heartbeat counters. It never compares clocks of different hosts.

    A worker is dead if its counter did not change over at least three successful observations that
    together span `ttl_s` of our own monotonic clock. A gap between two observations counts as at most two
    intervals, because the other workers may have been frozen together with Redis or this process.
    """

    def __init__(self, ttl_s: float, interval_s: float) -> None:
        self._ttl_s = ttl_s
        self.longest_gap_s = 2 * interval_s
        self._last: float | None = None
        self._unchanged: dict[str, tuple[int, float, int]] = {}

    def missed(self) -> None:
        """Record a failed observation, which restarts the TTL of every worker."""
        self._last = None
        self._unchanged.clear()

    def observe(self, beats: dict[str, int], now: float) -> tuple[list[str], list[str]]:
        """Process all counters, read at *now* (monotonic seconds).

        Returns:
            the ids of workers whose counter did not change since the last observation; the dead among these.
        """
        passed = min(now - self._last, self.longest_gap_s) if self._last is not None else 0.0
        self._last = now
        silent, dead = [], []
        unchanged: dict[str, tuple[int, float, int]] = {}
        for worker_id, beat in beats.items():
            before = self._unchanged.get(worker_id)
            if before is None or before[0] != beat:
                unchanged[worker_id] = (beat, 0.0, 0)
                continue
            span, times = before[1] + passed, before[2] + 1
            unchanged[worker_id] = (beat, span, times)
            silent.append(worker_id)
            if span >= self._ttl_s and times >= 3:
                dead.append(worker_id)
        self._unchanged = unchanged
        return silent, dead


class Pulse:
    """The heartbeat of one worker in one frontier.

    Args:
        connect: returns a client of `redis.asyncio`; called in the heartbeat's thread.
        observed: called on the event loop with the ids of silent workers and of dead workers.
        outage: the outage of the exchanges. Beats and exchanges have separate connections, and one of them
            may be cut. If beats get answers for longer than the TTL while exchanges get none, the pulse
            stops, because a worker that cannot settle its leases must lose them.
        commanded: called on the event loop at each beat, with `Commands.count`.
        counting: the figures to report from time to time; None: report no figures.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        frontier: Frontier,
        connect: Callable[[], Any],
        *,
        outage: Outage,
        observed: Callable[[list[str], list[str]], None],
        commanded: Callable[[int], None] = lambda count: None,
        counting: Counting | None = None,
    ) -> None:
        self._is_home = frontier.name.is_home
        rarest_s = min(heartbeat.ttl_s / BEATS_PER_TTL, LONGEST_ELSEWHERE_S)
        self.every = 1 if self._is_home else max(1, int(rarest_s / heartbeat.interval_s))
        """The pulse beats in one of this many rounds."""
        self._logger = LabelledLog(logger, frontier.name.label)
        self._heartbeat = heartbeat
        self._frontier = frontier
        self._connect = connect
        self.observer = Observer(heartbeat.ttl_s, heartbeat.interval_s * self.every)
        self._outage = outage
        self._observed = observed
        self._commanded = commanded
        self._counting = counting
        self._worker = ("", "")
        # Used by the thread: when to read all heartbeats next, if there are many members.
        self._observe_at = 0.0
        self._answered_since: float | None = None
        """The time since which all beats got answers."""
        self._was_cut_off = False
        self._own_frontier: Frontier | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, worker_id: str, epoch: str) -> None:
        """Beat for *worker_id* from now on; call it again after a rejoin."""
        self._worker = (worker_id, epoch)
        self._heartbeat.add(self)

    # In the thread.

    def begin(self) -> None:
        """Begin a beat, unless the last beat has no answer yet, or the worker is cut off."""
        if self.may_beat() and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self.beat())

    def may_beat(self) -> bool:
        """Tell whether the worker is not cut off; if it is, log once that it stops its heartbeat."""
        was_cut_off, self._was_cut_off = self._was_cut_off, self._is_cut_off
        if not self._was_cut_off:
            return True
        self.observer.missed()
        if not was_cut_off:
            self._logger.warning(
                "Redis has answered this worker's heartbeat, but no exchange for %.0f s: it stops its "
                "heartbeat, and its requests go to other workers",
                self._heartbeat.ttl_s,
            )
        return False

    @property
    def _is_cut_off(self) -> bool:
        """Whether exchanges got no answers for longer than the TTL, while beats got answers for as long.

        A worker whose event loop is blocked tries no exchanges, and so is not cut off. After an outage of
        beats and exchanges, the exchanges have one TTL to get an answer.
        """
        unanswered, answered_since = self._outage.unanswered, self._answered_since
        if unanswered is None or answered_since is None:
            return False
        return unanswered[1] - max(unanswered[0], answered_since) > self._heartbeat.ttl_s

    async def end(self) -> None:
        """Cancel the beat that is under way, and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._own_frontier is not None:
            await self._own_frontier.client.aclose()

    async def beat(self) -> None:
        """Beat once, and observe the other workers."""
        worker_id, epoch = self._worker
        observe = time.monotonic() >= self._observe_at
        try:
            beats, commands = await self._ask(worker_id, epoch, observe)
        except Exception as error:
            if not isinstance(error, FrontierError):
                # Without beats, other workers would fence this worker again and again.
                self._logger.exception("Unexpected error in the heartbeat; trying again")
            self.observer.missed()
            self._answered_since = None
            return
        if self._answered_since is None:
            self._answered_since = time.monotonic()
        # Report the count at each beat, even if it is not new. The exchange that follows a new count may have
        # been composed before the command was sent, and then does not bring the command.
        self._heartbeat.on_loop(self._commanded, commands)
        if not observe:
            return
        interval_s = self._heartbeat.observe_interval_s(len(beats), self.every)
        self._observe_at = time.monotonic() + interval_s if len(beats) > MANY else 0.0
        self.observer.longest_gap_s = 2 * interval_s
        beats.pop(worker_id, None)
        silent, dead = self.observer.observe(beats, time.monotonic())
        if silent:
            self._heartbeat.on_loop(self._observed, silent, dead)

    async def _ask(self, worker_id: str, epoch: str, observe: bool) -> tuple[dict[str, int], int]:
        if self._own_frontier is None:
            self._own_frontier = self._frontier.using(self._connect())
        counting, now = self._counting, time.monotonic()
        reports_outage = self._is_home or self._heartbeat.waits_for_home
        report = counting and counting.due(now, self._heartbeat.wait if reports_outage else None)
        if not (counting and report):
            return await self._own_frontier.beat(worker_id, epoch, observe)
        waited_s, reason = (now - report.wait.since, report.wait.reason) if report.wait else (0.0, "")
        found = await self._own_frontier.report(
            worker_id, epoch, observe, report.counted, report.ended_s, waited_s, reason
        )
        counting.reported(report, time.monotonic())
        return found


class Heartbeat:
    """Sends heartbeats from a separate thread, so that a slow callback does not look like a dead worker.

    One thread beats in all frontiers. On the event loop of this thread, all beats are under way at the same
    time, each on its own connection. So a Redis that hangs delays only its own beat, until the connection
    times out.

    The heartbeat stops when the owner's event loop has not run for `stall_timeout_s`, because a worker that
    hangs forever must lose its leases.
    """

    stall_timeout_s = 300.0
    """Some callbacks compute for minutes, and must keep their leases. A callback that hangs delays the
    requests of its worker, and the end of the crawl, for this long."""

    def __init__(self, *, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.interval_s = min(ttl_s / BEATS_PER_TTL, LONGEST_INTERVAL_S)
        self.outages: list[Outage] = []
        """The outages of all frontiers, home first. The heartbeat at home reports the longest outage."""
        self._pulses: list[Pulse] = []
        self._stalled = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Used by the owner's loop: when a tick is due; the number of ticks; when the loop was last found
        # blocked.
        self._tick_at = 0.0
        self._ticks = 0
        self._blocked_at = 0.0
        # Used by the thread: the task that `stop` ends; the number of ticks that the thread has seen; the
        # number of its rounds since the last new tick; the number of its rounds without a stall.
        self._rounds_task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._seen_ticks = 0
        self._rounds_without = 0
        self._rounds_made = 0

    @property
    def wait(self) -> Wait | None:
        """The longest outage now; None if Redis answers."""
        return min(filter(None, [outage.wait for outage in self.outages]), default=None)

    @property
    def waits_for_home(self) -> bool:
        """Whether home gives no answer. If so, this worker reports to the other shards that it waits."""
        return self.outages[0].wait is not None

    def observe_interval_s(self, members: int, every: int = 1) -> float:
        """Return how many seconds pass before a pulse reads all heartbeats again; *every*: see `Pulse`."""
        longest_s = min(OBSERVE_PER_MEMBER_S * members, self.ttl_s / BEATS_PER_TTL)
        return max(self.interval_s * every, longest_s)

    def add(self, pulse: Pulse) -> None:
        """Beat for *pulse* as well; the first pulse starts the thread."""
        if pulse not in self._pulses:
            self._pulses.append(pulse)
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._tick_at = time.monotonic()
            self._tick()
            self._start_thread()

    def blocked_since(self, moment: float) -> bool:
        """Tell whether the event loop has been found blocked after *moment* (monotonic seconds)."""
        return self._blocked_at > moment

    def stop(self) -> None:
        """Stop the heartbeat, without waiting for the thread."""
        self._stop.set()
        if self._rounds_task is not None:
            loop, task = self._rounds_task
            with suppress(RuntimeError):  # the thread has ended
                loop.call_soon_threadsafe(task.cancel)

    def on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        """Call *callback* on the owner's event loop, unless the heartbeat was stopped."""
        if not self._stop.is_set():
            with suppress(RuntimeError):  # the loop was closed without stop() being called
                self._loop.call_soon_threadsafe(callback, *args)

    def due(self) -> list[Pulse]:
        """Begin a round, in the thread; return the pulses that beat in it: none if the owner's loop hangs."""
        ticks = self._ticks
        self._rounds_without = self._rounds_without + 1 if ticks == self._seen_ticks else 0
        self._seen_ticks = ticks
        # Count rounds instead of reading the clock: while the process is frozen, the loop is not blocked.
        stalled_s = self._rounds_without * self.interval_s
        if stalled_s <= self.stall_timeout_s:
            self._stalled = False
            self._rounds_made += 1
            # Pulses that beat in some rounds only are spread over the rounds.
            return [each for n, each in enumerate(self._pulses) if (self._rounds_made + n) % each.every == 0]
        if not self._stalled:
            logger.warning(
                "The event loop has been blocked for %.0f s: this worker stops its heartbeat, and its "
                "requests go to other workers",
                stalled_s,
            )
        self._stalled = True
        for pulse in list(self._pulses):
            pulse.observer.missed()
        return []

    def _tick(self) -> None:
        # A timer detects a blocked loop in time: the loop runs late timers in the order in which they were
        # due, so this timer comes before the timeout of a pending read. A thread might detect the block only
        # later.
        now = time.monotonic()
        if now - self._tick_at > BLOCKED_S:
            self._blocked_at = now
        self._ticks += 1
        self._tick_at = now + TICK_S
        if not self._stop.is_set():
            self._loop.call_later(TICK_S, self._tick)

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="scrapy-dq-heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._rounds())

    async def _rounds(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._rounds_task = asyncio.get_running_loop(), task
        try:
            while not (self._stop.is_set() or self._loop.is_closed()):
                await asyncio.sleep(self.interval_s)
                for pulse in self.due():
                    pulse.begin()
        finally:
            await asyncio.gather(*(pulse.end() for pulse in self._pulses), return_exceptions=True)
