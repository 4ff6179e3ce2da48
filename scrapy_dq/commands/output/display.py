"""Show progress (a bar in a terminal, elsewhere a line every 5 s), counts, tables and JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from scrapy_dq.text import printable

LINE_EVERY_S = 5.0
LONGEST_CELL = 2000


class ProgressBar:
    """Shows progress on standard error. If the terminal or pipe closes, the command continues."""

    def __init__(self) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=Console(file=sys.stderr))
        self._drawn = self._bar.console.is_terminal
        self._printed_at = time.monotonic()

    def __enter__(self) -> ProgressBar:
        if self._drawn:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            self._bar.stop()

    def begin(self, label: str, total: int) -> None:
        """Start to count from 0 to *total*. *label* names the things that are counted."""
        self._row = self._bar.add_task(label, total=total)

    def advance(self, count: int) -> None:
        """Add *count* to the progress."""
        self._bar.advance(self._row, count)
        if not self._drawn and time.monotonic() >= self._printed_at + LINE_EVERY_S:
            self._printed_at, task = time.monotonic(), self._bar.tasks[-1]
            print(f"{task.completed:,} of {task.total:,} {task.description}", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line, above the bar."""
        if self._drawn:
            # Text, not markup: the line may quote a URL of a page.
            self._bar.console.print(Text(line))
        else:
            print(line, file=sys.stderr, flush=True)


def print_json(found: Any) -> None:
    """Print one JSON value, in ASCII, for programs."""
    print(json.dumps(found, indent=2))


def print_found(
    found: dict[str, Any], as_json: bool, rows: Iterable[tuple[str, int]], lines: Iterable[str] = ()
) -> None:
    """Print the result of a command: *found* as JSON, or a text: the crawl, its Redis, *rows* and *lines*."""
    if as_json:
        print_json(found)
        return
    print(f"Crawl {found['crawl']!r} at {found['redis']}")
    print_rows(rows)
    for line in lines:
        print(line)


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[str] = (),
    wraps: Sequence[str] = (),
) -> Table:
    """Return a table that is also readable without colours.

    Args:
        rows: the cells of each row. A cell is one line, or a tuple of lines.
        numbers: columns that are aligned right.
        wraps: columns whose long texts are wrapped, by default the last one. In other columns, they are cut.
    """
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        wrapped = column in (wraps or columns[-1:])
        table.add_column(
            column, justify="right" if column in numbers else "left", no_wrap=not wrapped,
            overflow="fold" if wrapped else "ellipsis",
        )  # fmt: skip
    for row in rows:
        # Text, not markup: URLs come from pages.
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: Sequence[str] = (),
    wraps: Sequence[str] = (),
    most: int | None = None,
) -> None:
    """Print a table (see `table_of`), as wide as the terminal.

    Args:
        most: maximum number of printed rows, because each takes half a millisecond. A last line counts the
            other rows, and refers to --json.
    """
    console = Console(highlight=False, markup=False)
    with console.capture() as shown:
        console.print(table_of(columns, rows[:most], numbers=numbers, wraps=wraps))
    for line in shown.get().splitlines():
        print(line.rstrip())
    if most is not None and len(rows) > most:
        print(f"and {len(rows) - most:,} more (--json lists all)")


def green_bar(done: int, total: int) -> Bar:
    """Return a bar for a live view; it pulses while *total* is unknown."""
    return Bar(
        total=total or None, completed=done, pulse=not total, style="bright_black", complete_style="green",
        finished_style="green",
    )  # fmt: skip


def short(path: Path) -> str:
    """Return a path, relative if it is below the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def cell(value: object) -> str:
    """Return the text of a table's cell, with printable lines."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    lines = value if isinstance(value, tuple) else (value,)
    return "\n".join(printable(str(line), LONGEST_CELL) for line in lines)


def print_rows(rows: Iterable[tuple[str, int] | tuple[str, int, str]]) -> None:
    """Print labels with their counts in aligned columns, one per line; a note follows its count."""
    found = [(label, f"{count:,}", f" {' '.join(note)}".rstrip()) for label, count, *note in rows]
    left = max((len(label) for label, *_ in found), default=0)
    right = max((len(count) for _, count, _ in found), default=0)
    for label, count, note in found:
        print(f"{label:<{left}}  {count:>{right}}{note}")
