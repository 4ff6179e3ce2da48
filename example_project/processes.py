"""The processes that the demonstration starts, watches and stops."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def running(
    *command: str, cwd: Path, env: dict[str, str], output: BinaryIO | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* in its own session, which Ctrl-C in the terminal does not reach; stop it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=env,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_url(log: Path, timeout_s: float = 30.0) -> str:
    """Wait until a line of *log* ends with a URL, and return the URL.

    Raises:
        SystemExit: no line did so within *timeout_s*.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = re.search(r"(?:^|: )(http://\S+)$", log.read_text(), re.MULTILINE)
        if found:
            return found[1]
        time.sleep(0.05)
    raise SystemExit(f"It did not start within {timeout_s:.0f} s: see {log}")
