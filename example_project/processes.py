"""The processes that the demonstration starts, watches and stops."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Worker:
    """One `scrapy crawl` process."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    @property
    def close_reason(self) -> str:
        found = re.search(r"Spider closed \((.*)\)", self.log.read_text(errors="replace"))
        return found[1] if found else "no close reason"

    @property
    def ending(self) -> str:
        if self.killed:
            return f"killed, exit code {self.process.returncode}"
        return f"{self.close_reason}, exit code {self.process.returncode}"

    @property
    def failed(self) -> bool:
        return not self.killed and (self.process.returncode, self.close_reason) != (0, "finished")


@contextmanager
def running(*command: str, cwd: Path, env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* in its own session, so that Ctrl-C reaches this process alone; stop it at the end."""
    with log.open("wb") as output:
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


def wait_for_url(log: Path, timeout_s: float = 10.0) -> str:
    """Wait for the line in which the site says where it is."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = re.search(r"^(http://\S+)$", log.read_text(), re.MULTILINE)
        if found:
            return found[1]
        time.sleep(0.05)
    raise SystemExit(f"The site did not start within {timeout_s:.0f} s: see {log}")
