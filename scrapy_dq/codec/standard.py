"""How values of the standard library are stored and rebuilt; `values.py` has the simplest ones."""

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

from scrapy_dq.codec.shapes import Shape, exactly, plain_shape
from scrapy_dq.codec.unfit import Unfit

_FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple, Counter, OrderedDict, deque)
}
_FLAGS = re.ASCII | re.IGNORECASE | re.LOCALE | re.MULTILINE | re.DOTALL | re.UNICODE | re.VERBOSE


def _shape(cls: type, read: Callable[[Any], Any], build: Callable[[Any], Any]) -> Shape:
    def read_whole(value: Any) -> Any:
        if getattr(value, "__dict__", None):
            raise Unfit(f"it has attributes ({', '.join(vars(value)):.100}), which a {cls.__name__} has not")
        return read(value)

    return Shape(f"{cls.__module__}:{cls.__qualname__}", cls, read_whole, build)


def _parts(*kinds: Any) -> Callable[[Any], list[Any]]:
    """Return the check that a state is a list of values of these types."""

    def check(state: Any) -> list[Any]:
        values: list[Any] = exactly(list, state)
        if len(values) != len(kinds):
            raise Unfit(f"its state has {len(values)} parts, not {len(kinds)}")
        for value, kind in zip(values, kinds, strict=True):
            if type(value) not in (kind if type(kind) is tuple else (kind,)):
                raise Unfit(f"a {type(value).__name__} is in its state")
        return values

    return check


def _counter(state: Any) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, exactly(dict, state))
    return made


def _read_defaultdict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = "" if factory is None else next((n for n, kind in _FACTORIES.items() if kind is factory), None)
    if name is None:
        raise Unfit(f"its default_factory is code: it is stored with {', '.join(_FACTORIES)} or None")
    return [name, dict(value)]


def _defaultdict(state: Any) -> defaultdict[Any, Any]:
    name, values = _parts(str, dict)(state)
    return defaultdict(_FACTORIES[name] if name else None, values)


def _deque(state: Any) -> deque[Any]:
    longest, values = _parts((int, type(None)), list)(state)
    return deque(values, longest)


def _timezone(state: Any) -> timezone:
    offset, name = _parts(timedelta, (str, type(None)))(state)
    return timezone(offset) if name is None else timezone(offset, name)


def _struct_time(state: Any) -> time.struct_time:
    fields, more = _parts(tuple, dict)(state)
    return time.struct_time(fields, more)


def _namespace(state: Any) -> SimpleNamespace:
    return SimpleNamespace(**exactly(dict, state))


def _array(state: Any) -> array[Any]:
    code, values = _parts(str, list)(state)
    return array(code, values)


def _pattern(state: Any) -> re.Pattern[Any]:
    pattern, flags = _parts((str, bytes), int)(state)
    if flags & ~_FLAGS:
        raise Unfit("a pattern has no flags of the module's own")
    return re.compile(pattern, flags)


def _address(cls: type) -> Shape:
    return Shape(f"ipaddress:{cls.__name__}", cls, str, lambda state: cls(exactly(str, state)))


SHAPES = (
    _shape(
        complex, lambda value: [value.real, value.imag], lambda state: complex(*_parts(float, float)(state))
    ),
    _shape(range, lambda r: [r.start, r.stop, r.step], lambda state: range(*_parts(int, int, int)(state))),
    _shape(
        Fraction,
        lambda value: [value.numerator, value.denominator],
        lambda state: Fraction(*_parts(int, int)(state)),
    ),
    _shape(timezone, lambda zone: [*zone.__getinitargs__(), None][:2], _timezone),
    _shape(time.struct_time, lambda moment: [*moment.__reduce__()[1]], _struct_time),
    _shape(OrderedDict, dict, lambda state: OrderedDict(exactly(dict, state))),
    _shape(Counter, dict, _counter),
    _shape(defaultdict, _read_defaultdict, _defaultdict),
    _shape(deque, lambda value: [value.maxlen, list(value)], _deque),
    _shape(array, lambda value: [value.typecode, value.tolist()], _array),
    _shape(MappingProxyType, dict, lambda state: MappingProxyType(exactly(dict, state))),
    Shape("re:Pattern", re.Pattern, lambda value: [value.pattern, value.flags], _pattern),
    Shape("types:SimpleNamespace", SimpleNamespace, lambda value: dict(vars(value)), _namespace),
    *[plain_shape(f"collections:{cls.__qualname__}", cls) for cls in (ChainMap, UserDict, UserList)],
    *map(
        _address,
        (
            ipaddress.IPv4Address,
            ipaddress.IPv6Address,
            ipaddress.IPv4Network,
            ipaddress.IPv6Network,
            ipaddress.IPv4Interface,
            ipaddress.IPv6Interface,
        ),
    ),
)
