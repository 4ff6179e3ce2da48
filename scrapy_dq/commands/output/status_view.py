"""The live view of `scrapy dq status --watch`: the status, cut to the size of the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scrapy_dq.backend.health import format_bytes
from scrapy_dq.commands.output.display import table_of
from scrapy_dq.commands.output.status_text import partition_tables
from scrapy_dq.inspection.snapshot import TOP, left, settled
from scrapy_dq.inspection.words import awaiting, missing, phase_of, run_of, span, speed, workers
from scrapy_dq.text import printable

COUNTS = (("done", "failed", "dead"), ("waiting", "in_flight", "delayed"), ("workers", "seen", "redis"))
"""Each group is one column."""
COUNT_WIDTH = 26
PHASES = {"open": "green", "finished": "cyan"}
BAD = ("failed", "dead")


def view(status: dict[str, Any], console: Console, missed: dict[str, Any] | None) -> RenderableType:
    """Return the *status*, cut to the height of the terminal; *missed*: why there is no newer one."""
    width, height = console.size
    parts: list[RenderableType] = [_head(missed or status, run_of(status))]
    if missed:
        age = span(missed["at"] - status["at"])
        parts.append(Text(printable(f"{missed['error']}. This status is {age} old."), style="red"))
    parts += ["", _bar(status), "", _counts(status, width)]
    parts += [Text(line, style="red") for line in missing(status)]
    if pace := [*filter(None, (speed(status), *awaiting(status)))]:
        parts += ["", *map(Text, pace)]
    for most in range(TOP, 0, -1):
        whole = Group(*parts, *_partitions(status, most, width))
        # The cursor needs the last line.
        if len(console.render_lines(whole, pad=False)) < height:
            return whole
    return Group(*parts)


def _head(status: dict[str, Any], run: str) -> RenderableType:
    head = Table.grid(expand=True, padding=(0, 2))
    head.add_column(overflow="fold")
    head.add_column(justify="right", no_wrap=True)
    phase = Text(phase_of(status), style=f"bold {PHASES.get(status['phase'], 'yellow')}")
    head.add_row(
        Text.assemble((printable(status["crawl"]), "bold"), (f"  {status['redis']}", "dim")),
        Text.assemble(phase, (f"  {run}", "dim")),
    )
    return head


def _bar(status: dict[str, Any]) -> RenderableType:
    ended = settled(status)
    known = ended + left(status)
    bar = Table.grid(expand=True, padding=(0, 2))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    part = 1 if not known else ended / known
    # Rounded down: 100 % only when all is done.
    bar.add_row(
        ProgressBar(
            total=max(1, known),
            completed=ended if known else 1,
            style="bright_black",
            complete_style="green",
            finished_style="green",
        ),
        Text.assemble((f"{int(100 * part)} %", "bold"), f"  {ended:,} of {known:,}"),
    )
    return bar


def _counts(status: dict[str, Any], width: int) -> RenderableType:
    beside = max(1, min(len(COUNTS), width // COUNT_WIDTH))
    counts = Table.grid(padding=(0, 1))
    for _ in range(beside):
        counts.add_column(style="dim", no_wrap=True, min_width=9)
        counts.add_column(justify="right", no_wrap=True, min_width=9)
        counts.add_column(width=3)
    for begin in range(0, len(COUNTS), beside):
        for names in zip(*COUNTS[begin : begin + beside], strict=True):
            counts.add_row(*(cell for name in names for cell in _count(name, status)))
    return counts


def _count(name: str, status: dict[str, Any]) -> tuple[Text, Text, str]:
    if name == "redis":
        used = status["redis_memory_bytes"]
        return Text("Redis"), Text("?" if used is None else format_bytes(used), style="bold"), ""
    if name == "workers":
        shown = workers(status)
        return Text(name), Text(shown, style="bold red" if "(" in shown else "bold"), ""
    style = "bold red" if status[name] and name in BAD else "bold"
    return Text(name.replace("_", " ")), Text(f"{status[name]:,}", style=style), ""


def _partitions(status: dict[str, Any], most: int, width: int) -> Iterable[RenderableType]:
    for table in partition_tables(status, most, width):
        shown = table_of(table.columns, table.rows, numbers=table.numbers)
        shown.header_style = "dim"
        yield from ("", Text(table.title), shown)
