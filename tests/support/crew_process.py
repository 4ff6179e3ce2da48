"""A `scrapy dq crawl` process, started as a user starts it, and its output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support.project import Project
from support.waiting import patience, wait_until


class CrewProcess:
    """A crew's parent in its own session. Its output and errors go to files in the project."""

    def __init__(self, project: Project, *words: str, number: int = 0) -> None:
        self._out = project.folder / f"crew-{number}.out"
        self._err = project.folder / f"crew-{number}.err"
        self._process = project.launch(["dq", "crawl", project.name, *words], self._out, self._err)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def pids(self) -> list[int]:
        """The pids of all workers that the parent has started so far."""
        return [int(pid) for pid in re.findall(r"worker \d+ started, pid (\d+)", self.err)]

    def wait_for(self, text: str, timeout_s: float = 20.0) -> None:
        """Wait until the parent prints *text*."""
        wait_until(lambda: text in self.err or not self.running, f"the crew prints {text!r}", timeout_s)
        assert text in self.err, self.err + self.out

    def wait(self, timeout_s: float = 40.0) -> int:
        """Wait until the parent ends. Return its exit status."""
        timeout_s = patience(timeout_s)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the crew ran for more than {timeout_s:g} s:\n{self.err}") from None

    def interrupt(self) -> None:
        """Interrupt the parent, as Ctrl-C does. Its workers do not receive the signal."""
        self._process.send_signal(signal.SIGINT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze only the parent during the block. Afterwards, the parent notices all events together."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the parent with SIGKILL."""
        self._process.kill()
        self._process.wait(60)

    def close(self) -> None:
        """Kill the parent, and all workers that still run."""
        for pid in self.pids:
            if alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.kill()


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not run."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for_ends(pids: Sequence[int], timeout_s: float) -> None:
    """Wait until none of these processes runs."""
    wait_until(lambda: not any(map(alive, pids)), f"{pids} have ended", timeout_s)


def paths_of(feed: Path) -> Counter[str]:
    """Return how often a feed of JSON lines has each page's item."""
    return Counter(json.loads(line)["path"] for line in feed.read_text().splitlines())
