"""A crawl's status in words: the lines that `scrapy dq status` prints, and that its live view is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from scrapy_dq.backend.health import size
from scrapy_dq.commands.output.display import print_rows, print_table, span, width
from scrapy_dq.commands.output.progress import COUNTS, TOP, left, settled

LIMITS = ("delay", "at once", "blocked")
WIDE = 72
"""So many columns have room for them."""


class PartitionTable(NamedTuple):
    """Some partitions, and what is told of them."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]

    @property
    def numbers(self) -> tuple[str, ...]:
        """All but the partition's name."""
        return self.columns[:-1]


def phase_of(status: dict[str, Any]) -> str:
    """Return the phase, and what holds the crawl up by somebody's wish."""
    return ", ".join(filter(None, (status["phase"], status.get("hold"))))


def speed(status: dict[str, Any]) -> str:
    """Return pages per second and the time left; empty if nobody has counted."""
    rate, left_s = status["pages_per_s"], status["left_s"]
    if rate is None:
        return ""
    return f"{rate:,.1f} pages/s" + (f"; {span(left_s)} for what is known now" if left_s is not None else "")


def memory(status: dict[str, Any]) -> str:
    """Return what Redis uses; empty if it does not tell."""
    used, limit = status["redis_memory_bytes"], status["redis_maxmemory_bytes"]
    return "" if used is None else f"Redis uses {size(used)}" + (f" of {size(limit)}" if limit else "")


def missing(status: dict[str, Any]) -> Iterator[str]:
    """Yield what is not well with the run itself."""
    if status.get("gone"):
        yield f"{status['gone']:,} requests, or keys, were deleted or evicted in mid-run"
    if status.get("incomplete"):
        yield f"{status['incomplete']:,} start() broken off, and none with the same arguments is complete"


def partition_tables(status: dict[str, Any], most: int, width: int) -> Iterator[PartitionTable]:
    """Yield the largest and the slowest partitions, *most* of each; one table if they are the same."""
    largest, slowest = status["largest_partitions"], status["slowest_partitions"]
    total, looked_at = status["partitions"], status["partitions_looked_at"]
    part = f"of {total:,}" if looked_at >= total else f"of {looked_at:,} looked at, of {total:,}"
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


def fine_span(seconds: float) -> str:
    """Return a length of time that may be short; nothing for none."""
    if not seconds:
        return ""
    return f"{seconds:.3g} s" if seconds < 10 else span(seconds)


def print_status(status: dict[str, Any]) -> None:
    """Print all of it, once."""
    print(f"Crawl {status['crawl']!r} at {status['redis']}: {phase_of(status)}, run {status['run']}")
    print_rows((name.replace("_", " "), status[name]) for name in COUNTS)
    shared = memory(status) and f"{memory(status)}, all that is in it together"
    for line in (speed(status), shared, *missing(status)):
        if line:
            print(line)
    for table in partition_tables(status, TOP, width()):
        print(f"\n{table.title}")
        print_table(table.columns, table.rows, numbers=table.numbers)


def one_line(status: dict[str, Any]) -> str:
    """Return the status in short, for a log."""
    ended, workers = settled(status), status["workers"]
    words = [] if phase_of(status) == "open" else [phase_of(status)]
    words += [
        f"{ended:,} of {ended + left(status):,}",
        f"{status['failed']:,} failed",
        f"{workers:,} worker{'s' * (workers != 1)}",
    ]
    if status["pages_per_s"] is not None:
        words.append(f"{status['pages_per_s']:,.1f}/s")
    if status["left_s"] is not None:
        words.append(f"{span(status['left_s'])} left")
    return ", ".join(words)
