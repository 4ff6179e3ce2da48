"""How the parts of a feed become one: JSON Lines, CSV, JSON. Streaming; a part may end in a torn record."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from scrapy_dq.crew.errors import CrewError

CHUNK = 1 << 20
FIELD_BYTES = (1 << 31) - 1
"""A page's text may be longer than the 128 KiB at which the csv module stops by itself."""
_DIALECT = ("delimiter", "quotechar", "quoting", "skipinitialspace", "lineterminator", "strict")


class Sources(NamedTuple):
    """What is joined, and how it was written."""

    before: Path | None
    """The feed as it is, if the parts are appended to it. It is the user's: nothing of it is dropped."""
    parts: Sequence[Path]
    options: Mapping[str, Any]
    """Of the feed, as Scrapy has completed them."""
    read: Callable[[int], None]
    """Called with the number of bytes that have been read since; may raise, to stop."""

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


def join_lines(out: IO[bytes], sources: Sources) -> int:
    """Write what was there, then each part's whole lines; return how many lines the parts had."""
    count = 0
    last = b""
    for chunk in sources.chunks(sources.before) if sources.before else ():
        out.write(chunk)
        last = chunk
    if last and not last.endswith(b"\n"):
        out.write(b"\n")
    for part in sources.parts:
        for line in _lines(sources.chunks(part)):
            if line.endswith(b"\n"):
                out.write(line)
                count += 1
    return count


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
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
    # Not splitlines(), for which a lone \r ends a line, too.
    lines = [line + b"\n" for line in chunk.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def join_json(out: IO[bytes], sources: Sources) -> int:
    """Write one array of all elements; return how many the parts had.

    Raises:
        CrewError: what was there before is no JSON.
    """
    count, empty = 0, True
    out.write(b"[\n")
    for path in [*([sources.before] if sources.before else []), *sources.parts]:
        ours = path is not sources.before
        for element in _elements(sources, path, torn_ok=ours):
            out.write((b"" if empty else b",\n") + element.encode(sources.plain_encoding))
            empty = False
            count += ours
    out.write(b"\n]" if not empty else b"]")
    return count


def _elements(sources: Sources, path: Path, *, torn_ok: bool) -> Iterator[str]:
    """Yield the text of each element of the arrays in a file, one after the other."""
    # What was there before is the user's: it is not mended, but refused.
    decode = codecs.getincrementaldecoder(sources.encoding)("replace" if torn_ok else "strict").decode
    decoder, text, at, need, inside = json.JSONDecoder(), "", 0, 0, False
    for chunk in chain(sources.chunks(path), [b""]):
        text, at = text[at:] + decode(chunk, not chunk), 0
        if len(text) < need and chunk:
            continue  # an element that is longer than a chunk is not tried again at each
        while True:
            while at < len(text) and (text[at] in "],\ufeff \r\n\t" or (text[at] == "[" and not inside)):
                inside = text[at] == "[" or (inside and text[at] != "]")
                at += 1
            try:
                end = decoder.raw_decode(text, at)[1] if at < len(text) else at
            except ValueError:
                break
            if end == at or (end == len(text) and chunk):
                break  # a number may go on in the next chunk
            yield text[at:end]
            at = end
        need = 2 * (len(text) - at)
    if text[at:] and not torn_ok:
        raise CrewError(f"{path} is no JSON from here on: {text[at : at + 40]!r}")


def join_csv(out: IO[bytes], sources: Sources) -> int:
    """Write one header with every column, then all rows; return how many the parts had."""
    paths = [*([sources.before] if sources.before else []), *sources.parts]
    with_header = sources.export_kwargs.get("include_headers_line", True)
    headers = {path: _header(sources, path) for path in paths} if with_header else {}
    columns = list(dict.fromkeys(chain.from_iterable(_named(header) for header in headers.values())))
    if columns:
        # One that has all columns in their order stays as it is, byte for byte.
        whole = next((h for h in headers.values() if _named(h) == columns), None)
        out.write(whole.raw if whole else _row(sources, [name for name, _ in columns], sources.encoding))
    count = 0
    for path in paths:
        ours = path is not sources.before
        records = _records(sources, path, torn_ok=ours)
        if with_header:
            next(records, None)
        where = None
        if with_header and _named(headers[path]) != columns:
            where = [_named(headers[path]).index(column) if column in _named(headers[path]) else -1
                     for column in columns]  # fmt: skip
        for record in records:
            count += ours
            if where is None:
                out.write(record)
                continue
            # Of the user's own, which may have been written otherwise, one record may be several rows.
            for values in _parse(sources, record, strict=not ours):
                row = [values[i] if 0 <= i < len(values) else "" for i in where]
                out.write(_row(sources, row + values[len(headers[path].names) :], sources.plain_encoding))
    return count


class _Header(NamedTuple):
    raw: bytes
    names: list[str]


def _header(sources: Sources, path: Path) -> _Header:
    raw = next(_records(sources._replace(read=lambda _: None), path, torn_ok=path is not sources.before), b"")
    return _Header(raw, next(_parse(sources, raw), []))


def _named(header: _Header) -> list[tuple[str, int]]:
    """Return the columns: two of one name are told apart by their order."""
    return [(name, header.names[:i].count(name)) for i, name in enumerate(header.names)]


def _records(sources: Sources, path: Path, *, torn_ok: bool) -> Iterator[bytes]:
    """Yield whole records. A line ends one where the number of quotes so far is even."""
    quote = str(sources.export_kwargs.get("quotechar") or '"').encode(sources.plain_encoding)
    end = str(sources.export_kwargs.get("lineterminator", "\r\n")).encode()
    record, open_quote = b"", False
    for line in _lines(sources.chunks(path)):
        record += line
        open_quote ^= line.count(quote) % 2 == 1
        if line.endswith(b"\n") and not open_quote:
            yield record
            record = b""
    if record and not torn_ok:
        yield record + (b"" if open_quote else end)


def _parse(sources: Sources, record: bytes, *, strict: bool = False) -> Iterator[list[str]]:
    csv.field_size_limit(FIELD_BYTES)
    dialect = {k: v for k, v in sources.export_kwargs.items() if k in _DIALECT and k != "quoting"}
    text = io.StringIO(record.decode(sources.encoding, "strict" if strict else "replace"), newline="")
    return csv.reader(text, **dialect)


def _row(sources: Sources, values: Sequence[str], encoding: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **{k: v for k, v in sources.export_kwargs.items() if k in _DIALECT}).writerow(values)
    return text.getvalue().encode(encoding, sources.export_kwargs.get("errors") or "strict")


JOINERS: dict[str, Callable[[IO[bytes], Sources], int]] = {
    "jsonlines": join_lines, "jsonl": join_lines, "jl": join_lines, "csv": join_csv, "json": join_json,
}  # fmt: skip


def unjoinable(options: Mapping[str, Any]) -> str:
    """Return why parts with these feed options cannot be joined, "" if they can."""
    if options["format"] not in JOINERS:
        return f"parts in the format {options['format']!r} cannot be joined (jsonlines, csv and json can)"
    if options.get("postprocessing"):
        return "parts that are postprocessed cannot be joined"
    try:
        plain = 'a\n",'.encode(options.get("encoding") or "utf-8").endswith(b'a\n",')
    except LookupError:
        plain = False
    if not plain:
        return f"parts in the encoding {options['encoding']!r} cannot be joined"
    kwargs = options.get("item_export_kwargs") or {}
    if options["format"] == "csv" and (
        kwargs.get("quoting") == csv.QUOTE_NONE
        or kwargs.get("escapechar")
        or not kwargs.get("doublequote", True)
        or not str(kwargs.get("lineterminator", "\n")).endswith("\n")
        or kwargs.get("dialect", "excel") != "excel"
    ):
        return "parts in this dialect of CSV cannot be joined"
    return ""
