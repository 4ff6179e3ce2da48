"""The journal of one worker process: each item is in it before the request that it came from is acked.

A record is its length, its CRC-32, its kind, the length of the entry id, the entry id, and the data. A kill
or a power loss may tear the last one; it belongs to a request that was not acked.
"""

from __future__ import annotations

import importlib
import os
import pickle
import struct
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_dq.codec import CannotEncode, Codec
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.feeds.whole import Whole
from scrapy_dq.crew.own_files import open_own

MAGIC = b"scrapy_dq journal 1\n"
_HEAD = struct.Struct(">II")


class Kind(IntEnum):
    """What a record is."""

    PACKED = 1
    """An item, packed by the codec."""
    PICKLED = 2
    """An item that the codec does not take."""
    END = 3
    """Redis has confirmed the ack of an entry: all its items are above."""
    VOID = 4
    """An entry has ended otherwise: if it runs again, its items come again."""
    MODULE = 5
    """The module with the class of a later item: it is imported before that is read."""


class Record(NamedTuple):
    """A record of a journal."""

    kind: int
    entry_id: bytes
    """Of the request that an item came from; empty: of none that can run again."""
    data: bytes

    @property
    def is_item(self) -> bool:
        return self.kind in (Kind.PACKED, Kind.PICKLED)


class Journal:
    """The journal that this worker process writes. Its first item creates the file."""

    def __init__(self, folder: Path, run: Run, worker: int, codec: Codec) -> None:
        name = f"{run.epoch}.{run.number:09d}.{time.time_ns():020d}.{worker:03d}-{os.getpid()}.journal"
        self._path = folder / name
        self._codec = codec
        self._file: Whole | None = None
        self._modules: set[str] = set()
        """Those that were written."""
        self._open: set[bytes] = set()
        """Entries with items that have not ended."""

    def add(self, entry_id: bytes, item: Any) -> None:
        """Write an item; when this returns, the operating system has it.

        Raises:
            CrewError: neither the codec nor pickle can store it.
            OSError: there is no room for it. Nothing of it is written.
        """
        module = type(item).__module__
        records = self._item(entry_id, item)
        if module not in self._modules:
            records = _record(Kind.MODULE, b"", module.encode()) + records
        if self._file is None:
            self._file = Whole(self._path, "ab", opener=open_own)
        self._file.write(records if self._modules else MAGIC + records)
        self._modules.add(module)
        if entry_id:
            self._open.add(entry_id)

    def ended(self, done: Iterable[bytes], others: Iterable[bytes]) -> None:
        """Write that the leases of entries have ended: *done* ones were acked."""
        ends = [(Kind.END, each) for each in done] + [(Kind.VOID, each) for each in others]
        ends = [(kind, each) for kind, each in ends if each in self._open]
        if ends and self._file is not None:
            self._open.difference_update(each for _, each in ends)
            with suppress(OSError):  # its items count as of an entry that has not ended
                self._file.write(b"".join(_record(kind, each, b"") for kind, each in ends))

    def close(self) -> None:
        """Close it; it is on the disk before the process ends."""
        if self._file is not None:
            self._file.close()

    def _item(self, entry_id: bytes, item: Any) -> bytes:
        with suppress(CannotEncode):
            return _record(Kind.PACKED, entry_id, self._codec.packed(item))
        try:
            return _record(Kind.PICKLED, entry_id, pickle.dumps(item, pickle.HIGHEST_PROTOCOL))
        except Exception as error:  # of the classes of the project
            cls = f"{type(item).__module__}.{type(item).__qualname__}"
            raise CrewError(
                f"an item of the class {cls} cannot be stored ({type(error).__name__}: {error}): yield a "
                f"dict, or make the class one that pickle can store"
            ) from error


def _record(kind: Kind, entry_id: bytes, data: bytes) -> bytes:
    body = bytes((kind, len(entry_id))) + entry_id + data
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a journal, up to one that is torn.

    Raises:
        CrewError: another version has written it.
    """
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC[: len(magic)]:
            raise CrewError(f"{path} is no journal that this version of scrapy_dq reads")
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            body = file.read(length)
            if not length or len(body) < length or zlib.crc32(body) != checksum:
                return
            begin = 2 + body[1]
            yield Record(body[0], body[2:begin], body[begin:])


def not_exported(journals: Sequence[Path], passed: Callable[[int], None]) -> list[set[int]]:
    """Return, for each journal, where items begin that are not exported.

    A feed gets the items of one attempt per entry: an attempt that was acked, if there is one. Only entries
    that have not ended stay in memory.

    Args:
        passed: called with the size of each record.
    """
    unended: defaultdict[bytes, list[list[int]]] = defaultdict(list)
    """By entry, of each attempt that was not acked: how many items, in which journal, the first record."""
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


def replay(journals: Sequence[Path], dropped: Sequence[set[int]], codec: Codec) -> Iterator[tuple[Any, int]]:
    """Yield the items that are exported, with their sizes, in the order in which each worker wrote them.

    Args:
        dropped: what `not_exported` has returned.
    """
    for path, begins in zip(journals, dropped, strict=True):
        left_out: set[bytes] = set()
        for position, record in enumerate(read(path)):
            if position in begins:
                left_out.add(record.entry_id)
            if not record.is_item:
                left_out.discard(record.entry_id)
                if record.kind == Kind.MODULE:
                    with suppress(ImportError):  # such as __main__
                        importlib.import_module(record.data.decode())
            elif record.entry_id not in left_out:
                # The journal is in a folder that only this user can write to.
                packed = record.kind == Kind.PACKED
                item = codec.value(record.data) if packed else pickle.loads(record.data)
                yield item, len(record.data)


class Work(NamedTuple):
    """What a process that exports a feed gets on its standard input, as JSON."""

    uri: str
    """Of the feed."""
    run: Sequence[Any]
    began: str
    """When the run was begun: `%(time)s` in the names of files."""
    keeps: bool
    """Something was crawled in the run before: a feed of which nothing is known may hold items of it."""
    journals: Sequence[str]
