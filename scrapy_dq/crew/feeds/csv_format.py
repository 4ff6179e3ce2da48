"""Parts of a CSV feed, whose columns differ and may change within a part: written, and joined."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from itemadapter import ItemAdapter
from scrapy.exporters import CsvItemExporter

from scrapy_dq.crew.feeds.sources import Sources, lines_of

FIELD_BYTES = (1 << 31) - 1
"""A page's text may be longer than 128 KiB, the default limit of the csv module."""
_PRIVATE = range(0xE000, 0xE100)
"""Characters for private use."""
_DIALECT = ("delimiter", "quotechar", "quoting", "skipinitialspace", "lineterminator", "strict")


def header_mark(export_kwargs: Mapping[str, Any]) -> str:
    """Return the mark before a header that replaces the previous one in a part.

    No row that the csv module writes begins like this: it ends a field at its closing quote.
    """
    quote = str(export_kwargs.get("quotechar") or '"')
    sign = "+" if export_kwargs.get("delimiter") != "+" else "-"
    return f"{quote}{quote}{sign}columns{sign}"


def join_csv(out: IO[bytes], sources: Sources) -> int:
    """Write one header with every column, then all rows; return how many the parts had."""
    paths = [*([sources.before] if sources.before else []), *sources.parts]
    if not sources.export_kwargs.get("include_headers_line", True):
        count = 0
        for path in paths:
            for record in _records(sources, path):
                out.write(record)
                count += path is not sources.before
        return count
    found: dict[tuple[str, int], None] = {}
    whole = b""  # a header that has all columns in their order is copied byte for byte
    for header in (header for path in paths for header in _headers(sources, path)):
        known = len(found)
        found |= dict.fromkeys(header.columns)
        if header.columns == list(found) and (len(found) > known or not whole):
            whole = header.raw
        elif len(found) > known:
            whole = b""
    columns = list(found)
    if columns:
        out.write(whole or _row(sources, [name for name, _ in columns], sources.encoding))
    return sum(_join_rows(out, sources, path, columns) for path in paths)


def _join_rows(out: IO[bytes], sources: Sources, path: Path, columns: list[tuple[str, int]]) -> int:
    """Write the rows of a source with values in *columns*; return how many a part had (else 0)."""
    ours, count, header = path is not sources.before, 0, None
    where: list[int] | None = None
    for record in _records(sources, path):
        begun = _header_at(sources, record, ours=ours, first=header is None)
        if begun is not None:
            header, has = begun, begun.columns
            at = {column: i for i, column in enumerate(has)}
            where = None if has == columns else [at.get(column, -1) for column in columns]
            continue
        assert header is not None
        count += ours
        if where is None:
            out.write(record)
            continue
        # In the user's own file, which another program may have written, one record may be several rows.
        for values in _parse(sources, record, strict=not ours):
            row = [values[i] if 0 <= i < len(values) else "" for i in where]
            out.write(_row(sources, row + values[len(header.columns) :], sources.plain_encoding))
    return count


class _Header(NamedTuple):
    raw: bytes
    columns: list[tuple[str, int]]
    """Two columns of one name differ by their number."""


def _header_at(sources: Sources, record: bytes, *, ours: bool, first: bool) -> _Header | None:
    """Return a record as a header, if it is one: the first, and in a part those with a mark."""
    mark = header_mark(sources.export_kwargs).encode(sources.plain_encoding)
    marked = ours and record.startswith(mark)
    if not (first or marked):
        return None
    raw = record.removeprefix(mark) if marked else record
    before: Counter[str] = Counter()
    columns = []
    for name in next(_parse(sources, raw), []):
        columns.append((name, before[name]))
        before[name] += 1
    return _Header(raw, columns)


def _headers(sources: Sources, path: Path) -> Iterator[_Header]:
    ours = path is not sources.before
    quiet = sources._replace(read=lambda count: sources.read(0))  # they are read again
    mark = header_mark(sources.export_kwargs).encode(sources.plain_encoding)
    several = ours and any(line.startswith(mark) for line in lines_of(quiet.chunks(path)))
    for number, record in enumerate(_records(quiet, path)):
        header = _header_at(sources, record, ours=ours, first=not number)
        if header is not None:
            yield header
        if not several:
            return


def _records(sources: Sources, path: Path) -> Iterator[bytes]:
    """Yield complete records; of the earlier feed, also a last one without a line end.

    A line ends a record if the number of quotes so far is even.
    """
    quote = str(sources.export_kwargs.get("quotechar") or '"').encode(sources.plain_encoding)
    end = str(sources.export_kwargs.get("lineterminator", "\r\n")).encode()
    record, open_quote = bytearray(), False
    for line in lines_of(sources.chunks(path)):
        record += line
        open_quote ^= line.count(quote) % 2 == 1
        if line.endswith(b"\n") and not open_quote:
            yield bytes(record)
            record.clear()
    if record and path is sources.before:
        yield bytes(record) + (b"" if open_quote else end)


def _parse(sources: Sources, record: bytes, *, strict: bool = False) -> Iterator[list[str]]:
    csv.field_size_limit(FIELD_BYTES)
    dialect = {k: v for k, v in sources.export_kwargs.items() if k in _DIALECT and k != "quoting"}
    text = record.decode(sources.encoding, "strict" if strict else "replace")
    if "\r" in sources.export_kwargs.get("lineterminator", "\r") or "\r" not in text:
        return csv.reader(io.StringIO(text, newline=""), **dialect)
    # With another terminator the writer does not quote a CR, and the reader would end the row there.
    # So it stands as two others meanwhile, of which the first begins such a pair wherever it is.
    used = "".join(map(str, dialect.values()))
    mark, itself, cr = islice((char for char in map(chr, _PRIVATE) if char not in used), 3)
    text = text.replace(mark, mark + itself).replace("\r", mark + cr)
    rows = csv.reader(io.StringIO(text, newline=""), **dialect)
    return ([value.replace(mark + cr, "\r").replace(mark + itself, mark) for value in row] for row in rows)


def _row(sources: Sources, values: Sequence[str], encoding: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **{k: v for k, v in sources.export_kwargs.items() if k in _DIALECT}).writerow(values)
    return text.getvalue().encode(encoding, sources.export_kwargs.get("errors") or "strict")


class PartCsvItemExporter(CsvItemExporter):
    """Scrapy's exporter, but in a part an item with a new field writes a wider header first.

    Scrapy takes the columns from the first item and drops other fields of later items. In a crew, the result
    would depend on which worker scraped which item first.
    """

    def __init__(self, file: BytesIO, *args: Any, **kwargs: Any) -> None:
        super().__init__(file, *args, **kwargs)
        # Fields that the user has given stay; so does a file that is not a part, because it is not joined.
        self._grows = (
            getattr(file, "is_part", False) and self.include_headers_line and not self.fields_to_export
        )
        self._columns: dict[str, None] = {}
        self._begun = False

    def export_item(self, item: Any) -> None:
        """Scrapy's hook. Source: scrapy/extensions/feedexport.py"""
        if self._grows:
            self._widen(dict.fromkeys(ItemAdapter(item).field_names()))
        super().export_item(item)

    def _widen(self, fields: dict[str, None]) -> None:
        columns = self._columns | fields
        if self._begun and columns == self._columns:
            return
        text = StringIO(newline="")
        csv.writer(text, **self._kwargs).writerow(list(self._build_row(columns)))
        # In one write: a kill leaves all of it or a torn record; a full disk leaves the file unchanged.
        self.stream.write((header_mark(self._kwargs) if self._begun else "") + text.getvalue())
        self._begun, self._columns, self.fields_to_export = True, columns, list(columns)
        # Otherwise Scrapy would write its own before the first item.
        self._headers_not_written = False
