"""CPU time of other processes: what a crawl costs is told by it even on a machine that is busy otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


class CpuMeter:
    """What processes have used since this was made; of one that has ended, as of the last look."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._used: dict[psutil.Process, float] = {psutil.Process(pid): 0.0 for pid in pids}
        self._began = self._look()

    def seconds(self) -> float:
        """Look, and return seconds of user and system time, all processes together."""
        return self._look() - self._began

    def _look(self) -> float:
        for process in self._used:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._used[process] = times.user + times.system
        return sum(self._used.values())
