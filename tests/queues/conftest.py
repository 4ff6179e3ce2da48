"""Fixtures of the tests of scrapy_dq.Queue: queues, and programs in other processes."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scrapy_dq import Queue
from support import stored
from support.redis_server import RedisServer
from support.waiting import patience, wait_until

TESTS = Path(__file__).parents[1]
QUICK = {"REDIS_PARAMS": {"socket_timeout": 0.2}, "DQ_SHUTDOWN_GRACE": 0.5}


class Program:
    """A Python program in another process; it appends lines to a record file."""

    def __init__(self, source: str, record: Path, *args: str, cwd: Path | None = None) -> None:
        self.record = record
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", source, str(record), *args],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill the program with SIGKILL."""
        self._process.kill()
        self._process.wait(10)

    def send(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def end(self, timeout_s: float = 30.0) -> str:
        """Wait until the program ends with exit status 0, and return its output."""
        output, _ = self._process.communicate(timeout=patience(timeout_s))
        assert self._process.returncode == 0, output
        return output

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()


Make = Callable[..., Queue]
StartProgram = Callable[..., Program]
Lines = Callable[[], list[str]]


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Yield a function that starts a program. The program gets the path of a record file, and *args*.

    At the end of the test, the programs are killed.
    """
    with ExitStack() as programs:

        def start(source: str, *args: str, cwd: Path | None = None) -> Program:
            program = Program(source, tmp_path / "record.txt", *args, cwd=cwd)
            programs.callback(program.close)
            return program

        yield start


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that reads the complete lines of the record file."""

    def read() -> list[str]:
        record = tmp_path / "record.txt"
        return record.read_text().rpartition("\n")[0].splitlines() if record.exists() else []

    return read


@pytest.fixture
def make(redis_server: RedisServer, crawl_name: str) -> Iterator[Callable[..., Queue]]:
    """Yield a function that makes a Queue for this test's crawl; it takes Queue's other arguments.

    At the end of the test, the queues are closed and the crawl is deleted.
    """
    with ExitStack() as queues:

        def make_one(maxsize: int = 0, **options: Any) -> Queue:
            options = {"url": redis_server.url} | options
            made = Queue(crawl_name, maxsize, **options)
            queues.callback(made.close)
            return made

        yield make_one
    with redis_server.client() as client:
        stored.roll_back(client, crawl_name, {})


@pytest.fixture(params=["queue.Queue", "scrapy_dq.Queue"])
def like_queue(request: pytest.FixtureRequest, make: Callable[..., Queue]) -> Callable[..., Any]:
    """Return Python's Queue class, or a function that makes our Queue; each test holds for both."""
    return queue.Queue if request.param == "queue.Queue" else make


class Background:
    """A call in another thread; the test expects it to block for a while."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def blocked(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()

    def wait(self, timeout_s: float = 10.0) -> Any:
        """Return the result of the call, or raise its exception."""
        wait_until(lambda: not self._thread.is_alive(), "the call returns", timeout_s)
        if self.error is not None:
            raise self.error
        return self.result

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error


def join_crawl(q: Queue) -> None:
    """Have *q* join its crawl, which has no items."""
    with pytest.raises(queue.Empty):
        q.get_nowait()
