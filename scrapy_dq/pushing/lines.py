"""Reads requests that a person or a program has written, from the lines of a file or a command line."""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scrapy import Request

from scrapy_dq.codec import CannotDecode, Codec
from scrapy_dq.start_urls.payloads import NoRequest, object_in
from scrapy_dq.text import printable

PART_BYTES = 65_536
POLL_S = 0.2
"""Maximum number of seconds until a read that waits for input notices that the program is stopped."""


class Line(NamedTuple):
    """One line: its name in messages, and its bytes, or None if it is too long."""

    name: str
    text: bytes | None


class Splitter:
    """Splits parts of a file into lines. It keeps at most one byte of a long line beyond the limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._number = 0

    def feed(self, part: bytes) -> Iterator[Line]:
        """Yield the lines that end in *part*."""
        *whole, rest = (self._rest + part).split(b"\n")
        self._rest = rest[: self._max_bytes + 1]
        yield from map(self._line, whole)

    def end(self) -> Iterator[Line]:
        """Yield the last line, if it has no newline."""
        if self._rest:
            yield self._line(self._rest)

    def _line(self, text: bytes) -> Line:
        self._number += 1
        if self._number == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")  # the byte order mark that some editors write
        return Line(f"line {self._number}", text if len(text) <= self._max_bytes else None)


async def lines_of(
    descriptor: int, max_bytes: int, advance: Callable[[int], object]
) -> AsyncIterator[Sequence[Line]]:
    """Yield the lines of an open file or pipe, as many at a time as are available.

    Args:
        max_bytes: the maximum length of a line.
        advance: called with the number of bytes that were read and handled.
    """
    splitter = Splitter(max_bytes)
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        # Not os.read() in a thread: a program that is stopped would then wait for the next line before it
        # ends.
        while waits and not (await asyncio.to_thread(select.select, [descriptor], [], [], POLL_S))[0]:
            pass
        part = os.read(descriptor, PART_BYTES)
        if not part:
            break
        yield list(splitter.feed(part))
        advance(len(part))
    yield list(splitter.end())


async def lines_from(words: Sequence[str]) -> AsyncIterator[Sequence[Line]]:
    """Yield *words* of a command line as if each were a line."""
    yield [Line(repr(word), word.encode("utf-8", "surrogateescape")) for word in words]


LONGEST = 8
"""A line may be this many times as long as an entry, because JSON needs up to six bytes for one byte."""


class BadLine(ValueError):
    """The line cannot become a request; the message says why."""


class Written:
    """Makes requests from lines."""

    def __init__(self, codec: Codec, common: Mapping[str, Any] | None = None) -> None:
        """*common*: attributes for lines that do not set them; keys of `meta` are merged."""
        self._codec = codec
        self._common = dict(common or {})

    def request(self, line: Line) -> Request | None:
        """Return the request that a line describes, or None for a blank line or a comment (#).

        The keys of a JSON object are the names of a request's attributes, as in an item of a `Queue`; a
        callback is the name of a method of the spider.

        Raises:
            BadLine: the line is invalid.
        """
        if line.text is None:
            raise BadLine("it is too long")
        try:
            text = line.text.decode().strip()
        except UnicodeDecodeError as error:
            raise BadLine(f"it is not valid UTF-8 ({error})") from error
        if not text or text.startswith("#"):
            return None
        try:
            written = object_in(text) if text.startswith(("{", "[", '"')) else {"url": text}
            return self._codec.build(self._common | written | {"meta": self._meta(written)})
        except (NoRequest, CannotDecode) as error:
            raise BadLine(printable(str(error))) from error

    def _meta(self, written: Mapping[str, Any]) -> dict[str, Any]:
        own = written.get("meta") or {}
        if not isinstance(own, dict):
            raise BadLine(f'its "meta" is a {type(own).__name__}, not an object')
        return {**self._common.get("meta", {}), **own}
