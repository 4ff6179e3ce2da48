"""The input of one joined feed: parts, how they were written, and their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 1 << 20


class Sources(NamedTuple):
    """The files to join, and how they were written."""

    before: Path | None
    """The earlier feed, if the parts are appended to it. It is the user's: nothing of it is dropped."""
    parts: Sequence[Path]
    options: Mapping[str, Any]
    """Of the feed, as completed by Scrapy."""
    read: Callable[[int], None]
    """Called with the number of bytes read since the last call; may raise, to stop."""

    @property
    def encoding(self) -> str:
        return self.options.get("encoding") or "utf-8"

    @property
    def plain_encoding(self) -> str:
        """Without a byte order mark."""
        return self.encoding.lower().replace("_", "-").removesuffix("-sig")

    @property
    def export_kwargs(self) -> dict[str, Any]:
        return dict(self.options.get("item_export_kwargs") or {})

    def chunks(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of a source."""
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                self.read(len(chunk))
                yield chunk


def lines_of(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends; the last may have none."""
    rest: list[bytes] = []
    for chunk in chunks:
        first, *others = _split(chunk)
        rest.append(first)
        if not others and not first.endswith(b"\n"):
            continue
        yield b"".join(rest)
        yield from others[:-1]
        rest = others[-1:]
        if rest and rest[0].endswith(b"\n"):
            yield rest.pop()
    if rest:
        yield b"".join(rest)


def _split(chunk: bytes) -> list[bytes]:
    # Not splitlines(): for that, a lone \r also ends a line.
    lines = [line + b"\n" for line in chunk.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
