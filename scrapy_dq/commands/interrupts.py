"""Ctrl-C in the first moments of `scrapy dq`, when nothing is begun: a line, no traceback."""

from __future__ import annotations

import sys
from types import TracebackType


def report_in_one_line() -> None:
    """Let this process end so, if it is a `scrapy dq`; its subcommands say it by themselves once they run."""
    if sys.argv[1:2] != ["dq"]:
        return
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("scrapy dq: interrupted", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = tell
