"""A command in a pseudo-terminal, as if a user had started it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.waiting import patience


class Terminal:
    """Runs *command* with all standard streams on its own terminal. `text` is the output so far."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self.text = ""
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._process = subprocess.Popen(
            command, cwd=cwd, env={"TERM": "xterm-256color"} | env, stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str, timeout_s: float = 15.0) -> None:
        """Read until *text* appears in the output that follows.

        Raises:
            TimeoutError: the text did not appear. The message contains the output.
        """
        begin, until = len(self.text), time.monotonic() + patience(timeout_s)
        while text not in self.text[begin:]:
            if time.monotonic() > until or not self._read(until):
                raise TimeoutError(f"{text!r} is not in {self.text[begin:]!r}")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ended(self, timeout_s: float = 15.0) -> int:
        """Wait until the command ends. Return its exit status."""
        until = time.monotonic() + patience(timeout_s)
        while time.monotonic() < until and self._read(until):
            pass
        return self._process.wait(max(0.1, until - time.monotonic()))

    def close(self) -> None:
        """End the command if it still runs."""
        self._process.kill()
        self._process.wait(60)
        os.close(self._ours)

    def _read(self, until: float) -> bool:
        """Read some output. Return False at the end of the output."""
        if not select.select([self._ours], [], [], max(0.0, until - time.monotonic()))[0]:
            return True
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # no other process has the terminal open any more
            return False
        self.text += found.decode("utf-8", "replace")
        return bool(found)


def _take_terminal() -> None:
    # With its own controlling terminal, the command gets a SIGINT when the test types Ctrl-C.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
