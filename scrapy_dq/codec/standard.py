"""Store and rebuild values of the standard library; `values.py` handles the simplest ones."""

from __future__ import annotations

import ipaddress
import re
import time
from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from datetime import timedelta, timezone
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace
from typing import Any

from scrapy_dq.codec.shapes import Shape, plain_shape
from scrapy_dq.codec.unfit import Unfit, exactly

_FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple, Counter, OrderedDict, deque)
}
_FLAGS = re.ASCII | re.IGNORECASE | re.LOCALE | re.MULTILINE | re.DOTALL | re.UNICODE | re.VERBOSE


def _shape(cls: type, read: Callable[[Any], Any], kinds: Any, make: Callable[..., Any]) -> Shape:
    """Return the shape of a class.

    Args:
        kinds: the type of a state; if the state is a list, the types of its parts.
        make: makes an instance from the state, or from its parts.
    """

    def read_whole(value: Any) -> Any:
        if getattr(value, "__dict__", None):
            raise Unfit(
                f"it has attributes ({', '.join(vars(value)):.100}) that a {cls.__name__} does not have"
            )
        return read(value)

    def build(state: Any) -> Any:
        if isinstance(kinds, type):
            return make(exactly(state, kinds))
        parts = zip(exactly(state, list), kinds, strict=True)
        return make(*[exactly(part, *(kind if type(kind) is tuple else (kind,))) for part, kind in parts])

    return Shape(f"{cls.__module__}:{cls.__qualname__}", cls, read_whole, build)


def _counter(plain: dict[Any, Any]) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, plain)
    return made


def _read_defaultdict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = "" if factory is None else next((n for n, kind in _FACTORIES.items() if kind is factory), None)
    if name is None:
        raise Unfit(f"its default_factory cannot be stored; these can: {', '.join(_FACTORIES)} or None")
    return [name, dict(value)]


def _defaultdict(name: str, values: dict[Any, Any]) -> defaultdict[Any, Any]:
    return defaultdict(_FACTORIES[name] if name else None, values)


def _deque(longest: int | None, values: list[Any]) -> deque[Any]:
    return deque(values, longest)


def _timezone(offset: timedelta, name: str | None) -> timezone:
    return timezone(offset) if name is None else timezone(offset, name)


def _namespace(state: Any) -> SimpleNamespace:
    return SimpleNamespace(**exactly(state, dict))


def _read_pattern(pattern: re.Pattern[Any]) -> list[Any]:
    return [pattern.pattern, _storable(pattern.flags)]


def _pattern(pattern: Any, flags: int) -> re.Pattern[Any]:
    return re.compile(pattern, _storable(flags))


def _storable(flags: int) -> int:
    """Return the *flags* of a pattern; raise Unfit if the pattern cannot be rebuilt with them."""
    if flags & ~_FLAGS:
        raise Unfit("the pattern has a flag that cannot be restored, such as re.DEBUG")
    return flags


def _address(name: str) -> Shape:
    cls = getattr(ipaddress, name)
    return Shape(f"ipaddress:{name}", cls, str, lambda state: cls(exactly(state, str)))


_NONE = type(None)
SHAPES = (
    _shape(complex, lambda value: [value.real, value.imag], (float, float), complex),
    _shape(range, lambda r: [r.start, r.stop, r.step], (int, int, int), range),
    _shape(Fraction, lambda value: [value.numerator, value.denominator], (int, int), Fraction),
    _shape(timezone, lambda zone: [*zone.__getinitargs__(), None][:2], (timedelta, (str, _NONE)), _timezone),
    _shape(time.struct_time, lambda moment: [*moment.__reduce__()[1]], (tuple, dict), time.struct_time),
    _shape(OrderedDict, dict, dict, OrderedDict),
    _shape(Counter, dict, dict, _counter),
    _shape(defaultdict, _read_defaultdict, (str, dict), _defaultdict),
    _shape(deque, lambda value: [value.maxlen, list(value)], ((int, _NONE), list), _deque),
    _shape(array, lambda value: [value.typecode, value.tolist()], (str, list), array),
    _shape(MappingProxyType, dict, dict, MappingProxyType),
    _shape(re.Pattern, _read_pattern, ((str, bytes), int), _pattern),
    Shape("types:SimpleNamespace", SimpleNamespace, lambda value: dict(vars(value)), _namespace),
    *[plain_shape(f"collections:{cls.__qualname__}", cls) for cls in (ChainMap, UserDict, UserList)],
    *[_address(f"IPv{version}{kind}") for version in (4, 6) for kind in ("Address", "Network", "Interface")],
)
