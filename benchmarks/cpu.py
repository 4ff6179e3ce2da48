"""CPU time of other processes, which shows the cost of a crawl even on a busy machine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


class CpuMeter:
    """Measures the CPU time of processes since this object was created.

    For a process that has ended, the last value that was read counts.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._used: dict[psutil.Process, float] = {psutil.Process(pid): 0.0 for pid in pids}
        self._began = self._look()

    def seconds(self) -> float:
        """Read the CPU time of all processes, and return the sum of their user and system time in seconds."""
        return self._look() - self._began

    def _look(self) -> float:
        for process in self._used:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._used[process] = times.user + times.system
        return sum(self._used.values())
