"""One worker of a crew: its counts continue when its process is restarted."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from scrapy_dq.crew.worker_process import Counts, WorkerProcess

RATE_OVER_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LIVED_S = 60.0
"""After so many seconds, a death is considered unrelated to the previous one."""


class WorkerSlot:
    """A number, a log, and the process that runs now, if any."""

    def __init__(self, number: int, log: Path | None) -> None:
        self.number = number
        self.name = f"worker {number}"
        self.log = log
        self.process: WorkerProcess | None = None
        self.due = 0.0
        """When it is restarted (monotonic); 0: it is not."""
        self.state = ""
        """How it ended."""
        self.restarts = 0
        self._before = Counts()
        self._deaths = 0
        self._samples = deque([(time.monotonic(), 0)])

    @property
    def counts(self) -> Counts:
        """What all its processes have reported."""
        return self._before + self.process.counts if self.process else self._before

    @property
    def rate(self) -> float:
        """Pages per second, of the last seconds."""
        (since, before), (now, pages) = self._samples[0], self._samples[-1]
        return (pages - before) / (now - since) if now > since else 0.0

    def sample(self) -> None:
        """Record the number of pages at this time, for `rate`."""
        now = time.monotonic()
        self._samples.append((now, self.counts.pages))
        while now - self._samples[0][0] > RATE_OVER_S:
            self._samples.popleft()

    def take_leave(self, process: WorkerProcess) -> None:
        """Detach its process, which has ended, and keep its counts."""
        self._before = self.counts
        self.process = None
        process.close()

    def pause(self, process: WorkerProcess) -> float:
        """Return the seconds to wait before it is restarted: twice as many each time it dies soon."""
        self._deaths = 1 if time.monotonic() - process.began > LIVED_S else self._deaths + 1
        self.restarts += 1
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._deaths - 1))
