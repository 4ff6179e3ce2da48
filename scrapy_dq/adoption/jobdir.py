"""A JOBDIR of Scrapy: the requests and fingerprints in it. Nothing there is changed.

Its queues are those of queuelib. They are not opened with it: that needs the class of each, removes what it
reads, and counts only what was there when a process had ended by itself.
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
from itertools import chain
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
    """Where the requests of one priority lie, the oldest first."""

    path: Path
    places: list[tuple[Path, array[int], array[int]]]
    """File, offsets and sizes; empty: it is an SQLite queue."""
    count: int
    newest_first: bool
    closed: bool
    """Its process has ended by itself: else some are missing, or were done."""

    def read(self, backwards: bool) -> Iterator[bytes]:
        """Yield the requests in the order in which they are served, or in the opposite one."""
        from_end = self.newest_first ^ backwards
        if not self.places:
            with closing(_opened(self.path)) as db:
                order = "DESC" if from_end else "ASC"
                yield from (
                    bytes(row[0]) for row in db.execute(f"SELECT item FROM queue ORDER BY id {order}")
                )
        for path, offsets, sizes in reversed(self.places) if from_end else self.places:
            with path.open("rb") as file:
                for i in reversed(range(len(offsets))) if from_end else range(len(offsets)):
                    file.seek(offsets[i])
                    yield file.read(sizes[i])


class JobDir:
    """Reads a folder that a crawl of Scrapy has left."""

    def __init__(self, folder: str, settings: BaseSettings, served: str = "") -> None:
        """
        Args:
            served: how SQLite queues are served: fifo or lifo; empty: as SCHEDULER_DISK_QUEUE says.
        Raises:
            BadSource: it is none, is in use, or is damaged.
        """
        self.folder = Path(folder)
        self._queues = self.folder / QUEUES
        self._seen = self.folder / SEEN
        if not (self._queues.is_dir() or self._seen.is_file()):
            raise BadSource(f"{folder!r} is not a JOBDIR of Scrapy: it has neither {QUEUES} nor {SEEN}")
        if pid := _user_of(self.folder):
            raise BadSource(
                f"process {pid} uses {folder!r}: stop its crawl with one Ctrl-C, and wait until it has ended"
            )
        self._served = served or _served_by(settings)
        try:
            found = list(self._found(self._queues)) if self._queues.is_dir() else []
            # As Scrapy serves them: by priority, whose sign is turned, and start requests last.
            self._records = [each for _, each in sorted(found, key=lambda pair: pair[0])]
            self._fingerprints = sum(1 for _ in self._all_fingerprints())
        except (OSError, sqlite3.Error) as error:
            raise BadSource(f"{folder!r} cannot be read: {error}") from error

    @property
    def requests(self) -> Found:
        return Found(str(self._queues), "jobdir", sum(each.count for each in self._records))

    @property
    def seen(self) -> Found:
        return Found(str(self._seen), "jobdir", self._fingerprints)

    @property
    def closed(self) -> bool:
        """The crawl has ended by itself: else what was in progress is missing, and some here may be done."""
        return all(each.closed for each in self._records)

    @property
    def served(self) -> str:
        """How most of the requests of one priority are served: fifo or lifo; empty: there are none."""
        newest = sum(each.count if each.newest_first else -each.count for each in self._records)
        return ("lifo" if newest > 0 else "fifo") if self._records else ""

    async def members(self, queue: Found, tail_first: bool, backwards: bool) -> AsyncIterator[list[bytes]]:
        """Yield all requests, as they are stored, in batches of at most BATCH.

        Args:
            backwards: begin with the one that is served last.
        """
        batch: list[bytes] = []
        records = reversed(self._records) if backwards else self._records
        for member in chain.from_iterable(each.read(backwards) for each in records):
            batch.append(member)
            if len(batch) == BATCH:
                yield batch
                batch = []
        yield batch

    async def fingerprints(self, key: str) -> AsyncIterator[tuple[list[bytes], int]]:
        """Yield batches of all fingerprints, and how many others are beside them."""
        plain: list[bytes] = []
        others = 0
        for fingerprint in self._all_fingerprints():
            others += not fingerprint
            plain += filter(None, (fingerprint,))
            if len(plain) + others >= FINGERPRINTS:
                yield plain, others
                plain, others = [], 0
        yield plain, others

    async def mark(self, queue: Found) -> Any:
        """Return a mark that differs if something has changed."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files]

    def has_some_of(self, fingerprints: set[bytes]) -> bool:
        """Tell whether one of these was seen."""
        return any(each in fingerprints for each in self._all_fingerprints())

    def _all_fingerprints(self) -> Iterator[bytes]:
        """Yield each fingerprint; empty for one that is none.

        Since Scrapy 2.19 each follows its size, in 2 bytes; before, each was a line in hexadecimal.
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
                    if len(fingerprint) == int.from_bytes(size, "big"):  # else it was written at a kill
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
    """Return how SCHEDULER_DISK_QUEUE serves: fifo or lifo; empty: it does not say."""
    from queuelib.queue import FifoSQLiteQueue, LifoSQLiteQueue

    with suppress(Exception):  # the project's own class may be gone
        cls = load_object(settings["SCHEDULER_DISK_QUEUE"])
        if issubclass(cls, LifoSQLiteQueue):
            return "lifo"
        if issubclass(cls, FifoSQLiteQueue):
            return "fifo"
    return ""


def _lifo(path: Path) -> _Records:
    """Source: queuelib.queue.LifoDiskQueue: a count, and then each record before its size."""
    offsets, sizes = array("Q"), array("L")
    with path.open("rb") as file:
        header, end = file.read(_SIZE.size), file.seek(0, os.SEEK_END)
        while end > _SIZE.size:
            end -= _SIZE.size
            file.seek(end)
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            end -= size
            offsets.append(max(0, end))
            sizes.append(size)
    if end != _SIZE.size:
        raise BadSource(
            f"{path} is damaged: its crawl was killed as it wrote, or the file was cut. Nothing was adopted"
        )
    offsets.reverse()
    sizes.reverse()
    closed = _SIZE.unpack(header)[0] == len(sizes)
    return _Records(path, [(path, offsets, sizes)], len(sizes), True, closed)


def _fifo(path: Path) -> _Records:
    """Source: queuelib.queue.FifoDiskQueue: numbered files, each record behind its size, and info.json."""
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
            places.append((chunk, *_forwards(chunk, start if number == first else 0)))
    count = sum(len(sizes) for _, _, sizes in places)
    return _Records(path, places, count, False, count == expected)


def _forwards(path: Path, start: int) -> tuple[array[int], array[int]]:
    offsets, sizes = array("Q"), array("L")
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while start + _SIZE.size <= end:
            file.seek(start)
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            start += _SIZE.size
            if start + size > end:  # it was written at a kill
                break
            offsets.append(start)
            sizes.append(size)
            start += size
    return offsets, sizes


def _user_of(folder: Path) -> int:
    """Return the id of a process that has a file of *folder* open; 0: none that this user may see."""
    inside = f"{folder.resolve()}/"
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link).startswith(inside):
                return int(link.parts[2])
    return 0
