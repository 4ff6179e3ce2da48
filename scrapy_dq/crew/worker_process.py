"""One worker of a crew: its process, and the slot that outlasts a restart."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.own_files import open_own
from scrapy_dq.crew.pipes import VARIABLE, Child, Handshake

TAIL_LINES = 8
TAIL_BYTES = 8192
STANDARD_ERROR = 2


class WorkerProcess(Child):
    """A `scrapy crawl` process, which is one worker of the crew.

    Attributes:
        counts: the counts in the last report; see `WorkerAgent._send`.
        run: the run that the worker has joined; None before.
        over: the run was finished before this worker joined.
        new: nothing was crawled in the run when this worker joined.
        joined_at: when the parent read that the worker has joined (monotonic); inf before.
        outage: why the worker gets no usable answer from Redis, as of the last report; "" without an outage.
        reason: why the worker's spider closed; "" before.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        log: Path | None,
        lifeline: int,
        items: tuple[str, Sequence[str]],
    ) -> None:
        self.counts = Counter[str]()
        self.run: Run | None = None
        self.over = self.new = False
        self.joined_at = math.inf
        self.outage = ""
        self.reason = ""
        self.began = time.monotonic()
        self._log = log
        self._log_begin = 0
        with ExitStack() as stack:
            output: int | IO[bytes] = STANDARD_ERROR
            if log is not None:
                output = stack.enter_context(open(log, "ab", opener=open_own))
                self._log_begin = output.tell()
            super().__init__(
                command,
                lambda reports: {VARIABLE: json.dumps(Handshake(number, lifeline, reports, *items))},
                lifeline, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def read(self) -> list[tuple[str, str]]:
        """Process new reports; return the logged messages as pairs: `error` or `warning`, and the text."""
        logged: list[tuple[str, str]] = []
        for report in self.reader.read():
            if "epoch" not in report:
                logged += report.items()
                continue
            self.counts = Counter(report["counts"])
            if report["epoch"]:
                self.run, self.over = Run(report["epoch"], report["run"]), report["over"]
                self.new = report["new"]
                self.joined_at = min(self.joined_at, time.monotonic())
            self.outage = report["outage"]
            self.reason = report["reason"]
        return logged

    def log_tail(self) -> list[str]:
        """Return the last lines that this process has written to its log."""
        if self._log is None:
            return []
        with suppress(OSError), self._log.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(self._log_begin, size - TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return []


def describe_exit(status: int) -> str:
    """Return the meaning of an exit status, for people."""
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


RATE_OVER_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LIVED_S = 60.0
"""If a process has lived for more seconds than this, its death counts as unrelated to the previous death."""


class WorkerSlot:
    """A worker's number, its log, and its current process, if any."""

    def __init__(self, number: int, log: Path | None) -> None:
        self.number = number
        self.name = f"worker {number}"
        self.log = log
        self.process: WorkerProcess | None = None
        self.due = 0.0
        """When the worker will be restarted (monotonic); 0: it will not be restarted."""
        self.state = ""
        """How the last process ended."""
        self.restarts = 0
        self._before = Counter[str]()
        self._deaths = 0
        self._samples = deque([(time.monotonic(), 0)])

    @property
    def counts(self) -> Counter[str]:
        """The sums of the counts of all processes in this slot."""
        return self._before + self.process.counts if self.process else self._before

    @property
    def rate(self) -> float:
        """Pages per second, in about the last RATE_OVER_S seconds."""
        (since, before), (now, pages) = self._samples[0], self._samples[-1]
        return (pages - before) / (now - since) if now > since else 0.0

    def sample(self) -> None:
        """Record the number of pages at this time, for `rate`."""
        now = time.monotonic()
        self._samples.append((now, self.counts["pages"]))
        while now - self._samples[0][0] > RATE_OVER_S:
            self._samples.popleft()

    def take_leave(self, process: WorkerProcess) -> None:
        """Detach the ended process and keep its counts."""
        self._before = self.counts
        self.process = None
        process.reader.close()

    def pause(self, process: WorkerProcess) -> float:
        """Count a restart, and return the seconds to wait before it.

        The wait doubles with each process that dies within LIVED_S, up to LONGEST_PAUSE_S.
        """
        self._deaths = 1 if time.monotonic() - process.began > LIVED_S else self._deaths + 1
        self.restarts += 1
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._deaths - 1))
