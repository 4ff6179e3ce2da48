"""Ctrl-C while `scrapy dq` still imports its modules: one line instead of a traceback."""

from __future__ import annotations

import sys
from types import TracebackType


def report_in_one_line() -> None:
    """Install this for a process of `scrapy dq`; once a subcommand runs, it reports Ctrl-C itself."""
    if sys.argv[1:2] != ["dq"]:
        return
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("scrapy dq: interrupted", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = report
