"""The parent of a crew: it starts workers, restarts dead ones, and forwards requests to stop."""

from __future__ import annotations

import atexit
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.monitor import Monitor
from scrapy_dq.crew.worker_agent import AFTER_GRACE_S
from scrapy_dq.crew.worker_process import WorkerProcess, WorkerSlot, describe_exit

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts the signals that ask to stop, so that they interrupt nothing."""

    count = 0
    most = math.inf
    """If `count` exceeds this, the signal ends the process."""

    def listen(self) -> None:
        """Count SIGNALS from now on, instead of their default action.

        This lasts until the process has exited: a signal during the exit must not change the exit status.
        """
        for number in SIGNALS:
            signal.signal(number, self._count)
        # Later in its exit, Python replaces handlers that are functions with the default action.
        atexit.register(_ignore)

    def _count(self, number: int, frame: object) -> None:
        # A closing terminal or session may send SIGHUP twice, or after SIGTERM. The user has asked only once.
        if number != signal.SIGHUP or not self.count:
            self.count += 1
        if self.count > self.most:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


TICK_S = 0.1
BETWEEN_SIGNALS_S = 0.5
"""Minimum seconds between two signals, because the system delivers two pending signals of one kind as one."""
MAX_SHOWN_TEXTS = 10_000
"""Maximum number of shown errors to remember. Most contain a URL, and a crawl may last for weeks."""


class View(Protocol):
    """Shows the progress of the crew."""

    def show(self, crew: Supervisor) -> None: ...
    def say(self, line: str) -> None: ...


class Supervisor:
    """The workers of one crawl in this crew.

    Args:
        command: the command line of a worker.
        logs: one file per worker; None means this process's standard error.
        items: the folder for journals, and the URIs of the feeds that are exported from them.
        restarts: maximum number of restarts of all workers together while the run makes no progress.
        grace_s: DQ_SHUTDOWN_GRACE.
    """

    def __init__(
        self,
        command: Sequence[str],
        logs: Sequence[Path | None],
        items: tuple[str, Sequence[str]],
        *,
        restarts: int,
        grace_s: float,
        monitor: Monitor,
        view: View,
    ) -> None:
        self.slots = [WorkerSlot(number, log) for number, log in enumerate(logs, 1)]
        self.monitor = monitor
        self.began = time.monotonic()
        self.took_s = 0.0
        self.run: Run | None = None
        """The run of the first worker that joined."""
        self.took_part = False
        """A worker joined before the run was finished."""
        self.began_run = False
        """Nothing was crawled in the run when a worker joined it."""
        self._restarts_without_progress = 0
        """Number of restarts since the run's last progress."""
        self._done: tuple[str, int, int] | None = None
        """The progress at the last death: epoch, run, number of done and failed requests."""
        self._command = command
        self._items = items
        self._restarts = restarts
        self._grace_s = grace_s
        self._view = view
        self._say: Callable[[str], None] = view.say
        self._shown_texts = set[str]()
        """Errors and warnings of workers: each is shown once."""
        self._start_failed = False
        """A worker could not start, and the end of its log was shown."""
        self._forwarded = 0
        self._forwarded_at = 0.0
        self._stops: int | None = None
        self._calm_at = 0.0
        """Time (monotonic) of the newest snapshot that shows no new `scrapy dq stop`."""
        self._called_off = False
        # Only this process has the write end. If this process dies, the kernel closes that end, and the
        # workers notice.
        self._lifeline, self._life = os.pipe()

    @property
    def finished(self) -> bool:
        """Whether the run is finished, according to the newest snapshot."""
        overview = self.monitor.overview
        if self.run is None or overview is None or overview.epoch != self.run.epoch:
            return False
        return overview.run > self.run.number or (
            overview.run == self.run.number and overview.phase == "finished"
        )

    @property
    def stopping(self) -> bool:
        return self._forwarded > 0

    def work(self, stops: StopSignals) -> None:
        """Start the workers, and return once none is left and none will be restarted."""
        try:
            for slot in self.slots:
                self._start(slot)
            while any(slot.process or slot.due for slot in self.slots):
                for slot in self.slots:
                    self._attend(slot)
                    slot.sample()
                self._check_stop()
                self._forward_stops(stops.count)
                self._view.show(self)
                time.sleep(TICK_S)
        finally:  # after an unexpected error, live workers see the end of the pipe and stop
            os.close(self._life)
            os.close(self._lifeline)
        self.took_s = time.monotonic() - self.began
        self.monitor.poll()
        if not self.finished and not self.stopping:
            self._say("No worker is left, and the run is not finished.")

    def _start(self, slot: WorkerSlot) -> None:
        slot.due = 0.0
        try:
            slot.process = WorkerProcess(slot.number, self._command, slot.log, self._lifeline, self._items)
        except OSError as error:
            slot.state = "cannot be started"
            self._say(f"{slot.name} cannot be started: {error}")
            return
        self._say(f"{slot.name} started, pid {slot.process.pid}")

    def _attend(self, slot: WorkerSlot) -> None:
        process = slot.process
        if process is None:
            if slot.due and time.monotonic() >= slot.due:
                self._start_again(slot)
            return
        # Poll before reading: if the process has ended, all its reports are already in the pipe.
        status = process.poll()
        for kind, text in process.read():
            if text not in self._shown_texts:
                self._say(f"Warning: {text}" if kind == "warning" else f"{slot.name}: {text}")
            if len(self._shown_texts) >= MAX_SHOWN_TEXTS:
                self._shown_texts.clear()
            self._shown_texts.add(text)
        self.run = self.run or process.run
        self.took_part |= process.run is not None and not process.over
        self.began_run |= process.new
        if status is not None:
            self._ended(slot, process, status)

    def _ended(self, slot: WorkerSlot, process: WorkerProcess, status: int) -> None:
        slot.take_leave(process)
        # A worker that has closed its spider has ended normally, even if SIGTERM killed it during its exit.
        if process.reason and status in (0, -signal.SIGTERM):
            slot.state = process.reason
            if process.reason != "finished":
                self._say(f"{slot.name} closed: {process.reason}")
            return
        slot.state = describe_exit(status)
        if self.stopping and status == 0:
            slot.state = "stopped"  # by the second signal, so it sent no last report
            return
        self._say(f"{slot.name} died: {slot.state}")
        if self.stopping or self._called_off:
            return
        cannot_start = process.run is None and status >= 0 and self.run is None
        if (process.run is None or status >= 0) and not (cannot_start and self._start_failed):
            for line in process.log_tail():
                self._say(f"  {line}")
        if cannot_start:
            # No worker has joined so far, so a restart would fail in the same way.
            self._start_failed = True
            self._say(f"{slot.name} could not start; its log is {slot.log or 'standard error'}")
        elif not self._may_restart():
            self._say(f"{slot.name} is not restarted: {self._restarts} restarts are the limit (--restarts)")
        else:
            pause_s = slot.pause(process)
            slot.due = time.monotonic() + pause_s
            slot.state = f"{slot.state}; restart in {pause_s:g} s"

    def _may_restart(self) -> bool:
        """Count one more restart, and return whether it is allowed. Progress of the run resets the count."""
        overview = self.monitor.overview
        done = (
            (overview.epoch, overview.run, overview.census.done + overview.census.failed)
            if overview
            else None
        )
        if done != self._done:
            self._done, self._restarts_without_progress = done, 0
        self._restarts_without_progress += 1
        return self._restarts_without_progress <= self._restarts

    def _start_again(self, slot: WorkerSlot) -> None:
        if self.monitor.at < slot.due - TICK_S and not self.monitor.problem:
            return  # wait for a newer snapshot, because the run may have ended since the last one
        if self.finished:
            slot.due, slot.state = 0.0, "died; the run is finished"
        else:
            self._start(slot)

    def _check_stop(self) -> None:
        """After `scrapy dq stop`, start no more workers, and stop workers that may have joined later.

        The command reaches only registered workers. A worker that joins later would continue the crawl.
        """
        at, overview = self.monitor.at, self.monitor.overview
        if overview is None or self._called_off:
            return
        if self._stops is None or overview.stops <= self._stops:
            self._stops, self._calm_at = overview.stops, at
            return
        self._called_off = True
        self._say("All workers of the crawl were asked to stop: none is restarted")
        for slot in self.slots:
            if slot.due:
                slot.due, slot.state = 0.0, "died; not restarted"
        late = [
            slot.process for slot in self.slots if slot.process and slot.process.joined_at > self._calm_at
        ]
        self._signal(late, signal.SIGTERM)

    def _forward_stops(self, stops: int) -> None:
        """Forward requests to stop to the workers, and kill workers that do not end."""
        now = time.monotonic()
        processes = [slot.process for slot in self.slots if slot.process]
        if stops > self._forwarded and self._forwarded < 2 and now >= self._forwarded_at + BETWEEN_SIGNALS_S:
            self._forwarded, self._forwarded_at = self._forwarded + 1, now
            for slot in self.slots:
                slot.due = 0.0
            how = (
                "finish what they have started; Ctrl-C again stops at once"
                if self._forwarded == 1
                else "stop at once"
            )
            if processes:
                self._say(f"Stopping: the workers {how}")
            self._signal(processes, signal.SIGTERM)
        elif self._forwarded == 2 and now >= self._forwarded_at + self._grace_s + AFTER_GRACE_S:
            self._forwarded = 3
            for slot in self.slots:
                if slot.process:
                    self._say(f"{slot.name} does not stop: killed")
            self._signal(processes, signal.SIGKILL)

    @staticmethod
    def _signal(processes: list[WorkerProcess], number: signal.Signals) -> None:
        for process in processes:
            process.send_signal(number)
