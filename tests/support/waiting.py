"""Waits for conditions, always with a deadline."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.01
SLACK = 12
"""The factor by which deadlines are extended, because a machine may be busy.

A wait ends when its condition is true, so a deadline only limits how late a failure is reported. A Stopwatch
can prove that something was quick.
"""
LONGEST_S = 240.0
"""The maximum of a deadline that SLACK extends. It is below `faulthandler_timeout` in pyproject.toml."""
# These ports are below the ephemeral ports of Linux (32768) and macOS (49152). So no outgoing connection
# takes a server's port while the server restarts.
PORTS = range(20_000, 30_000)


def patience(timeout_s: float) -> float:
    """Return the extended deadline, so that no test fails because the machine is busy."""
    return max(timeout_s, min(SLACK * timeout_s, LONGEST_S))


class Stopwatch:
    """Measures the time since its creation, minus the time in which processes waited for processor or disk.

    Therefore a bound is exact on an idle machine and also holds on a busy one. Linux reports these waits
    since 4.20 (/proc/pressure). On other systems `seconds` is 0, and every bound holds.
    """

    def __init__(self) -> None:
        self._began, self._stalled = time.monotonic(), _stalled_s()

    @property
    def seconds(self) -> float:
        """Time passed so far, without stalls."""
        return max(0.0, time.monotonic() - self._began - self.stalled_s)

    @property
    def stalled_s(self) -> float:
        """The excluded time. Add it to a bound for a time that another clock has measured."""
        return max(now - then for now, then in zip(_stalled_s(), self._stalled, strict=True))


def _stalled_s() -> tuple[float, ...]:
    try:
        texts = [Path("/proc/pressure", kind).read_text() for kind in ("cpu", "io")]
    except OSError:
        return (time.monotonic(),)
    # "some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>", and a similar line with "full".
    return tuple(int(text.split("total=", 1)[1].split()[0]) / 1e6 for text in texts)


def wait_until(probe: Callable[[], T], what: str, timeout_s: float = 10.0) -> T:
    """Poll *probe* until its value is truthy. Return this value.

    Raises:
        TimeoutError: *probe* was not truthy within `patience(timeout_s)`. The message contains *what*.
    """
    timeout_s = patience(timeout_s)
    deadline = time.monotonic() + timeout_s
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)
    return value


@contextmanager
def repeated(work: Callable[[], object], every_s: float) -> Iterator[list[object]]:
    """Repeat *work* in a thread until the end of the block. Yield the list of its results."""
    stop = threading.Event()
    found: list[object] = []

    def run() -> None:
        while not stop.wait(every_s):
            found.append(work())

    thread = threading.Thread(target=run, name="repeated", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(10)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port on which no program listens. Another program may still take it."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {host} between {PORTS.start} and {PORTS.stop}")


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
