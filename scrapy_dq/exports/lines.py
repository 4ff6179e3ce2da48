"""A header and parts of a crawl <-> lines of JSON. What is read is untrusted: it is checked, field by field.

The first line is the header. Each further one is a part: its kind with its items; its shard, where that is
not 0; and its partition, if it has one. Bytes are base64. Names of partitions and reasons are text, in which
bytes that are not UTF-8 are lone surrogates.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgpack

from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import Header, Part
from scrapy_dq.frontier.keys import MOST_SHARDS
from scrapy_dq.frontier.model import ENTRY_ID_BYTES, Order, Seen, fits_a_partition

FORMAT = 1
_FORMAT = "scrapy_dq_export"
_MOST_NUMBER = 2**53
_MOST_RANK = 2**51
_MOST_TEXT = 100_000
_MOST_KEPT = 262_144
"""Bytes of a field of meta: more would be read by each script that needs it."""
_CLAIMED = b"\1"
"""The partition of start payloads that were claimed. Source: frontier/lua/lib/state.lua"""
_is_member = re.compile(rb"-?[1-8]\d{18}").fullmatch
_is_limits = re.compile(r"\d{0,12}:\d{0,12}(:\d{0,12})?").fullmatch


class BadLine(ValueError):
    """It is not a line of an export; the message says why."""


def _unpacked(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _packed(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _of_text(value: str) -> bytes:
    if len(value) > _MOST_TEXT:
        raise ValueError("a text is too long")
    return value.encode("utf-8", "surrogateescape")


def _partition(value: str) -> bytes:
    name = value.encode("utf-8", "surrogateescape")
    # Redis is shared: the name of one that somebody else has made may be no text.
    if name != _CLAIMED and not fits_a_partition(name.decode("utf-8", "replace")):
        raise ValueError(f"{value[:100]!a} is not the name of a partition")
    return name


def _entry_id(value: str) -> bytes:
    found = _unpacked(value)
    if len(found) != ENTRY_ID_BYTES:
        raise ValueError(f"an id has {len(found)} bytes instead of {ENTRY_ID_BYTES}")
    return found


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def checked(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{str(value)[:40]!a} is not a whole number from {least} to {most}")
        return value

    return checked


def _limits(value: str) -> str:
    if not _is_limits(value):
        raise ValueError(f"{value[:40]!a} are no limits")
    return value


def _member(value: str) -> bytes:
    found = _of_text(value)
    if not _is_member(found):
        raise ValueError(f"{value[:40]!a} is not in any bucket")
    return found


def _same(value: Any) -> Any:
    return value


# What writes a value of a column, and what reads it.
_Column = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_NUMBER: _Column = _same, _whole(0, _MOST_NUMBER)
_TIME: _Column = _same, _whole(-_MOST_NUMBER, _MOST_NUMBER)
_RANK: _Column = _same, _whole(-_MOST_RANK, _MOST_RANK)
_SEQUENCE: _Column = _same, _whole(0, _MOST_RANK - 1)
_ATTEMPTS: _Column = _same, _whole(0, 127)
_BYTES: _Column = _packed, _unpacked
_ID: _Column = _packed, _entry_id
_TEXT: _Column = _text, _of_text
_PARTITION: _Column = _text, _partition
_COLUMNS: dict[str, tuple[_Column, ...]] = {
    parts.SEEN: (_BYTES,),
    parts.SEEDS: (_BYTES,),
    parts.ADMITTED: (_BYTES,),
    parts.ADOPTED: (_BYTES,),
    parts.LIMITS: (_PARTITION, (_same, _limits)),
    parts.BLOCKED: (_TIME, _PARTITION),
    parts.WAITING: (_RANK, _SEQUENCE, _ID, _BYTES),
    parts.RETURNED: (_PARTITION, _RANK, _SEQUENCE, _ID, _ATTEMPTS, _BYTES),
    parts.QUARANTINE: (_PARTITION, _RANK, _SEQUENCE, _ID, _ATTEMPTS, _BYTES),
    parts.DELAYED: (_TIME, _RANK, _PARTITION, _ID, _BYTES),
    parts.FAILED: (
        _ID, _TEXT, _TEXT, _NUMBER, _TEXT, _NUMBER, _RANK, _SEQUENCE, _BYTES, _PARTITION,
    ),
    parts.DEAD: (_ID, _TEXT, _NUMBER, _TEXT, _NUMBER, _RANK, _SEQUENCE, _BYTES, _PARTITION),
}  # fmt: skip
_COLUMNS_OF_SEEN: dict[Seen, tuple[_Column, ...]] = {
    Seen.EXACT: (_BYTES,),
    Seen.EXPIRING: (_TIME, _BYTES),
    Seen.COMPACT: ((_same, _whole(0, 1023)), (_text, _member)),
}


def _columns(kind: str, seen: Seen) -> tuple[_Column, ...]:
    return _COLUMNS_OF_SEEN[seen] if kind == parts.SEEN else _COLUMNS[kind]


def part_line(part: Part, seen: Seen) -> str:
    """Return the line of a part, without its end.

    Args:
        seen: the kind of the crawl's.
    """
    columns = [write for write, _ in _columns(part.kind, seen)]
    items: list[Any]
    if len(columns) == 1:
        items = [columns[0](item[0]) for item in part.items]
    else:
        items = [[write(value) for write, value in zip(columns, item)] for item in part.items]  # noqa: B905
    line: dict[str, Any] = {part.kind: items}
    if part.kind == parts.WAITING:
        line["partition"] = _text(part.partition)
    if part.shard:
        line["shard"] = part.shard
    return json.dumps(line, separators=(",", ":"))


def part_of(line: dict[str, Any], header: Header) -> Part:
    """Return the part in a line.

    Raises:
        BadLine
    """
    try:
        kind, given = next(iter(line.items()))
        columns = [read for _, read in _columns(kind, header.seen)]
        if len(columns) == 1:
            items = [(columns[0](value),) for value in given]
        else:
            items = [tuple([read(value) for read, value in zip(columns, row, strict=True)]) for row in given]
        partition = _partition(line["partition"]) if kind == parts.WAITING else b""
        shard = _whole(0, header.shards - 1)(line.get("shard", 0))
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise BadLine(f"it is no part of a crawl ({type(error).__name__}: {str(error)[:200]})") from None
    return Part(kind, shard, items, partition)


def header_line(header: Header, version: str) -> str:
    """Return the first line of an export, without its end.

    Args:
        version: of scrapy_dq, for people.
    """
    said = {each.name: getattr(header, each.name) for each in fields(header)}
    said |= {
        "order": header.order.value, "seen": header.seen.value,
        "kept": {name: _packed(value) for name, value in header.kept.items()},
    }  # fmt: skip
    return json.dumps({_FORMAT: FORMAT, "version": version, **said})


def header_of(line: Any) -> tuple[Header, str]:
    """Return what is in the first line, and the version that has written it.

    Raises:
        BadLine: it begins no export, or one that only a later version reads.
    """
    if type(line) is not dict or _FORMAT not in line:
        raise BadLine(f"its first line has no {_FORMAT!r}: it is not an export of scrapy_dq")
    version = str(line.get("version"))[:40]
    if line[_FORMAT] != FORMAT:
        raise BadLine(
            f"it was written by scrapy_dq {version!a}, in format {str(line[_FORMAT])[:20]!a}: this version "
            f"reads format {FORMAT} only"
        )
    try:
        said = {each.name: line[each.name] for each in fields(Header)}
        for name in ("at_ms", "run", "sequence", "done", "failed", "gone", "entries", "tokens"):
            _whole(0, 2**51)(said[name])
        _TIME[1](said["seen_since_ms"])
        for name in ("id", "crawl", "partition_by", "fingerprinter", "spider"):
            if type(said[name]) is not str or len(said[name]) > _MOST_TEXT or not said[name].isprintable():
                raise ValueError(f"{name} is not a text")
        if not re.fullmatch(r"[0-9a-f]{32}", said["id"]):
            raise ValueError("its id has not 32 digits")
        said["shards"] = _whole(1, MOST_SHARDS)(said["shards"])
        said["order"], said["seen"] = Order(said["order"]), Seen(said["seen"])
        said["kept"] = {name: _unpacked(value) for name, value in said["kept"].items() if name in parts.KEPT}
        _check_kept(said["kept"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadLine(f"its first line was edited ({type(error).__name__}: {str(error)[:200]})") from None
    return Header(**said), version


def _check_kept(kept: dict[str, bytes]) -> None:
    """Raise ValueError if a script could not read one of these."""
    if any(len(value) > _MOST_KEPT for value in kept.values()):
        raise ValueError("a field is too long")
    for name in ("events", "began"):
        if name in kept and not (kept[name].isdigit() and len(kept[name]) <= 16):
            raise ValueError(f"{name} is not a number")
    if kept.get("keep_seen", b"1") not in (b"0", b"1"):
        raise ValueError("keep_seen is neither 0 nor 1")
    if limits := kept.get("limits_set"):
        # Source: scrapy_dq/frontier/wire.py::pack_limits
        delay_ms, concurrency, own, *budgets = msgpack.unpackb(limits, raw=True)
        budget, period, own_budgets = budgets or (0, 1, {})
        if not all(type(number) is int for number in (delay_ms, concurrency, budget)) or period not in (1, 2):
            raise ValueError("limits_set has no numbers")
        numbers = [delay_ms, concurrency, budget, *own[1::3], *own[2::3], *own_budgets.values()]
        if not all(type(name) is bytes for name in own_budgets):
            raise ValueError("limits_set has no names of partitions")
        if len(own) % 3 or not all(type(name) is bytes for name in own[::3]):
            raise ValueError("limits_set has no names of partitions")
        if not all(number is False or (type(number) is int and 0 <= number < 2**40) for number in numbers):
            raise ValueError("limits_set has no numbers")
