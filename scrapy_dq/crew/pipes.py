"""What `scrapy dq crawl` and its workers tell each other: one environment variable, and two pipes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "SCRAPY_DQ_CREW"


@dataclass(frozen=True)
class Handshake:
    """A worker's number, its ends of two pipes, and where its items go."""

    number: int
    lifeline: int
    """Ends (EOF) with the parent."""
    reports: int
    """The worker writes its reports to it."""
    inodes: tuple[int, int]
    """Of the two pipes."""
    journals: str
    """The folder for its journal; empty: it writes none."""
    feeds: Sequence[str]
    """URIs, as FEEDS has them, of those that are exported from the journals."""

    @classmethod
    def write(cls, number: int, lifeline: int, reports: int, journals: str, feeds: Sequence[str]) -> str:
        """Return the variable's value."""
        inodes = (os.fstat(lifeline).st_ino, os.fstat(reports).st_ino)
        return json.dumps(asdict(cls(number, lifeline, reports, inodes, journals, feeds)))

    @classmethod
    def take(cls) -> Handshake | None:
        """Return the handshake of this process, once; its children inherit neither variable nor pipes."""
        text = os.environ.pop(VARIABLE, "")
        if not text:
            return None
        with suppress(ValueError, TypeError, OSError):
            found = cls(**json.loads(text))
            # A crawl started by a worker's spider may have the variable, but not the pipes: it is in no crew.
            if (_pipe(found.lifeline), _pipe(found.reports)) == tuple(found.inodes):
                # The embedded Redis outlives this process: it must not keep these pipes open.
                os.set_inheritable(found.lifeline, False)
                os.set_inheritable(found.reports, False)
                return found
        return None


def _pipe(descriptor: int) -> int:
    """Return the inode of a pipe, 0 of anything else."""
    found = os.fstat(descriptor)
    return found.st_ino if stat.S_ISFIFO(found.st_mode) else 0


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
