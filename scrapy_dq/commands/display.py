"""What commands show: a progress bar in a terminal, a line now and then elsewhere, and rows of counts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 5.0


class ProgressBar:
    """Shows how far something is, on standard error."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr)
        self._bar = (
            Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )  # fmt: skip
        self._what = ""
        self._total = self._done = 0
        self._told_at = time.monotonic()

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, what: str, total: int) -> None:
        """Begin with the next *total* of something."""
        self._what, self._total, self._done = what, total, 0
        if self._bar is not None:
            self._row = self._bar.add_task(what, total=total)

    def advance(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._row, count)
        elif time.monotonic() >= self._told_at + LINE_EVERY_S:
            self._told_at = time.monotonic()
            print(f"{self._done:,} of {self._total:,} {self._what}", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line, above the bar."""
        print(line, file=sys.stderr, flush=True) if self._bar is None else self._bar.console.print(line)


def print_rows(rows: Iterable[tuple[str, int]]) -> None:
    """Print how much there is of what, one per line; numbers stand under each other."""
    found = [(label, f"{count:,}") for label, count in rows]
    left = max((len(label) for label, _ in found), default=0)
    right = max((len(count) for _, count in found), default=0)
    for label, count in found:
        print(f"{label:<{left}}  {count:>{right}}")
