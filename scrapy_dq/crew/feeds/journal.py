"""The journal of one worker process, which writes each item before it acks the item's request.

If the process is killed, the last record may be torn, but its request was not acked. If the machine loses
power, records of the last second may be missing.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_dq.codec import Codec
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.feeds.whole import Whole
from scrapy_dq.crew.own_files import open_own
from scrapy_dq.crew.records import MAGIC, Kind, Packer, Record, load_module, read
from scrapy_dq.scheduling.feeds import OPEN


class Journal:
    """The journal that this worker process writes. Its first item creates the file."""

    def __init__(self, folder: Path, run: Run, worker: int, codec: Codec) -> None:
        self._path = folder / name_of(run, time.time_ns(), worker, str(os.getpid()))
        self._packer = Packer(codec, private=True)
        self._file: Whole | None = None
        self._begun = False
        """Whether the head of the file is written."""

    def add(self, entry_id: bytes, item: Any) -> None:
        """Write an item. When this method returns, the operating system has the item.

        Raises:
            CrewError: neither the codec nor pickle can store the item.
            OSError: the item cannot be written, for example to a full disk. The file is unchanged.
        """
        records = self._packer.item(entry_id, item)
        if self._file is None:
            self._file = Whole(self._path, "ab", opener=open_own)
        self._file.write(records if self._begun else MAGIC + records)
        self._begun = True
        self._packer.stored(entry_id, item)

    def ended(self, done: Iterable[bytes], others: Iterable[bytes]) -> None:
        """Write the ends of leases. The *done* leases were acked."""
        records = self._packer.ends(done, others)
        if records and self._file is not None:
            with suppress(OSError):  # without these records, the entries count as not ended
                self._file.write(records)

    def close(self) -> None:
        """Close the file. Its data is on the disk before the process ends."""
        if self._file is not None:
            self._file.close()


def name_of(run: Run, began_ns: int, worker: int, process: str) -> str:
    """Return the name of the journal of a worker process."""
    return f"{run.epoch}.{run.number:09d}.{began_ns:020d}.{worker:03d}-{process}{OPEN}"


def not_exported(journals: Sequence[Path], passed: Callable[[int], None]) -> list[set[int]]:
    """Return, for each journal, the position of the first item of each attempt that is not exported.

    An attempt is the processing of an entry under one lease. An entry whose worker was killed has several
    attempts. A feed gets the items of one attempt per entry: of the acked attempt, or if none was acked, of
    the attempt with the most items. Memory holds only attempts that were not acked.

    Args:
        passed: called with the size of each record.
    """
    unended: defaultdict[bytes, list[list[int]]] = defaultdict(list)
    """By entry, for each attempt that was not acked: number of items, journal, first record."""
    for number, path in enumerate(journals):
        begun: dict[bytes, list[int]] = {}
        for position, record in enumerate(read(path)):
            passed(len(record.data))
            if record.is_item and record.entry_id:
                begun.setdefault(record.entry_id, [0, number, position])[0] += 1
            elif record.entry_id in begun:
                attempt = begun.pop(record.entry_id)
                if record.kind == Kind.VOID:
                    unended[record.entry_id].append(attempt)
        for entry_id, attempt in begun.items():
            unended[entry_id].append(attempt)
    acked = {
        record.entry_id
        for path in (journals if unended else ())
        for record in read(path)
        if record.kind == Kind.END and record.entry_id in unended
    }
    dropped: list[set[int]] = [set() for _ in journals]
    for entry_id, attempts in unended.items():
        for _, number, position in attempts if entry_id in acked else sorted(attempts)[:-1]:
            dropped[number].add(position)
    return dropped


def exported(journals: Sequence[Path], dropped: Sequence[set[int]]) -> Iterator[tuple[Path, Record]]:
    """Yield the records of the items that are exported, in the order in which each worker wrote them.

    Args:
        dropped: the result of `not_exported`.
    """
    for path, begins in zip(journals, dropped, strict=True):
        left_out: set[bytes] = set()
        for position, record in enumerate(read(path)):
            if position in begins:
                left_out.add(record.entry_id)
            if not record.is_item:
                left_out.discard(record.entry_id)
                load_module(record)
            elif record.entry_id not in left_out:
                yield path, record


class Work(NamedTuple):
    """The input of a process that exports a feed, as JSON."""

    uri: str
    """The feed's URI."""
    run: Sequence[Any]
    began: str
    """When the first command that exported the run began; the value of `%(time)s` in file names."""
    keeps: bool
    """The run may have begun before that command, so a feed without notes may contain items of the run."""
    journals: Sequence[str]
