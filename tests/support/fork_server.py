"""Forks `scrapy` processes from a process that has already imported Scrapy, because the import is slow.

A fork behaves like `python -m scrapy` in the same folder, except for the imports. A test that sets
environment variables for a worker gets a new process instead, because Python reads some variables when it
starts. In `make soak`, every test gets new processes.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import scrapy.__main__
import scrapy.cmdline

from support import spare_forks

PACKAGES = ("scrapy", "scrapy_dq", "redis.asyncio")
NOT_IMPORTED = ("test", "debug", "ftp")
"""Parts of names of modules to skip. "debug" installs signal handlers, and Scrapy 2.13's "ftp" a reactor."""


class ForkServer:
    """The test's side of the fork server. It starts processes and records their ends.

    Only one thread may use it.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._read = b""
        self._statuses: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.fork_server", str(theirs.fileno())],
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    def start(
        self, words: Sequence[str], folder: Path, out: Path, err: Path, environ: Mapping[str, str]
    ) -> Forked:
        """Start `scrapy *words` in *folder* in its own session, with its output and errors in these files."""
        request = [list(words), str(folder), str(out), str(err), dict(environ)]
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while (started := self._obey()) is None:
            pass
        return Forked(self, started)

    def status(self, pid: int, timeout_s: float) -> int | None:
        """Return the return code of *pid* as subprocess does, or None if it still runs after *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        while pid not in self._statuses:
            left = max(0.0, deadline - time.monotonic())
            if b"\n" not in self._read and not select.select([self._socket], [], [], left)[0]:
                return None
            self._obey()
        return self._statuses[pid]

    def _obey(self) -> int | None:
        """Read a line from the server. Return the pid of a started process, or record a process's end."""
        while b"\n" not in self._read:
            more = self._socket.recv(4096)
            if not more:
                raise RuntimeError("the fork server has ended")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        pid, status = json.loads(line)
        if status is None:
            return int(pid)
        self._statuses[pid] = status
        return None

    def close(self) -> None:
        """End the server. Its processes continue."""
        self._socket.close()
        self._process.wait(60)


class Forked:
    """A process of a `ForkServer`, with the methods of subprocess.Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        return self._server.status(self.pid, 0)

    def wait(self, timeout: float) -> int:
        status = self._server.status(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired("scrapy", timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def import_all() -> None:
    """Import all modules for a crawl except the reactor, which each process chooses for itself."""
    for name in PACKAGES:
        package = import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda _: None):
            if not any(part in found.name for part in NOT_IMPORTED):
                # Optional dependencies may be missing, and some modules are deprecated.
                with suppress(ImportError), catch_warnings():
                    simplefilter("ignore")
                    import_module(found.name)
    import_module("support.tree_spider")
    if "twisted.internet.reactor" in sys.modules:
        raise RuntimeError("a reactor has been installed, which each process has to choose itself")


def serve(connection: socket.socket) -> list[Any] | None:
    """Fork a process for each request. Report its pid, and later its end.

    Returns:
        In a forked process: its request. In the server: None, after the test has closed the connection.
    """
    requests = connection.makefile("rb")  # it buffers only one request, as the test waits for each answer
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for ready in select.select([connection, woken], [], [])[0]:
            if ready is woken:
                os.read(woken, 4096)
                for pid, status in ended_children():
                    connection.sendall(json.dumps([pid, status]).encode() + b"\n")
                continue
            request = requests.readline()
            if not request:
                return None
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wake)
                requests.close()
                connection.close()
                asked: list[Any] = json.loads(request)
                return asked
            connection.sendall(json.dumps([pid, None]).encode() + b"\n")


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap ended processes. Yield each pid with its exit code, which is negative for a signal."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def become(words: list[str], folder: str, out: str, err: str, environ: dict[str, str]) -> None:
    """Run `python -m scrapy *words` in this process. It ends with SystemExit."""
    os.setsid()
    os.chdir(folder)
    for name, descriptor in ((out, 1), (err, 2)):
        output = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(output, descriptor)
        os.close(output)
    if out == err:
        os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(environ)
    sys.dont_write_bytecode = True
    # Set sys.path as a new interpreter does: the folder, the entries of PYTHONPATH, and the rest.
    named = environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [folder, *named, *(path for path in sys.path[1:] if path not in named)]
    if words[:2] == ["dq", "crawl"]:
        spare_forks.prepare(int(words[words.index("-w") + 1]) if "-w" in words else 1)
    sys.argv[:] = [scrapy.__main__.__file__, *words]
    scrapy.cmdline.execute()


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    import_all()
    gc.freeze()
    if request := serve(connection):
        become(*request)


if __name__ == "__main__":
    main()
