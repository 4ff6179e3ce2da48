"""A folder with an embedded Redis, and the processes that use it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from scrapy_dq.embedded import EmbeddedRedis
from scrapy_dq.extras import pip_install
from support.waiting import wait_until

EXTRA = pip_install("embedded")
USER = """
import os, sys, time
from pathlib import Path
from typing import Any
from scrapy_dq.embedded import EmbeddedRedis, binary

if sys.argv[2]:
    binary._candidates = lambda: iter([sys.argv[2]])
user = EmbeddedRedis(Path(sys.argv[1]))
print("imported", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.001)
path = user.acquire()
print(user.pid, path, flush=True)
sys.stdin.read()
user.release()
"""


SAYS_7_0 = '[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit'


class User:
    """A process that acquires the server when the file *go* exists, and releases it at `leave`."""

    def __init__(self, place: Place, go: Path, **environ: str) -> None:
        self._output = Path(tempfile.mkstemp(dir=place.home, suffix=".out")[1])
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", USER, str(place.directory), place.binary, str(go)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environ,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, lines: int) -> str:
        """Wait until the process has printed *lines* lines. Return the last of these lines."""

        def line() -> str:
            text = self._output.read_text()
            assert self._process.poll() is None, text
            return text.split("\n")[lines - 1] if text.count("\n") >= lines else ""

        return wait_until(line, "the process prints this line")

    def server(self) -> tuple[int, str]:
        """Return the pid and the socket of the server that this process uses."""
        pid, path = self.wait_for(2).split(" ", 1)
        return int(pid), path

    def signal_group(self, signum: int) -> None:
        """Send a signal to the process group, as a terminal does, and wait until the process ends."""
        os.killpg(self._process.pid, signum)
        self._process.wait(60)

    def leave(self) -> None:
        """Let the process release the server, and wait until the process ends."""
        self._process.communicate(timeout=120)
        assert self._process.returncode == 0, self._output.read_text()

    def kill(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait(60)
        if self._process.stdin:
            self._process.stdin.close()


class Place:
    """A temporary home with the directory of one embedded Redis and all its users."""

    def __init__(self, binary: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="dq-é "))
        self.directory = self.home / "project" / ".scrapy" / "dq"
        self.binary = binary
        self._users: list[EmbeddedRedis] = []
        self._processes: list[User] = []

    def user(self, **options: float) -> EmbeddedRedis:
        """Return another user in this process. The user has not acquired the server yet."""
        user = EmbeddedRedis(self.directory, **options)
        self._users.append(user)
        return user

    def process(self, go: Path | None = None, **environ: str) -> User:
        """Start another user in its own process."""
        process = User(self, go or Path("/"), **environ)
        self._processes.append(process)
        return process

    def client(self, user: EmbeddedRedis) -> redis.Redis:
        """Return a client of the server of *user*."""
        return redis.Redis(unix_socket_path=str(user.acquire()), socket_timeout=5)

    def acquired(self, **options: float) -> EmbeddedRedis:
        """Return another user in this process. The user has acquired the server."""
        user = self.user(**options)
        user.acquire()
        return user

    def script(self, text: str, name: str = "redis-server") -> Path:
        """Write a shell script that replaces a server binary."""
        path = self.home / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def hang(self) -> Path:
        """Let all later servers hang before they become daemons.

        Return the file into which such a server writes the pid of its child process.
        """
        pid_file = self.home / "sleeper.pid"
        self.binary = str(self.script(f"{SAYS_7_0}\nsleep 60 & echo $! >'{pid_file}'; wait"))
        return pid_file

    def fill(self, keys: int) -> None:
        """Store this number of keys, and stop the server."""
        user = self.user()
        pipe = self.client(user).pipeline()
        for number in range(keys):
            pipe.set(str(number), "1")
        pipe.execute()
        user.release()

    def load_slowly(self, delay_us: int) -> None:
        """Let all later servers pause at each key that they load.

        While they load keys, they answer only about once per thousand keys.
        """
        self.binary = str(self.script(f'exec "{self.binary}" "$@" --key-load-delay {delay_us}'))

    def log(self) -> str:
        """Return the log of all servers of this directory."""
        return (self.directory / "redis.log").read_text()

    def close(self) -> None:
        """End all remaining processes of the test and remove the home."""
        for process in self._processes:
            process.kill()
        for user in self._users:
            user.release()
        for process in psutil.process_iter(["cwd"]):
            if (process.info["cwd"] or "").startswith(str(self.home)):
                kill(process.pid)
        shutil.rmtree(self.home)


def lives(pid: int | None) -> bool:
    """Return whether *pid* runs. A zombie does not run."""
    try:
        return psutil.Process(pid or 0).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int | None) -> None:
    """Kill a server and wait until it is gone."""
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not lives(pid), "the server ends")


@contextmanager
def suspended(pid: int | None) -> Iterator[None]:
    """Freeze a server during the block."""
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


every_kind = pytest.mark.usefixtures("redis_kind")


def aof_file(place: Place) -> Path:
    """Return the file to which Redis appends commands."""
    return max(place.directory.rglob("*.aof"), key=lambda path: path.stat().st_size)


def only_path(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


def run_python(script: str, place: Place | None = None) -> str:
    """Run a script in which `user()` makes a new user of *place*. Return the script's output."""
    before = "from scrapy_dq.embedded import *\nfrom scrapy_dq.embedded import binary, server\n"
    if place:
        before += f"binary._candidates = lambda: iter([{place.binary!r}])\n"
        before += f"user = lambda **more: EmbeddedRedis(server.Path({str(place.directory)!r}), **more)\n"
    return subprocess.check_output(
        [sys.executable, "-c", before + textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, text=True, timeout=120,
    )  # fmt: skip
