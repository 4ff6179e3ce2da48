"""The records of items and of the ends of their requests, in journals and in messages.

A record has a head, which is the length and the CRC-32 of its body, and a body: the kind, the length of the
entry id, the entry id, and the data.
"""

from __future__ import annotations

import importlib
import pickle
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import IO, Any, NamedTuple

from scrapy_dq.codec import CannotEncode, Codec
from scrapy_dq.crew.errors import CrewError

MAGIC = b"scrapy_dq journal 1\n"
_HEAD = struct.Struct(">II")


class Kind(IntEnum):
    """The kind of a record."""

    PACKED = 1
    """An item, packed by the codec."""
    PICKLED = 2
    """An item that the codec cannot pack."""
    END = 3
    """Redis has confirmed the ack of an entry. All items of the entry are in earlier records."""
    VOID = 4
    """A lease has ended without an ack. If its entry runs again, the entry's items are recorded again."""
    MODULE = 5
    """The module with the class of a later item. It is imported before that item is read."""
    MESSAGE = 6
    """The number of a message from Redis. It comes after the other records of the message."""


class Record(NamedTuple):
    """A record of a journal."""

    kind: int
    entry_id: bytes
    """The entry of the request that an item came from; empty if that request cannot run again."""
    data: bytes

    @property
    def is_item(self) -> bool:
        return self.kind in (Kind.PACKED, Kind.PICKLED)

    @property
    def size(self) -> int:
        """The size of the record in the file, in bytes."""
        return _HEAD.size + 2 + len(self.entry_id) + len(self.data)

    def item(self, codec: Codec) -> Any:
        """Return the item in the record."""
        # Unpickling is safe, because only this user can write to the journal's folder.
        return codec.value(self.data) if self.kind == Kind.PACKED else pickle.loads(self.data)


class Packer:
    """Makes the records of one process.

    Args:
        private: whether only this user can write to the place of the records. If so, a record may be a pickle
            or name a module, although code of the project runs when such a record is read.
    """

    def __init__(self, codec: Codec, *, private: bool) -> None:
        self._codec = codec
        self._private = private
        self._modules: set[str] = set()
        """The modules that are named in stored records."""
        self._open: set[bytes] = set()
        """Entries that have items and have not ended."""

    def item(self, entry_id: bytes, item: Any) -> bytes:
        """Return the records of an item; the caller stores them, and then calls `stored`.

        Raises:
            CrewError: neither the codec nor, if allowed, pickle can store the item.
        """
        record = self._packed(entry_id, item)
        module = type(item).__module__
        if not self._private or module in self._modules:
            return record
        return _record(Kind.MODULE, b"", module.encode()) + record

    def stored(self, entry_id: bytes, item: Any) -> None:
        """Remember that the caller has stored the records of an item."""
        self._modules.add(type(item).__module__)
        if entry_id:
            self._open.add(entry_id)

    def ends(self, done: Iterable[bytes], others: Iterable[bytes]) -> bytes:
        """Return records of the ends of leases, for entries that have items. The *done* leases were acked."""
        ends = [(Kind.END, each) for each in done] + [(Kind.VOID, each) for each in others]
        ends = [(kind, each) for kind, each in ends if each in self._open]
        self._open.difference_update(each for _, each in ends)
        return b"".join(_record(kind, each, b"") for kind, each in ends)

    def _packed(self, entry_id: bytes, item: Any) -> bytes:
        try:
            return _record(Kind.PACKED, entry_id, self._codec.packed(item))
        except CannotEncode as error:
            if not self._private:
                raise _cannot_store(item, error, "DQ_TYPES allows more classes") from error
        try:
            return _record(Kind.PICKLED, entry_id, pickle.dumps(item, pickle.HIGHEST_PROTOCOL))
        except Exception as error:  # the project's classes may raise anything
            raise _cannot_store(item, error, "make the class one that pickle can store") from error


def _cannot_store(item: Any, error: Exception, remedy: str) -> CrewError:
    cls = f"{type(item).__module__}.{type(item).__qualname__}"
    reason = f"{type(error).__name__}: {error}"
    return CrewError(f"an item of the class {cls} cannot be stored ({reason}): yield a dict, or {remedy}")


def _record(kind: Kind, entry_id: bytes, data: bytes) -> bytes:
    body = bytes((kind, len(entry_id))) + entry_id + data
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def message(number: int, records: bytes) -> bytes:
    """Return records as a message for a journal that another process writes."""
    return records + _record(Kind.MESSAGE, b"", b"%d" % number)


def read(path: Path, begin: int = 0) -> Iterator[Record]:
    """Yield the records of a journal, up to the first torn one, which was not written completely.

    Args:
        begin: the position of the first record; 0 means after the head of the file.
    Raises:
        CrewError: the file is not a journal, or another version has written it.
    """
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if magic != MAGIC[: len(magic)]:
            raise CrewError(f"{path} is no journal that this version of scrapy_dq reads")
        file.seek(begin or len(MAGIC))
        yield from records_in(file)


def records_in(file: IO[bytes]) -> Iterator[Record]:
    """Yield the records from the current position, up to the first one that is incomplete or damaged."""
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        body = file.read(length)
        if length < 2 or len(body) < length or zlib.crc32(body) != checksum:
            return
        begin = 2 + body[1]
        yield Record(body[0], body[2:begin], body[begin:])


def load_module(record: Record) -> None:
    """Import the module that the codec needs for later items, if this record names one."""
    if record.kind == Kind.MODULE:
        with suppress(ImportError):  # the module may exist only where the item was made
            importlib.import_module(record.data.decode())
