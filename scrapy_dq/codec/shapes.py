"""Take instances of classes apart and rebuild them, without running a method of the class."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from enum import EnumMeta
from functools import cached_property
from types import MemberDescriptorType
from typing import Any, TypeGuard

from scrapy import Item

from scrapy_dq.codec.unfit import NotHere, Unfit, exactly

_BUILTIN = frozenset(
    {object, str, bytes, int, float, tuple, frozenset, list, set, OrderedDict, dict, defaultdict, Counter}
)
_OWN_STATE = (
    "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shape:
    """Reads and rebuilds instances of one class."""

    name: str
    """The name in entries: "module:QualName"."""
    cls: type
    read: Callable[[Any], Any]
    build: Callable[[Any], Any]
    """Raises Unfit or another exception for an invalid state."""


def shape_of(name: str, cls: type, *, listed: bool = False) -> Shape:
    """Return the shape of a class; raise Unfit if its instances cannot be stored.

    Args:
        listed: DQ_TYPES lists the class, so any class is accepted.
    """
    if isinstance(cls, EnumMeta):
        return _enum(name, cls)
    if issubclass(cls, Item):
        return _item(name, cls)
    if is_named_tuple(cls):
        return _named_tuple(name, cls)
    if dataclasses.is_dataclass(cls):
        return _record(name, cls, [field.name for field in dataclasses.fields(cls)])
    if isinstance(attributes := getattr(cls, "__attrs_attrs__", None), tuple):
        return _record(name, cls, [attribute.name for attribute in attributes])
    if kind := next((base for base in cls.__mro__ if base in _KINDS), None):
        return _derived(name, cls, kind)
    if listed:
        return plain_shape(name, cls)
    raise Unfit(
        f"{cls.__module__}.{cls.__qualname__} is not an Item, dataclass, attrs class, Enum or NamedTuple: it "
        f"is stored if DQ_TYPES lists it"
    )


def is_named_tuple(cls: type) -> TypeGuard[type[tuple[Any, ...]]]:
    """Return whether *cls* is a named tuple, or is derived from one."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def plain_shape(name: str, cls: type) -> Shape:
    """Return the shape of a class of no special kind.

    It consists of the instance's attributes, which are set without calling methods.
    """
    _check_made(cls)
    _check_copied(cls)
    slots = dict(slots_of(cls))

    def read(instance: Any) -> dict[str, Any]:
        return _attributes(instance, slots)

    def build(state: Any) -> Any:
        return _with_attributes(object.__new__(cls), state, slots)

    return Shape(name, cls, read, build)


def _derived(name: str, cls: type, kind: Any) -> Shape:
    """Return the shape of a class derived from a builtin type: a plain value and attributes."""
    plain_of, fill = _KINDS[kind]
    _check_made(cls, kind)
    _check_copied(cls)
    slots = dict(slots_of(cls))

    def read(value: Any) -> list[Any]:
        return [plain_of(value), _attributes(value, slots)]

    def build(state: Any) -> Any:
        plain, more = exactly(state, list)
        exactly(plain, dict if kind is OrderedDict else kind)
        if fill is None:
            return _with_attributes(kind.__new__(cls, plain), more, slots)
        made = kind.__new__(cls)
        fill(made, plain)
        return _with_attributes(made, more, slots)

    return Shape(name, cls, read, build)


def _fill_ordered(made: Any, plain: dict[Any, Any]) -> None:
    for key, value in plain.items():
        OrderedDict.__setitem__(made, key, value)


# Two functions for each builtin type. The first reads the plain value of an instance. The second fills this
# value into a new instance; it is None if the constructor takes the value. Neither function calls a method of
# a derived class, so no code of the project runs.
_KINDS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None] | None]] = {
    str: (str.__str__, None),
    bytes: (lambda value: b"".join((value,)), None),
    int: (int.__int__, None),
    float: (float.__float__, None),
    tuple: (lambda value: (*tuple.__iter__(value),), None),
    frozenset: (lambda value: frozenset((*frozenset.__iter__(value),)), None),
    list: (lambda value: [*list.__iter__(value)], list.extend),
    set: (lambda value: {*set.__iter__(value)}, set.update),
    OrderedDict: (lambda value: dict(OrderedDict.items(value)), _fill_ordered),
    dict: (lambda value: dict(dict.items(value)), dict.update),
}


def _check_made(cls: type, kind: Any = object) -> None:
    try:
        kind.__new__(cls)
    except TypeError:
        raise Unfit("it consists of more than its attributes") from None


def _check_copied(cls: type) -> None:
    own = (base for base in cls.__mro__ if base not in _BUILTIN)
    if method := next((name for base in own for name in _OWN_STATE if name in vars(base)), ""):
        raise Unfit(f"its {method} defines how it is copied, and its code is not run")


def _with_attributes(instance: Any, state: Any, slots: dict[str, MemberDescriptorType]) -> Any:
    for attribute, value in exactly(state, dict).items():
        if attribute in slots:
            slots[attribute].__set__(instance, value)
        elif type(attribute) is str:
            # Not setattr, which would run a property or a __setattr__.
            object.__getattribute__(instance, "__dict__")[attribute] = value
        else:
            raise Unfit(f"{type(instance).__qualname__} has an attribute whose name is not a str")
    return instance


def _attributes(instance: Any, slots: dict[str, MemberDescriptorType]) -> dict[str, Any]:
    state = dict(getattr(instance, "__dict__", ()))
    for slot, member in slots.items():
        try:
            state[slot] = member.__get__(instance)
        except AttributeError:
            continue
    return state


def attributes_of(instance: Any) -> dict[str, Any]:
    """Return all attributes of an instance, including slots."""
    return _attributes(instance, dict(slots_of(type(instance))))


def _enum(name: str, cls: EnumMeta) -> Shape:
    members: dict[str, Any] = dict(cls.__members__)

    def read(member: Any) -> str:
        name = str(member._name_)
        if members.get(name) is not member:
            raise Unfit(f"{name} is not a single member of {cls.__qualname__}")
        return name

    def build(state: Any) -> Any:
        if exactly(state, str) not in members:
            raise NotHere(f"{cls.__qualname__} has no member {state!a:.80}")
        return members[state]

    return Shape(name, cls, read, build)


def _item(name: str, cls: type[Item]) -> Shape:
    # These are Item's methods, because an override in *cls* would run with values from Redis.
    def read(item: Item) -> dict[str, Any]:
        for attribute in vars(item):
            if attribute != "_values":
                raise Unfit(f"its attribute {attribute!r} is not a field")
        return {key: Item.__getitem__(item, key) for key in Item.__iter__(item)}

    def build(state: Any) -> Item:
        item = Item.__new__(cls)
        Item.__init__(item)
        for key, value in exactly(state, dict).items():
            if key not in cls.fields:
                raise NotHere(f"{cls.__qualname__} has no field {key!a:.80}")
            Item.__setitem__(item, key, value)
        return item

    return Shape(name, cls, read, build)


def _named_tuple(name: str, cls: type[tuple[Any, ...]]) -> Shape:
    length = len(cls._fields)  # type: ignore[attr-defined]

    def read(value: tuple[Any, ...]) -> list[Any]:
        if getattr(value, "__dict__", None):
            raise Unfit(f"{cls.__qualname__} has attributes that are not fields")
        return list(tuple.__iter__(value))

    def build(state: Any) -> tuple[Any, ...]:
        if type(state) is not list or len(state) != length:
            raise NotHere(f"{cls.__qualname__} has {length} fields")
        return tuple.__new__(cls, state)

    return Shape(name, cls, read, build)


def _record(name: str, cls: type, fields: list[str]) -> Shape:
    """Return the shape of a dataclass or an attrs class: its fields only, set without __init__."""
    slots = dict(slots_of(cls))
    for field in fields:
        static = inspect.getattr_static(cls, field, None)
        if hasattr(type(static), "__set__") and not isinstance(static, MemberDescriptorType):
            raise Unfit(f"the field {field!r} of {cls.__qualname__} is a property")
    _check_made(cls)

    def read(record: Any) -> dict[str, Any]:
        state = _attributes(record, slots)
        for attribute in state.keys() - set(fields):
            if not isinstance(inspect.getattr_static(cls, attribute, None), cached_property):
                raise Unfit(f"its attribute {attribute!r} is not a field")
        for field in fields:
            if field not in state:
                raise Unfit(f"its field {field!r} is not set")
        return {field: state[field] for field in fields}

    def build(state: Any) -> Any:
        if exactly(state, dict).keys() != set(fields):
            odd = sorted(map(ascii, state.keys() ^ set(fields)))
            raise NotHere(f"{cls.__qualname__} has other fields here: {', '.join(odd):.200}")
        record: Any = object.__new__(cls)
        for field, value in state.items():
            object.__setattr__(record, field, value)
        return record

    return Shape(name, cls, read, build)


def slots_of(cls: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    """Yield the slots of a class and its bases."""
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType) and name != "__dict__":
                yield name, member
