"""One `scrapy crawl` process and its log."""

from __future__ import annotations

import datetime
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from support.fork_server import Forked, ForkServer
from support.waiting import SLACK, patience, wait_until

LOG_TAIL = 4000


class Worker:
    """A worker that runs or has ended. The file *log* gets its output, including standard error.

    Args:
        command: the command line with the interpreter. A *fork_server* uses only the words after `scrapy`.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        log: Path,
        environ: Mapping[str, str],
        fork_server: ForkServer | None = None,
    ) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | Forked
        with log.open("wb") as output:
            if fork_server:
                words = command[command.index("scrapy") + 1 :]
                self._process = fork_server.start(words, folder, log, log, environ)
                return
            # In its own session, the worker does not get Ctrl-C from the terminal. Pytest gets it and stops
            # the workers.
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, even after the end."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended. It may be suspended."""
        return self._process.poll() is None

    @property
    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")

    @property
    def close_reason(self) -> str | None:
        """The reason in "Spider closed (reason)", or None if the spider has not closed."""
        found = re.findall(r"Spider closed \((\w+)\)", self.text)
        return found[-1] if found else None

    @property
    def stats(self) -> dict[str, Any]:
        """The stats that Scrapy logged at the end of the crawl, or {} without such a log."""
        _, dumped, dump = self.text.rpartition("Dumping Scrapy stats:\n")
        if not dumped:
            return {}
        dump = re.split(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[", dump, maxsplit=1, flags=re.MULTILINE)[0]
        # The worker's log contains a dict in pprint's form.
        stats: dict[str, Any] = eval(dump, {"__builtins__": {}, "datetime": datetime})
        return stats

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for the end. Return the exit code, which is negative for a signal.

        Raises:
            TimeoutError: the process still ran and was killed. The message contains the end of its log.
        """
        timeout_s = patience(max(timeout_s, 0))
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            tail = self.text[-LOG_TAIL:]
            raise TimeoutError(f"worker {self.pid} ran for more than {timeout_s:.0f} s:\n{tail}") from None

    def wait_for_log(self, text: str, timeout_s: float = 20.0) -> None:
        """Wait until the log has *text*. Raise TimeoutError if the worker ends without it, or is too late."""

        def logged_or_ended() -> bool:
            ended = not self.running
            return text in self.text or ended

        wait_until(logged_or_ended, f"worker {self.pid} logs {text!r}; see {self.log}", timeout_s)
        if text not in self.text:
            raise TimeoutError(f"worker {self.pid} ended and never logged {text!r}:\n{self.text[-LOG_TAIL:]}")

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self._process.kill()
        self._process.wait(60)

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait. A second SIGTERM forces an unclean shutdown of Scrapy."""
        self._process.terminate()

    def suspend(self) -> None:
        """Freeze the process."""
        self._process.send_signal(signal.SIGSTOP)

    @property
    def suspended(self) -> bool:
        """Whether the process is already frozen."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def resume(self) -> None:
        """Resume a suspended process."""
        self._process.send_signal(signal.SIGCONT)


def wait_all(workers: Sequence[Worker], timeout_s: float = 60.0) -> list[str | None]:
    """Wait for all *workers* within one deadline. Return their close reasons."""
    deadline = time.monotonic() + patience(timeout_s)
    for worker in workers:
        worker.wait((deadline - time.monotonic()) / SLACK)
    return [worker.close_reason for worker in workers]
