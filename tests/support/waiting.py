"""Wait for something, never without a deadline."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.01
# Below the ephemeral ports of Linux (32768) and macOS (49152), so that no outgoing connection takes a
# port while the server that owns it is down between two starts.
PORTS = range(20_000, 30_000)


def wait_until(probe: Callable[[], T], what: str, timeout_s: float = 10.0) -> T:
    """Poll *probe* until it is truthy and return that value.

    Raises:
        TimeoutError: it was not within *timeout_s*; the message says *what*.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)
    return value


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nothing listens on; another program may still take it first."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {host} between {PORTS.start} and {PORTS.stop}")
