"""Splits input that is read in parts into numbered lines; in bounded memory."""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

PART_BYTES = 65_536
LOOK_S = 0.2
"""How soon a waiting read notices that it should end."""


class Line(NamedTuple):
    """One line: its name in messages, and its bytes, or None if it is too long."""

    name: str
    text: bytes | None


class Splitter:
    """Splits parts into lines; a line that is too long is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._number = 0

    def feed(self, part: bytes) -> Iterator[Line]:
        """Yield the lines that end in *part*."""
        *whole, rest = part.split(b"\n")
        for text in whole:
            self._keep(text)
            yield self._line()
        self._keep(rest)

    def end(self) -> Iterator[Line]:
        """Yield the last line, if it has no newline."""
        if self._rest_bytes:
            yield self._line()

    def _keep(self, text: bytes) -> None:
        self._rest_bytes += len(text)
        if self._rest_bytes <= self._max_bytes:
            self._rest.append(text)

    def _line(self) -> Line:
        self._number += 1
        text = b"".join(self._rest) if self._rest_bytes <= self._max_bytes else None
        if self._number == 1 and text is not None:
            text = text.removeprefix(b"\xef\xbb\xbf")  # the byte order mark that some editors write
        self._rest.clear()
        self._rest_bytes = 0
        return Line(f"line {self._number}", text)


async def lines_of(
    descriptor: int, max_bytes: int, advance: Callable[[int], object]
) -> AsyncIterator[Sequence[Line]]:
    """Yield the lines of an open file or pipe, as many at a time as are there.

    Args:
        max_bytes: of a line.
        advance: called with the number of bytes that were read and handled.
    """
    splitter = Splitter(max_bytes)
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        # Not read() in a thread: a program that is stopped would wait for the next line.
        while waits and not (await asyncio.to_thread(select.select, [descriptor], [], [], LOOK_S))[0]:
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
