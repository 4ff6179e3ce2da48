"""A crawl's status as text: the lines that `scrapy dq status` and its live view show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from scrapy_dq.commands.output.display import print_rows, print_table, width
from scrapy_dq.inspection.snapshot import COUNTS, TOP, left, settled
from scrapy_dq.inspection.words import (
    awaiting,
    examined,
    fine_span,
    memory,
    missing,
    phase_of,
    run_of,
    span,
    speed,
    uncounted,
    workers,
)

LIMITS = ("delay", "at once", "blocked")
WIDE = 72
"""Minimum width, in columns, for showing them."""


class PartitionTable(NamedTuple):
    """A table of some partitions."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers: all but the partition's name."""
        return self.columns[:-1]


def partition_tables(status: dict[str, Any], most: int, width: int) -> Iterator[PartitionTable]:
    """Yield the largest and the slowest partitions, *most* of each; one table if they are the same."""
    largest, slowest = status["largest_partitions"], status["slowest_partitions"]
    part = examined(status)
    same = slowest and {each["partition"] for each in slowest} == {each["partition"] for each in largest}
    if largest and not same:
        yield _table(f"The largest partitions, {part}:", ("waiting",), largest[:most])
    if slowest:
        what = "largest and slowest" if same else "slowest"
        columns = ("takes", "waiting", *(LIMITS if width >= WIDE else ()))
        yield _table(f"The {what} partitions, {part}:", columns, slowest[:most])


def _table(title: str, columns: tuple[str, ...], found: list[dict[str, Any]]) -> PartitionTable:
    cells = [
        {
            "takes": span(each["takes_s"]),
            "waiting": each["waiting"],
            "delay": fine_span(each["delay_s"]),
            "at once": each["concurrency"] or "",
            "blocked": fine_span(each["blocked_s"]),
            "partition": each["partition"] or "(no name)",
        }
        for each in found
    ]
    used = (*(name for name in columns if any(row[name] != "" for row in cells)), "partition")
    return PartitionTable(title, used, [tuple(row[name] for name in used) for row in cells])


def print_status(status: dict[str, Any]) -> None:
    """Print the whole status, once."""
    print(f"Crawl {status['crawl']!r} at {status['redis']}: {phase_of(status)}, {run_of(status)}")
    notes = {"workers": workers(status).partition(" ")[2]}
    print_rows((name.replace("_", " "), status[name], notes.get(name, "")) for name in COUNTS)
    shared = memory(status) and f"{memory(status)}, for everything in it"
    for line in (speed(status), *awaiting(status), shared, *missing(status)):
        if line:
            print(line)
    for table in partition_tables(status, TOP, width()):
        print(f"\n{table.title}")
        print_table(table.columns, table.rows, numbers=table.numbers)


def one_line(status: dict[str, Any]) -> str:
    """Return a short form of the status, for a log."""
    ended, count = settled(status), status["workers"]
    words = [] if phase_of(status) == "open" else [phase_of(status)]
    words += [
        f"{ended:,} of {ended + left(status):,}",
        f"{status['failed']:,} failed",
        f"{count:,} worker{'s' * (count != 1)}{workers(status).removeprefix(f'{count:,}')}",
    ]
    words += [f"{each['workers']:,} waiting ({each['why']})" for each in status.get("waits", ())]
    if status["pages_per_s"] is not None:
        words.append(f"{status['pages_per_s']:,.1f}/s")
    if status["left_s"] is not None:
        words.append(f"{span(status['left_s'])} left")
    words += awaiting(status)
    return ", ".join((*words, *uncounted(status["unreachable_shards"], status["apart_shards"])))
