"""Show a crawl's status: the lines of `scrapy dq status`, and a live view as high as the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from scrapy_dq.backend.health import format_bytes
from scrapy_dq.commands.output.display import green_bar, print_rows, print_table, table_of
from scrapy_dq.inspection import words
from scrapy_dq.inspection.snapshot import COUNTS, TOP, left, settled
from scrapy_dq.text import printable

LIMITS = ("delay", "at once", "blocked")
WIDE_TERMINAL = 72
"""Minimum width of the terminal, in characters, at which tables show the columns LIMITS."""
Partitions = tuple[str, Sequence[str], list[tuple[object, ...]]]
"""A table of some partitions: title, columns, rows. All columns except the last one are numbers."""


def partition_tables(status: dict[str, Any], most: int, width: int) -> Iterator[Partitions]:
    """Yield a table of the largest and one of the slowest partitions, at most *most* in each.

    If both tables would have the same partitions, yield only one.
    """
    largest, slowest = status["largest_partitions"], status["slowest_partitions"]
    part = words.examined(status)
    same = slowest and {each["partition"] for each in slowest} == {each["partition"] for each in largest}
    if largest and not same:
        yield _table(f"The largest partitions, {part}:", ("waiting",), largest[:most])
    if slowest:
        ranking = "largest and slowest" if same else "slowest"
        columns = ("takes", "waiting", *(LIMITS if width >= WIDE_TERMINAL else ()))
        yield _table(f"The {ranking} partitions, {part}:", columns, slowest[:most])


def _table(title: str, columns: Sequence[str], found: list[dict[str, Any]]) -> Partitions:
    cells = [
        {
            "takes": words.span(each["takes_s"]),
            "waiting": each["waiting"],
            "delay": words.precise_span(each["delay_s"]),
            "at once": each["concurrency"] or "",
            "blocked": words.precise_span(each["blocked_s"]),
            "partition": each["partition"] or "(no name)",
        }
        for each in found
    ]
    used = (*(name for name in columns if any(row[name] != "" for row in cells)), "partition")
    return title, used, [tuple(row[name] for name in used) for row in cells]


def print_status(status: dict[str, Any]) -> None:
    """Print the whole status."""
    print(f"Crawl {status['crawl']!r} at {status['redis']}: {words.phase_of(status)}, {words.run_of(status)}")
    notes = {"workers": words.workers(status).partition(" ")[2]}
    print_rows((name.replace("_", " "), status[name], notes.get(name, "")) for name in COUNTS)
    shared = words.memory(status) and f"{words.memory(status)}, for everything in it"
    for line in (words.speed(status), *words.awaiting(status), shared, *words.missing(status)):
        if line:
            print(line)
    for title, columns, rows in partition_tables(status, TOP, Console().width):
        print(f"\n{title}")
        print_table(columns, rows, numbers=columns[:-1])


def one_line(status: dict[str, Any]) -> str:
    """Return a short form of the status, for a log."""
    ended, count = settled(status), status["workers"]
    parts = [] if words.phase_of(status) == "open" else [words.phase_of(status)]
    parts += [
        f"{ended:,} of {ended + left(status):,}",
        f"{status['failed']:,} failed",
        f"{count:,} worker{'s' * (count != 1)}{words.workers(status).removeprefix(f'{count:,}')}",
    ]
    parts += [f"{each['workers']:,} waiting ({each['why']})" for each in status.get("waits", ())]
    if status["pages_per_s"] is not None:
        parts.append(f"{status['pages_per_s']:,.1f}/s")
    if status["left_s"] is not None:
        parts.append(f"{words.span(status['left_s'])} left")
    parts += words.awaiting(status)
    return ", ".join((*parts, *words.uncounted(status["unreachable_shards"], status["apart_shards"])))


SHOWN = ("done", "failed", "dead", "waiting", "in_flight", "delayed", "workers", "seen")
COLUMN_WIDTH = 24
PHASES = {"open": "green", "finished": "cyan"}


def view(status: dict[str, Any], console: Console, missed: dict[str, Any] | None) -> RenderableType:
    """Return a view of *status*, cut to the height of the terminal.

    *missed* describes a later read that failed; it is None if no read has failed since *status* was read.
    """
    width, height = console.size
    parts: list[RenderableType] = [_head(missed or status, words.run_of(status))]
    if missed:
        age = words.span(missed["at"] - status["at"])
        parts.append(Text(printable(f"{missed['error']}. This status is {age} old."), style="red"))
    counts = Columns(_counts(status), column_first=True, width=max(COLUMN_WIDTH, width // 3 - 1))
    parts += ["", _bar(status), "", counts]
    parts += [Text(line, style="red") for line in words.missing(status)]
    if pace := [*filter(None, (words.speed(status), *words.awaiting(status)))]:
        parts += ["", *map(Text, pace)]
    for most in range(TOP, 0, -1):
        whole = Group(*parts, *_partitions(status, most, width))
        # The cursor needs the last line of the terminal.
        if len(console.render_lines(whole, pad=False)) < height:
            return whole
    return Group(*parts)


def _head(status: dict[str, Any], run: str) -> Text:
    phase = (words.phase_of(status), f"bold {PHASES.get(status['phase'], 'yellow')}")
    return Text.assemble(
        (printable(status["crawl"]), "bold"), (f"  {status['redis']}  ", "dim"), phase, (f"  {run}", "dim")
    )


def _bar(status: dict[str, Any]) -> RenderableType:
    ended = settled(status)
    known = ended + left(status)
    bar = Table.grid(expand=True, padding=(0, 2))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    part = 1 if not known else ended / known
    # Rounded down: 100 % means that all is done.
    bar.add_row(
        green_bar(ended, known) if known else green_bar(1, 1),
        Text.assemble((f"{int(100 * part)} %", "bold"), f"  {ended:,} of {known:,}"),
    )
    return bar


def _counts(status: dict[str, Any]) -> Iterator[Text]:
    used = status["redis_memory_bytes"]
    found = {name: f"{status[name]:,}" for name in SHOWN} | {"workers": words.workers(status)}
    for name, count in (found | {"Redis": "?" if used is None else format_bytes(used)}).items():
        style = "bold red" if "(" in count or (name in ("failed", "dead") and count != "0") else "bold"
        yield Text.assemble((f"{name.replace('_', ' '):<10}", "dim"), (f"{count:>11}", style))


def _partitions(status: dict[str, Any], most: int, width: int) -> Iterable[RenderableType]:
    for title, columns, rows in partition_tables(status, most, width):
        yield from ("", Text(title), table_of(columns, rows, numbers=columns[:-1]))
