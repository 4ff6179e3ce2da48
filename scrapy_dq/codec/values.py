"""Converts Python values to msgpack and back, with exact types, limited depth and only allowed classes.

msgpack stores strings, numbers, None, bytes, lists and dicts. Any other value becomes an extension, whose
data is msgpack again. Values are converted before msgpack packs them or after it unpacks them, never in its
callbacks, because each frame of msgpack takes 40 kB of C stack, and extensions may be nested.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import msgpack
from msgpack import ExtType

from scrapy_dq.codec.classes import Classes
from scrapy_dq.codec.unfit import Unfit, exactly

MAX_DEPTH = 64
"""Maximum number of nested containers. Deeper values, and values that contain themselves, are neither stored
nor read."""

SCALARS = frozenset({type(None), bool, int, float, str, bytes})

# Extension codes of FORMAT 1; `_SIMPLE` has more. A code never changes its meaning.
WIDE_INT, OBJECT = 1, 5
_SEQUENCES: dict[type, int] = {tuple: 2, set: 3, frozenset: 4}
_BUILDERS: dict[int, Callable[[list[Any]], Any]] = {code: kind for kind, code in _SEQUENCES.items()}
_PATHS: dict[str, type[Any]] = {"": Path, "posix": PurePosixPath, "windows": PureWindowsPath}
_PATH_TAGS: dict[type, str] = {type(Path()): "", PurePosixPath: "posix", PureWindowsPath: "windows"}
_PARSERS = ("lxml", "bs4")
"""Packages whose strings refer to their whole page, such as CrawlSpider's meta["link_text"]. These strings
are stored as str."""
_MICROSECOND = timedelta(microseconds=1)


class Values:
    """Lowers values to types that msgpack packs, and lifts them again; for use in one thread."""

    def __init__(self, classes: Classes, max_bytes: int) -> None:
        """*max_bytes* limits the size of a lowered value. Shared parts count each time they occur."""
        self._classes = classes
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._pack = msgpack.Packer(strict_types=True, default=_wide_int).pack
        self._pack_surrogates = msgpack.Packer(
            strict_types=True, default=_wide_int, unicode_errors="surrogatepass"
        ).pack

    def pack(self, lowered: Any) -> bytes:
        """Pack a value that `lower` returned."""
        try:
            packed: bytes = self._pack(lowered)
        except UnicodeEncodeError:  # json.loads() makes lone surrogates from broken JSON
            packed = self._pack_surrogates(lowered)
        return packed

    def unpack(self, packed: bytes) -> Any:
        """Unpack a value for `lift`; raise ValueError or another exception on invalid msgpack.

        msgpack refuses every length greater than the length of *packed*. `lift` refuses msgpack's timestamps.
        """
        return msgpack.unpackb(packed, strict_map_key=False, unicode_errors="surrogatepass")

    def lower(self, value: Any) -> Any:
        """Return *value* itself if msgpack can pack it exactly, or else a converted copy; raise Unfit."""
        self._left = self._max_bytes
        return self._lower(value, MAX_DEPTH)

    def _lower(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in SCALARS:
            return value
        if not depth:
            raise Unfit(f"nested deeper than {MAX_DEPTH} levels, or contains itself")
        if kind is dict:
            self._count(len(value))
            if SCALARS.issuperset(map(type, value.values())) and SCALARS.issuperset(map(type, value)):
                return value
            return self._lower_dict(value, depth - 1)
        if kind is list:
            self._count(len(value))
            return value if SCALARS.issuperset(map(type, value)) else self._lower_each(value, depth - 1)
        code = _SEQUENCES.get(kind)
        if code is not None:
            self._count(len(value))
            lowered = self._lower_each(value, depth - 1)
            if kind is not tuple:
                lowered.sort(key=self.pack)  # the order of a set differs between processes
            return ExtType(code, self.pack(lowered))
        simple = _SIMPLE.get(kind)
        if simple is not None:
            return ExtType(simple[0], self.pack(simple[1](value)))
        if isinstance(value, str) and kind.__module__.partition(".")[0] in _PARSERS:
            return str.__str__(value)
        shape = self._classes.shape_of(kind)
        return ExtType(OBJECT, self.pack([shape.name, self._lower(shape.read(value), depth - 1)]))

    def _count(self, members: int) -> None:
        self._left -= members
        if self._left < 0:
            raise Unfit(f"larger than DQ_MAX_ENTRY_BYTES = {self._max_bytes:,} bytes")

    def _lower_dict(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        lowered = {}
        for key, item in value.items():
            try:
                lowered[self._lower(key, depth)] = self._lower(item, depth)
            except Unfit as unfit:
                unfit.path.append(f"[{reprlib.repr(key)}]")
                raise
        if len(lowered) != len(value):
            raise Unfit("two of its keys have the same stored form")
        return lowered

    def _lower_each(self, values: Iterable[Any], depth: int) -> list[Any]:
        lowered = []
        for index, item in enumerate(values):
            try:
                lowered.append(self._lower(item, depth))
            except Unfit as unfit:
                unfit.path.append(f"[{index}]")
                raise
        return lowered

    def lift(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """Return the original of a value that was just unpacked; raise Unfit or another exception."""
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is ExtType and value.code == WIDE_INT:
            return int.from_bytes(value.data, "big", signed=True)
        if not depth:
            raise Unfit(f"nested deeper than {MAX_DEPTH} levels")
        if kind is dict:
            if SCALARS.issuperset(map(type, value.values())) and SCALARS.issuperset(map(type, value)):
                return value
            keys = self._lift_each(value, depth - 1)
            return dict(zip(keys, self._lift_each(value.values(), depth - 1), strict=True))
        if kind is list:
            return value if SCALARS.issuperset(map(type, value)) else self._lift_each(value, depth - 1)
        if kind is ExtType:
            return self._lift_extension(value.code, self.unpack(value.data), depth - 1)
        raise Unfit(f"a {kind.__name__} is not allowed in an entry")

    def _lift_each(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.lift(item, depth) for item in values]

    def _lift_extension(self, code: int, plain: Any, depth: int) -> Any:
        build = _BUILDERS.get(code)
        if build is not None:
            return build(self._lift_each(exactly(plain, list), depth))
        if code == OBJECT:
            name, state = plain
            return self._classes.find(name).build(self.lift(state, depth))
        simple = _SIMPLE_BY_CODE.get(code)
        if simple is None:
            raise Unfit(f"the extension {code} is unknown to this version")
        return simple(plain)


def _wide_int(value: Any) -> Any:
    """Lower an int beyond 64 bits; msgpack calls this for values that it cannot pack."""
    if type(value) is not int:
        raise Unfit(f"a {type(value).__name__} cannot be stored")
    return ExtType(WIDE_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _offset(moment: datetime | time) -> int | None:
    if moment.tzinfo is None:
        return None
    offset = moment.utcoffset()
    if offset is None:
        raise Unfit("its time zone has no UTC offset")
    return offset // _MICROSECOND


def _zone(offset: int | None) -> timezone | None:
    return None if offset is None else timezone(timedelta(microseconds=offset)) if offset else timezone.utc


# Exact types are needed: bytearray(10**12) would fill the memory, and datetime(b"...") skips its own checks.
def _ints(plain: Any) -> list[int]:
    return [exactly(number, int) for number in exactly(plain, list)]


def _lower_datetime(d: datetime) -> list[Any]:
    return [_offset(d), d.fold, d.year, d.month, d.day, d.hour, d.minute, d.second, d.microsecond]


def _lower_time(t: time) -> list[Any]:
    return [_offset(t), t.fold, t.hour, t.minute, t.second, t.microsecond]


def _lift_moment(cls: Any, plain: Any) -> Any:
    offset, *fields = exactly(plain, list)
    fold, *parts = _ints(fields)
    return cls(*parts, fold=fold, tzinfo=_zone(offset))


def _lift_path(plain: Any) -> Any:
    tag, text = exactly(plain, list)
    return _PATHS[tag](exactly(text, str))


_SIMPLE: dict[type, tuple[int, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytearray: (8, bytes, lambda plain: bytearray(exactly(plain, bytes))),
    # An aware datetime or time keeps its instant and its UTC offset, but not the name of its zone.
    datetime: (9, _lower_datetime, partial(_lift_moment, datetime)),
    date: (10, lambda d: [d.year, d.month, d.day], lambda plain: date(*_ints(plain))),
    time: (11, _lower_time, partial(_lift_moment, time)),
    timedelta: (12, lambda d: [d.days, d.seconds, d.microseconds], lambda plain: timedelta(*_ints(plain))),
    Decimal: (13, str, lambda plain: Decimal(exactly(plain, str))),
    UUID: (14, lambda u: u.bytes, lambda plain: UUID(bytes=plain)),
    **dict.fromkeys(_PATH_TAGS, (15, lambda path: [_PATH_TAGS[type(path)], str(path)], _lift_path)),
}
"""Extension code, function that lowers and function that lifts a value, by class."""
_SIMPLE_BY_CODE = {code: lift for code, _, lift in _SIMPLE.values()}
