"""Ctrl-C: one line instead of a traceback, or the normal end of a command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


def report_in_one_line() -> None:
    """Install this for the time in which `scrapy dq` imports its modules; a subcommand reports it itself."""
    if sys.argv[1:2] != ["dq"]:
        return
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("scrapy dq: interrupted", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = report


@contextmanager
def ended_quietly() -> Iterator[None]:
    """Treat Ctrl-C and SIGTERM as the normal end of a command that has no other end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
