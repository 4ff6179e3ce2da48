"""Joins the parts of a feed: JSON Lines, CSV, JSON. Streaming; a part may end in a torn record."""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.csv_format import join_csv
from scrapy_dq.crew.feeds.sources import Sources, lines_of

LOOK_BYTES = 65536
_TORN_CHARS = 12
"""An element that ends too early is refused at its end, or at its last escape or word, which is shorter."""
ONE_BYTE = frozenset((
    "ascii", "cp437", "cp850", "cp852", "cp866", "cp874", "koi8-r", "koi8-u", "mac-roman", "tis-620",
    *(f"cp125{n}" for n in range(9)), *(f"iso8859-{n}" for n in range(1, 17) if n != 12),
))  # fmt: skip
"""Encodings, by their names in Python, in which each ASCII character, and no other, is its ASCII byte."""
SEVERAL_BYTES = frozenset((
    "big5", "big5hkscs", "cp932", "cp949", "cp950", "gb18030", "gb2312", "gbk",
))  # fmt: skip
"""The same, but for bytes from 0x30 within characters."""
AMBIGUOUS = frozenset(("euc_jp", "euc_kr", "shift_jis"))
"""The same as SEVERAL_BYTES, but text changes if it is decoded and encoded: in shift_jis, ¥ becomes a
backslash, which JSON reads as an escape."""


def join_lines(out: IO[bytes], sources: Sources) -> int:
    """Write the earlier feed, then each part's complete lines; return how many lines the parts had."""
    count = 0
    last = b""
    for chunk in sources.chunks(sources.before) if sources.before else ():
        out.write(chunk)
        last = chunk
    if last and not last.endswith(b"\n"):
        out.write(b"\n")
    for part in sources.parts:
        for line in lines_of(sources.chunks(part)):
            if line.endswith(b"\n"):
                out.write(line)
                count += 1
    return count


def join_json(out: IO[bytes], sources: Sources) -> int:
    """Write one array of all elements; return how many the parts had.

    Raises:
        CrewError: the earlier feed is not valid JSON, or a part is not, before its end.
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
    # The earlier feed is the user's: if it is invalid, it is refused, not repaired.
    decode = codecs.getincrementaldecoder(sources.encoding)("replace" if torn_ok else "strict").decode
    # Only the text is needed; and Python converts no number of more than 4,300 digits.
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)
    text, at, need, inside = "", 0, 0, False
    bad_at: int | None = None
    for chunk in chain(sources.chunks(path), [b""]):
        text, at = text[at:] + decode(chunk, not chunk), 0
        if len(text) < need and chunk:
            continue  # an element that is longer than a chunk is not parsed again with each chunk
        while True:
            while at < len(text) and (text[at] in "],\ufeff \r\n\t" or (text[at] == "[" and not inside)):
                inside = text[at] == "[" or (inside and text[at] != "]")
                at += 1
            try:
                end = decoder.raw_decode(text, at)[1] if at < len(text) else at
            except json.JSONDecodeError as error:
                # "Unterminated string" is located where the string begins.
                bad_at = len(text) if error.msg.startswith("Unterminated") else error.pos
                break
            if end == at or (end == len(text) and chunk):
                break  # a number may continue in the next chunk
            yield text[at:end]
            at = end
        need = 2 * (len(text) - at)
    # After a power loss, a file may end in zeros that were never written.
    rest = text[at:].rstrip("\0" if torn_ok else "")
    torn = torn_ok and (bad_at is None or bad_at >= at + len(rest) - _TORN_CHARS)
    if rest and not torn:
        raise CrewError(f"{path} is not valid JSON from here on: {text[at : at + 40]!r}")


def unreadable(path: Path, options: Mapping[str, Any]) -> str:
    """Return why nothing can be appended to a feed, or "" if a quick check finds no reason.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        begin = file.read(LOOK_BYTES)
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOOK_BYTES))
        end = file.read(LOOK_BYTES)
    if options["format"] == "json":
        first = begin.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        # The feed of a killed crawl may lack its end.
        if first not in (b"[", b"") or (first and end.rstrip()[-1:] not in (b"]", b"}", b",", b"[")):
            return "it is not a JSON array"
    if options["format"] == "csv":
        decode = codecs.getincrementaldecoder(options.get("encoding") or "utf-8")().decode
        try:
            decode(begin.partition(b"\n")[0])
        except UnicodeError as error:
            return f"its first line is not text: {error}"
    return ""


JOINERS: dict[str, Callable[[IO[bytes], Sources], int]] = {
    "jsonlines": join_lines, "jsonl": join_lines, "jl": join_lines, "csv": join_csv, "json": join_json,
}  # fmt: skip


def unjoinable(options: Mapping[str, Any]) -> str:
    """Return why parts with these feed options cannot be joined, or "" if they can."""
    if options["format"] not in JOINERS:
        return f"parts in the format {options['format']!r} cannot be joined (jsonlines, csv and json can)"
    if options.get("postprocessing"):
        return "parts that are postprocessed cannot be joined"
    kwargs = options.get("item_export_kwargs") or {}
    if not _is_plain(options.get("encoding") or "utf-8", options["format"], kwargs):
        return f"parts in the encoding {options['encoding']!r} cannot be joined (in utf-8 they can)"
    if options["format"] == "csv" and (
        kwargs.get("quoting") == csv.QUOTE_NONE
        or kwargs.get("escapechar")
        or not kwargs.get("doublequote", True)
        or not str(kwargs.get("lineterminator", "\n")).endswith("\n")
        or kwargs.get("dialect", "excel") != "excel"
    ):
        return "parts in this dialect of CSV cannot be joined"
    return ""


def _is_plain(encoding: str, format: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether the line ends, quotes and escapes of a feed are found in its bytes."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        return False
    if name in ONE_BYTE or name in ("utf-8", "utf-8-sig"):
        return True
    if format == "json":
        return name in SEVERAL_BYTES
    if format == "csv" and (kwargs.get("quotechar") or '"') >= "0":
        return False
    return name in SEVERAL_BYTES | AMBIGUOUS
