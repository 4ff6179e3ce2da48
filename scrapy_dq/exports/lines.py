"""Converts the header and the parts of a crawl to lines of JSON, and back.

The first line is the header. Each further line is a part: its kind with its items; its shard, unless that is
0; and its partition, if it has one. Bytes are base64. Reasons and names of partitions are text, with lone
surrogates for bytes that are not UTF-8.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import repeat
from operator import attrgetter
from typing import Any

from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import Header, Part
from scrapy_dq.frontier.model import Order, Seen
from scrapy_dq.frontier.records import DEAD, DELAYED, FAILED, QUARANTINE, RETURNED, WAITING, Entry

FORMAT = 1
_FORMAT = "scrapy_dq_export"


class BadLine(ValueError):
    """The line does not belong to an export; the message has the reason."""


def _packed(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _unpacked(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _of_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _same(value: Any) -> Any:
    return value


# The functions that write and read a value of a column.
_Column = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_BYTES: _Column = _packed, _unpacked
_TEXT: _Column = _text, _of_text
_SAME: _Column = _same, _same
_RETURNED = ("partition", "rank", "sequence", "entry_id", "attempts", "payload")
_ENDED = ("reason", "at_ms", "worker_id", "attempts", "rank", "sequence", "payload", "partition")
_FIELDS: dict[str, tuple[str, ...]] = {
    WAITING: ("rank", "sequence", "entry_id", "payload"), RETURNED: _RETURNED, QUARANTINE: _RETURNED,
    DELAYED: ("due_ms", "rank", "partition", "entry_id", "payload"),
    FAILED: ("entry_id", "label", *_ENDED), DEAD: ("entry_id", *_ENDED),
}  # fmt: skip
"""The fields of an entry in a line. All waiting entries of a line share the line's partition."""
_OF_FIELD = {"entry_id": _BYTES, "payload": _BYTES, "partition": _TEXT}
_COLUMNS: dict[str, tuple[_Column, ...]] = {
    **dict.fromkeys((parts.SEEDS, parts.ADMITTED, parts.ADOPTED), (_BYTES,)),
    parts.LIMITS: (_TEXT, _TEXT), parts.BLOCKED: (_SAME, _TEXT),
    **{kind: tuple(_OF_FIELD.get(name, _SAME) for name in names) for kind, names in _FIELDS.items()},
}  # fmt: skip
_COLUMNS_OF_SEEN: dict[Seen, tuple[_Column, ...]] = {
    Seen.EXACT: (_BYTES,),
    Seen.EXPIRING: (_SAME, _BYTES),
    Seen.COMPACT: (_SAME, _TEXT),
}


def _columns(kind: str, seen: Seen) -> tuple[_Column, ...]:
    return _COLUMNS_OF_SEEN[seen] if kind == parts.SEEN else _COLUMNS[kind]


def part_line(part: Part, seen: Seen) -> str:
    """Return the line of a part, without a line end.

    Args:
        seen: how the crawl stores its fingerprints.
    """
    rows = map(attrgetter(*_FIELDS[part.kind]), part.items) if part.kind in _FIELDS else part.items
    # Converting columns is faster than converting rows.
    columns = zip(_columns(part.kind, seen), zip(*rows, strict=True), strict=True)
    written = [map(write, values) for (write, _), values in columns]
    line: dict[str, Any] = {part.kind: list(zip(*written, strict=True) if len(written) > 1 else written[0])}
    if part.kind == WAITING:
        line["partition"] = _text(part.items[0].partition)
    if part.shard:
        line["shard"] = part.shard
    return json.dumps(line, separators=(",", ":"))


def part_of(line: dict[str, Any], header: Header) -> Part:
    """Return the part in a line.

    Raises:
        BadLine: the line is not a part.
    """
    try:
        kind, given = next(iter(line.items()))
        columns = _columns(kind, header.seen)
        values = zip(*given, strict=True) if len(columns) > 1 else [given]
        found = [list(map(read, column)) for (_, read), column in zip(columns, values, strict=True)]
        items: list[Any] = list(zip(*found, strict=True))
        if names := _FIELDS.get(kind):
            known = Entry._field_defaults | {"where": kind, "partition": _of_text(line.get("partition", ""))}
            of_all: dict[str, Iterable[Any]] = {
                name: repeat(value, len(items)) for name, value in known.items()
            }
            of_all |= zip(names, found, strict=True)
            items = [*map(Entry._make, zip(*(of_all[name] for name in Entry._fields), strict=True))]
        return Part(kind, line.get("shard", 0), items)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise BadLine(f"it is not a part of a crawl ({type(error).__name__}: {str(error)[:200]})") from None


def header_line(header: Header, version: str) -> str:
    """Return the first line of an export, without a line end.

    Args:
        version: the version of scrapy_dq, for people.
    """
    content = vars(header) | {
        "order": header.order.value, "seen": header.seen.value,
        "kept": {name: _packed(value) for name, value in header.kept.items()},
    }  # fmt: skip
    return json.dumps({_FORMAT: FORMAT, "version": version, **content})


def header_of(line: Any) -> Header:
    """Return the header in the first line.

    Raises:
        BadLine: the line does not begin an export, or only a later version reads this export.
    """
    if type(line) is not dict or _FORMAT not in line:
        raise BadLine(f"its first line has no {_FORMAT!r}: it is not an export of scrapy_dq")
    if line[_FORMAT] != FORMAT:
        version = str(line.get("version"))[:40]
        raise BadLine(
            f"it was written by scrapy_dq {version!a}, in format {str(line[_FORMAT])[:20]!a}: this version "
            f"reads format {FORMAT} only"
        )
    try:
        content = {each.name: line[each.name] for each in fields(Header)}
        content["order"], content["seen"] = Order(content["order"]), Seen(content["seen"])
        content["kept"] = {
            name: _unpacked(value) for name, value in content["kept"].items() if name in parts.KEPT
        }
        return Header(**content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadLine(f"its first line was edited ({type(error).__name__}: {str(error)[:200]})") from None
