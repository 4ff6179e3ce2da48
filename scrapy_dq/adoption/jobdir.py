"""Read requests and fingerprints from a JOBDIR of Scrapy, without changing it.

This module reads the files of the queues without queuelib, which wrote them. queuelib needs the class of each
queue, and removes the records that it reads. After a kill, its counts are out of date.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import struct
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapy_dq.adoption.source import BATCH, FINGERPRINTS, BadSource, Found

QUEUES, SEEN = "requests.queue", "requests.seen"
_SIZE = struct.Struct(">L")
_SQLITE = b"SQLite format 3\0"
_is_priority = re.compile(r"(-?\d+)(s?)").fullmatch
_is_hex = re.compile(rb"([0-9a-f]{2})+\s*").fullmatch
_LONGEST_LINE = 1_000


@dataclass(frozen=True)
class _Records:
    """Where the requests of one priority are stored, oldest first."""

    path: Path
    places: list[tuple[Path, array[int]]]
    """Each file, with the offsets of its records and the end of the last one; empty for an SQLite queue."""
    count: int
    newest_first: bool
    closed: bool
    """Whether the crawl ended cleanly. Otherwise some requests are missing, and some are already done."""

    def read(self, backwards: bool) -> Iterator[bytes]:
        """Yield the requests in the order of service, or in reverse."""
        from_end = self.newest_first ^ backwards
        if not self.places:
            with closing(_opened(self.path)) as db:
                order = "DESC" if from_end else "ASC"
                yield from (
                    bytes(row[0]) for row in db.execute(f"SELECT item FROM queue ORDER BY id {order}")
                )
        for path, offsets in reversed(self.places) if from_end else self.places:
            numbers = range(len(offsets) - 1)
            with path.open("rb") as file:
                for n in reversed(numbers) if from_end else numbers:
                    file.seek(offsets[n])
                    record = file.read(offsets[n + 1] - offsets[n])
                    # A Lifo queue writes a record's size after the record, a Fifo queue before it.
                    yield record[: -_SIZE.size] if self.newest_first else record[_SIZE.size :]


class JobDir:
    """Reads the JOBDIR of a crawl that has ended."""

    def __init__(self, folder: str, settings: BaseSettings, served: str = "") -> None:
        """Find all queues and count the fingerprints.

        Args:
            served: order of SQLite queues, fifo or lifo; empty: as SCHEDULER_DISK_QUEUE says.
        Raises:
            BadSource: the folder is not a JOBDIR, is in use, or is damaged.
            OSError, sqlite3.Error: the folder cannot be read. `members` and `fingerprints` also raise these.
        """
        self.folder = Path(folder)
        queues, self._seen = self.folder / QUEUES, self.folder / SEEN
        if not (queues.is_dir() or self._seen.is_file()):
            raise BadSource(f"{folder!r} is not a JOBDIR of Scrapy: it has neither {QUEUES} nor {SEEN}")
        if pid := _user_of(self.folder):
            raise BadSource(
                f"process {pid} uses {folder!r}: stop its crawl with one Ctrl-C, and wait until it has ended"
            )
        self._served = served or _served_by(settings)
        found = list(self._found(queues)) if queues.is_dir() else []
        # Scrapy's order of service: names are negated priorities, and start requests come last.
        self._records = [each for _, each in sorted(found, key=lambda pair: pair[0])]
        self.queue = Found(str(queues), "jobdir", sum(each.count for each in self._records))
        self.dupefilter = Found(str(self._seen), "jobdir", sum(1 for _ in self._all_fingerprints()))

    @property
    def closed(self) -> bool:
        """Whether the crawl ended cleanly. If not, requests in progress are missing, and some may be done."""
        return all(each.closed for each in self._records)

    @property
    def served(self) -> str:
        """The order of Scrapy's queue, as an `Order`; empty: there is no queue."""
        if not self._records:
            return ""
        return "priority-lifo" if self._records[0].newest_first else "priority-fifo"

    async def members(self, backwards: bool) -> AsyncIterator[list[bytes]]:
        """Yield all requests in their stored form, in batches of at most BATCH.

        Args:
            backwards: begin with the request that is served last.
        """
        records = reversed(self._records) if backwards else self._records
        for batch in _batches(chain.from_iterable(each.read(backwards) for each in records), BATCH):
            yield batch

    async def fingerprints(self) -> AsyncIterator[tuple[list[bytes], int]]:
        """Yield batches of all fingerprints, each with a count of invalid ones."""
        for found in _batches(self._all_fingerprints(), FINGERPRINTS):
            plain = [each for each in found if each]
            yield plain, len(found) - len(plain)

    async def mark(self) -> Any:
        """Return a value that differs after any change of the folder."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files]

    def _all_fingerprints(self) -> Iterator[bytes]:
        """Yield each fingerprint; b"" for a line that is not one.

        Since Scrapy 2.19, each fingerprint follows its size, in 2 bytes. Older versions wrote hex lines.
        """
        if not self._seen.is_file():
            return
        with self._seen.open("rb") as file:
            as_text = _is_hex(file.readline(_LONGEST_LINE))
            file.seek(0)
            if as_text:
                while line := file.readline(_LONGEST_LINE):
                    yield bytes.fromhex(line.decode()) if _is_hex(line) else b""
            else:
                while len(size := file.read(2)) == 2:
                    fingerprint = file.read(int.from_bytes(size, "big"))
                    if len(fingerprint) == int.from_bytes(size, "big"):  # a kill may have cut the last one
                        yield fingerprint

    def _found(self, folder: Path) -> Iterator[tuple[tuple[int, str], _Records]]:
        for path in sorted(folder.iterdir()):
            if (named := _is_priority(path.name)) is not None:
                yield (int(named[1]), named[2]), self._records_of(path)
            elif path.is_dir():  # DownloaderAwarePriorityQueue has a folder for each slot
                yield from self._found(path)

    def _records_of(self, path: Path) -> _Records:
        if path.is_dir():
            return _fifo(path)
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) != _SQLITE:
                return _lifo(path)
        if not self._served:
            raise BadSource(
                f"{path} is an SQLite queue, and SCHEDULER_DISK_QUEUE does not say how it was served: set it "
                f"as it was for the crawl, or add --queue fifo or --queue lifo"
            )
        with closing(_opened(path)) as db:
            ((count,),) = db.execute("SELECT COUNT(*) FROM queue")
        return _Records(path, [], count, self._served == "lifo", True)


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _served_by(settings: BaseSettings) -> str:
    """Return the order of SCHEDULER_DISK_QUEUE, fifo or lifo; empty: unknown."""
    from queuelib.queue import FifoSQLiteQueue, LifoSQLiteQueue

    with suppress(Exception):  # the project's own class may be gone
        cls = load_object(settings["SCHEDULER_DISK_QUEUE"])
        if issubclass(cls, LifoSQLiteQueue):
            return "lifo"
        if issubclass(cls, FifoSQLiteQueue):
            return "fifo"
    return ""


def _lifo(path: Path) -> _Records:
    """Find the records of a Lifo queue: a count, and then each record before its size.

    Source: queuelib.queue.LifoDiskQueue
    """
    with path.open("rb") as file:
        header, end = file.read(_SIZE.size), file.seek(0, os.SEEK_END)
        offsets = array("Q", (end,))
        while end > _SIZE.size:
            file.seek(end - _SIZE.size)
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            end -= size + _SIZE.size
            offsets.append(max(0, end))
    if end != _SIZE.size:
        raise BadSource(
            f"{path} is damaged: its crawl was killed as it wrote, or the file was cut. Nothing was adopted"
        )
    offsets.reverse()
    count = len(offsets) - 1
    return _Records(path, [(path, offsets)], count, True, _SIZE.unpack(header)[0] == count)


def _fifo(path: Path) -> _Records:
    """Find the records of a Fifo queue: numbered files, each record after its size, and info.json.

    Source: queuelib.queue.FifoDiskQueue
    """
    try:
        info = json.loads((path / "info.json").read_text())
        first, _, start = map(int, info["tail"])
        expected = int(info["size"])
    except FileNotFoundError:
        first = start = expected = 0
    except (ValueError, KeyError, TypeError) as error:
        raise BadSource(f"{path / 'info.json'} is not one of Scrapy's: {error}") from None
    places = []
    for chunk in sorted(path.glob("q[0-9]*")):
        if (number := int(chunk.name[1:])) >= first:
            places.append((chunk, _forwards(chunk, start if number == first else 0)))
    count = sum(len(offsets) - 1 for _, offsets in places)
    return _Records(path, places, count, False, count == expected)


def _forwards(path: Path, start: int) -> array[int]:
    offsets = array("Q", (start,))
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while start + _SIZE.size <= end:
            file.seek(start)
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            start += _SIZE.size + size
            if start > end:  # a kill cut this record
                break
            offsets.append(start)
    return offsets


def _batches(items: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while batch := list(islice(items, size)):
        yield batch


def _user_of(folder: Path) -> int:
    """Return the id of a process that has a file of *folder* open; 0: this user can see no such process."""
    inside = f"{folder.resolve()}/"
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link).startswith(inside):
                return int(link.parts[2])
    return 0
