"""Store and rebuild scalars of numpy and pandas, without importing either package.

A worker that stores a scalar has already imported its package. A worker that has not imported numpy reads a
plain number or text instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Any

from scrapy_dq.codec.shapes import Shape
from scrapy_dq.codec.unfit import Unfit, Unknown, exactly

MODULES = ("numpy", "pandas")
_PLAIN: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "bool_": (bool, bool),
    # The method item() would drop trailing zero bytes.
    "str_": (str, str.__str__),
    "bytes_": (bytes, lambda value: b"".join((value,))),
    **dict.fromkeys(("float16", "float32", "float64"), (float, float)),
    **dict.fromkeys(("complex64", "complex128"), (complex, complex)),
    **{
        f"{sign}{size}": (int, int)
        for sign in ("", "u")
        for size in ("int8", "int16", "int32", "int64", "intc", "longlong")
    },
}
"""Scalars of numpy, each with its plain type and a function that converts to it. A longdouble has none."""
_MOMENTS = ("datetime64", "timedelta64")
_STAMPS = ("Timestamp", "Timedelta")
_MISSING = ("NaT", "NA")
_NAMES = {"bool": "bool_", "NaTType": "NaT", "NAType": "NA"}
"""Names in `numpy` and `pandas`, by the name of the class, where the two differ."""
_MICROSECOND = timedelta(microseconds=1)


def shape_of(cls: type) -> Shape | None:
    """Return the shape of a scalar class of numpy or pandas; None for any other class."""
    module = cls.__module__.partition(".")[0]
    try:
        return find(f"{module}:{_NAMES.get(cls.__name__, cls.__name__)}") if module in MODULES else None
    except Unknown:
        return None


def find(name: str) -> Shape:
    """Return the shape with that name, without importing anything; raise Unknown."""
    module, _, own = name.partition(":")
    found = _found(module, own)
    if module == "numpy" and own in _PLAIN:
        kind, plain_of = _PLAIN[own]
        make = found if _is_scalar(found) else kind
        return Shape(name, make, plain_of, lambda state: make(exactly(state, kind)))
    if found is None:
        raise Unknown(f"{module} is not imported in this worker, or has no {own!a:.100}")
    if module == "numpy" and own in _MOMENTS and _is_scalar(found):
        return Shape(name, found, _read_moment, lambda state: _moment(found, state))
    if module == "pandas" and own in _STAMPS:
        return Shape(name, found, _read_stamp, lambda state: _stamp(found, state))
    if module == "pandas" and own in _MISSING:
        return Shape(name, type(found), lambda value: None, lambda state: found)
    raise Unknown(f"a {name!a:.100} cannot be stored")


def _found(module: str, name: str) -> Any:
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


def _is_scalar(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, _found("numpy", "generic"))


def _read_moment(value: Any) -> list[Any]:
    unit, count = _found("numpy", "datetime_data")(value.dtype)
    if unit == "generic":
        raise Unfit("it has no unit")
    return [int(value.view("int64")), unit, count]


def _moment(cls: Any, state: Any) -> Any:
    number, unit, count = exactly(state, list)
    return cls(exactly(number, int), (exactly(unit, str), exactly(count, int)))


def _read_stamp(value: Any) -> list[Any]:
    zone = getattr(value, "tzinfo", None)
    offset = None if zone is None else value.utcoffset() // _MICROSECOND
    state = [int(value.asm8.view("int64")), getattr(value, "unit", "ns"), offset]
    # Some versions of pandas choose another unit when they rebuild the value.
    again = _stamp(type(value), state)
    if again != value or getattr(again, "unit", "ns") != state[1]:
        raise Unfit("pandas would restore it with another unit")
    return state


def _stamp(cls: Any, state: Any) -> Any:
    number, unit, offset = exactly(state, list)
    more = {} if offset is None else {"tz": timezone(timedelta(microseconds=exactly(offset, int)))}
    return cls(exactly(number, int), unit=exactly(unit, str), **more)
