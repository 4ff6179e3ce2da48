"""The reports of a worker to its parent: JSON lines through a pipe; both ends."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

MAX_BYTES = 4096
"""PIPE_BUF: up to this size, a write to a pipe is atomic."""


def send(descriptor: int, report: dict[str, Any]) -> bool:
    """Write *report* if the pipe has room, without blocking; False: it is dropped."""
    # Not in ASCII, in which an emoji takes twelve bytes.
    line = json.dumps(report, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    with suppress(OSError):
        return len(line) <= MAX_BYTES and os.write(descriptor, line) == len(line)
    return False


class Reader:
    """The parent's end; `read` never blocks."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the reports that have come in."""
        with suppress(BlockingIOError):
            while part := os.read(self._descriptor, 65536):
                self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):
                report = json.loads(line)
                if isinstance(report, dict):
                    found.append(report)
        return found

    def close(self) -> None:
        os.close(self._descriptor)
