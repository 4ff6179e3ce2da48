"""Messages between `scrapy dq crawl` and its child processes: an environment variable, and pipes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

VARIABLE = "SCRAPY_DQ_CREW"


class Handshake(NamedTuple):
    """A worker's number, its ends of two pipes, and the place for its items."""

    number: int
    lifeline: int
    """The worker's end of a pipe. Once the parent has ended, the worker reads EOF from this pipe."""
    reports: int
    """The pipe for the worker's reports."""
    journals: str
    """The folder for the worker's journal; empty if it writes none."""
    feeds: Sequence[str]
    """The URIs, as in FEEDS, of the feeds that are exported from the journals."""

    @classmethod
    def take(cls) -> Handshake | None:
        """Return this process's handshake, once; None outside a crew, or after the first call.

        Children of this process inherit neither the variable nor the pipes.
        """
        text = os.environ.pop(VARIABLE, "")
        if not text:
            return None
        found = cls(*json.loads(text))
        # The embedded Redis may outlive this process, and must not keep these pipes open.
        os.set_inheritable(found.lifeline, False)
        os.set_inheritable(found.reports, False)
        return found


MAX_BYTES = 4096
"""PIPE_BUF: up to this size, a write to a pipe is atomic."""


def send(descriptor: int, report: dict[str, Any]) -> bool:
    """Write *report* to a pipe, and return whether the pipe took it.

    A report is dropped if it is longer than MAX_BYTES, or if a worker's pipe, which does not block, is full.
    """
    # In ASCII, an emoji would take twelve bytes.
    line = json.dumps(report, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    with suppress(OSError):
        return len(line) <= MAX_BYTES and os.write(descriptor, line) == len(line)
    return False


class Reader:
    """The parent's end of a child's pipe for reports; `read` never blocks."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the reports that have arrived since the last call."""
        with suppress(BlockingIOError):
            while part := os.read(self._descriptor, 65536):
                self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        os.close(self._descriptor)


class Child(subprocess.Popen[bytes]):
    """A process that sends reports. It has its own session, so the terminal's Ctrl-C does not reach it."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Callable[[int], Mapping[str, str]],
        passed: int,
        **options: Any,
    ) -> None:
        """
        Args:
            environ: gets the descriptor for reports, and returns additions to the environment.
            passed: a descriptor that the child also gets.
            options: more arguments of Popen.
        Raises:
            OSError: the process cannot be started.
        """
        own_end, child_end = os.pipe()
        self.reader = Reader(own_end)
        try:
            super().__init__(
                command, env=os.environ | environ(child_end), start_new_session=True,
                pass_fds=(child_end, passed), **options,
            )  # fmt: skip
        except BaseException:
            self.reader.close()
            raise
        finally:
            os.close(child_end)
