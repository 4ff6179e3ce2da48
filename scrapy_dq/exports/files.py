"""Writes and reads files of exports. The last line shows that a file is whole; an import needs a whole file.

The last line has the number and the SHA-256 of the lines before it. A file whose name ends in `.zst` is
compressed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Literal, cast

from scrapy_dq.exports.lines import BadLine, header_line, header_of, part_line, part_of
from scrapy_dq.extras import pip_install
from scrapy_dq.filesystem import sync_folder
from scrapy_dq.frontier.archive.parts import ENTRIES, SEEN, Header, Part
from scrapy_dq.frontier.model import FrontierError

STANDARD_OUTPUT = "-"
_END = b'{"end"'
"""The beginning of the last line."""
_MAX_LINE_BYTES = 64 * 1024 * 1024
"""A line must have fewer bytes. A line is a part, which has a few MB of entries, or one entry of a few MB."""


class BadExport(FrontierError):
    """The file cannot be used or written; the message has the reason."""


@contextmanager
def created(name: str) -> Iterator[IO[bytes]]:
    """Yield a new file, which gets its name only after all its data is on the disk.

    Args:
        name: the file's name, or STANDARD_OUTPUT.
    Raises:
        BadExport: the file exists, or cannot be written.
    """
    if name == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        return
    path, part = Path(name), Path(f"{name}.{token_hex(4)}.part")
    if path.exists():
        raise BadExport(f"{name!r} exists: choose another name, or delete it first")
    try:
        # No other user may read the file, because requests may hold cookies and logins.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as raw:
            with _compressed(raw, name, "wb") as file:
                yield file
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise BadExport(f"{name!r} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


class ExportWriter:
    """Writes an export."""

    def __init__(self, file: IO[bytes], header: Header) -> None:
        self._file, self._header, self._digest = file, header, sha256()
        self.lines = self.entries = self.tokens = 0
        self._write(header_line(header, version("scrapy_dq")))

    def write(self, part: Part) -> None:
        """Add a part."""
        self._write(part_line(part, self._header.seen))
        if part.kind in ENTRIES:
            self.entries += len(part.items)
        elif part.kind == SEEN:
            self.tokens += len(part.items)

    def end(self) -> None:
        """Write the last line. An import refuses a file without this line."""
        trailer = {"lines": self.lines, "sha256": self._digest.hexdigest()}
        self._file.write(json.dumps({"end": trailer}).encode() + b"\n")

    def _write(self, line: str) -> None:
        written = line.encode("ascii") + b"\n"
        self._digest.update(written)
        self._file.write(written)
        self.lines += 1


class ExportFile:
    """An export in a file that is whole."""

    def __init__(self, name: str) -> None:
        """Read the file once, to check it.

        Raises:
            BadExport: the file is not an export, was cut or edited, or a later version wrote it.
        """
        self.name = name
        if os.path.exists(name) and not os.path.isfile(name):
            raise BadExport(
                f"{name!r} cannot be read: it is not a regular file, and an import reads the file twice"
            )
        self._end = b""
        for number, line in enumerate(self._whole()):
            if number == 0:
                try:
                    self.header = header_of(_parsed(line))
                except BadLine as error:
                    raise BadExport(f"{name!r}: {error}") from None
            self._end = line

    async def parts(self) -> AsyncIterator[Part]:
        """Yield all parts, in the order of the file.

        Raises:
            BadExport: the file has changed since it was checked; some parts may have been yielded.
        """
        line = b""
        for number, line in enumerate(self._whole()):
            if number and not line.startswith(_END):
                try:
                    yield part_of(_parsed(line), self.header)
                except BadLine as error:
                    raise BadExport(f"line {number + 1:,} of {self.name!r}: {error}") from None
        if line != self._end:
            raise BadExport(f"{self.name!r} has changed since this import began: import it again")

    def _whole(self) -> Iterator[bytes]:
        """Yield all lines, and raise BadExport at the end if their digest or number is wrong."""
        digest, number, last = sha256(), 0, b""
        try:
            with open(self.name, "rb") as raw, _compressed(raw, self.name, "rb") as file:
                while line := file.readline(_MAX_LINE_BYTES):
                    if len(line) == _MAX_LINE_BYTES:
                        raise BadExport(f"{self.name!r}: line {number + 1:,} is too long for an export")
                    digest.update(last)
                    number, last = number + 1, line
                    yield line
        except (OSError, EOFError) as error:
            raise BadExport(f"{self.name!r} cannot be read: {error}") from error
        if not last:
            raise BadExport(f"{self.name!r} is empty")
        end = _parsed(last) if last.startswith(_END) else None
        if type(end) is not dict:
            raise BadExport(f"{self.name!r} was cut: its last line is missing. Export the crawl again")
        if end.get("end") != {"lines": number - 1, "sha256": digest.hexdigest()}:
            raise BadExport(f"{self.name!r} was edited, or damaged: its content does not match its last line")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@contextmanager
def _compressed(raw: IO[bytes], name: str, mode: Literal["rb", "wb"]) -> Iterator[IO[bytes]]:
    if not name.endswith(".zst"):
        yield raw
        return
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise BadExport(f"{name!r}: a name that ends in .zst needs zstd: {pip_install('zstd')}") from None
    try:
        with zstd.open(raw, mode) as file:
            yield cast("IO[bytes]", file)
    except zstd.ZstdError as error:
        raise BadExport(f"{name!r} cannot be read: {error}") from error
