"""The project's own classes: which of them an entry may carry, and what an instance consists of.

A name in an entry is a stranger's. It is looked up among imported modules only, in allowed packages only, and
an instance is rebuilt from its fields without running a method of its class.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from enum import EnumMeta
from functools import cached_property
from types import MemberDescriptorType
from typing import Any

from scrapy import Item


class Unfit(Exception):
    """A value that an entry does not carry, or carries damaged; *path* says where, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path))}: {self.reason}" if self.path else self.reason


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the instances of one class are taken apart and put together again."""

    name: str
    """As entries say it: "module:QualName"."""
    cls: type
    read: Callable[[Any], Any]
    build: Callable[[Any], Any]
    """Raises Unfit, or anything else, for a state that is none."""


class Classes:
    """The classes of some packages, and those listed by name."""

    def __init__(self, packages: Collection[str], types: Collection[str]) -> None:
        """Allow the classes of top-level *packages*, and *types*: dotted names of single classes."""
        self._packages = frozenset(packages)
        self._types = frozenset(types)
        self._by_class: dict[type, Shape] = {}
        self._by_name: dict[str, Shape] = {}

    def shape_of(self, cls: type) -> Shape:
        """Return the shape of *cls*; raise Unfit if instances of it may not be stored."""
        shape = self._by_class.get(cls)
        if shape is None:
            shape = self.find(f"{cls.__module__}:{cls.__qualname__}")
            if shape.cls is not cls:
                raise Unfit(f"{_dotted(cls)} is another class than the one its module knows by that name")
            self._by_class[cls] = shape
        return shape

    def find(self, name: str) -> Shape:
        """Return the shape of the class with that "module:QualName"; raise Unfit, import nothing."""
        shape = self._by_name.get(name)
        if shape is None:
            module, _, qualname = name.partition(":")
            dotted = f"{module}.{qualname}"
            if module.partition(".")[0] not in self._packages and dotted not in self._types:
                raise Unfit(
                    f"a {dotted!a:.200} is not stored (an Item, a dataclass, an attrs class, an Enum "
                    "or a NamedTuple is, if the project defines it or DQ_TYPES lists it)"
                )
            shape = self._by_name[name] = _shape(name, _look_up(module, qualname))
        return shape


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _look_up(module: str, qualname: str) -> Any:
    place: Any = sys.modules.get(module)
    if place is not None:
        for part in qualname.split("."):
            # Not getattr: that would run a module's __getattr__, or load a module that imports lazily.
            place = object.__getattribute__(place, "__dict__").get(part)
            if not isinstance(place, type):
                break
        else:
            if (place.__module__, place.__qualname__) == (module, qualname):
                return place
    raise Unfit(f"no imported module {module!a:.100} has a class {qualname!a:.100}")


def _shape(name: str, cls: type) -> Shape:
    if isinstance(cls, EnumMeta):
        return _enum(name, cls)
    if issubclass(cls, Item):
        return _item(name, cls)
    if issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple):
        return _named_tuple(name, cls)
    if dataclasses.is_dataclass(cls):
        return _record(name, cls, [field.name for field in dataclasses.fields(cls)])
    if isinstance(attributes := getattr(cls, "__attrs_attrs__", None), tuple):
        return _record(name, cls, [attribute.name for attribute in attributes])
    raise Unfit(f"{_dotted(cls)} is no Item, dataclass, attrs class, Enum or NamedTuple")


def _enum(name: str, cls: EnumMeta) -> Shape:
    members: dict[str, Any] = dict(cls.__members__)

    def read(member: Any) -> str:
        name = str(member._name_)
        if members.get(name) is not member:
            raise Unfit(f"{name} is not a single member of {cls.__qualname__}")
        return name

    def build(state: Any) -> Any:
        if state not in members:
            raise Unfit(f"{cls.__qualname__} has no member {state!a:.80}")
        return members[state]

    return Shape(name, cls, read, build)


def _item(name: str, cls: type[Item]) -> Shape:
    # Item's own methods, not those of cls: an override would run with a stranger's values.
    def read(item: Item) -> dict[str, Any]:
        for attribute in vars(item):
            if attribute != "_values":
                raise Unfit(f"its attribute {attribute!r} is no field")
        return {key: Item.__getitem__(item, key) for key in Item.__iter__(item)}

    def build(state: Any) -> Item:
        item = Item.__new__(cls)
        Item.__init__(item)
        for key, value in state.items():
            Item.__setitem__(item, key, value)
        return item

    return Shape(name, cls, read, build)


def _named_tuple(name: str, cls: type[tuple[Any, ...]]) -> Shape:
    length = len(cls._fields)  # type: ignore[attr-defined]

    def read(value: tuple[Any, ...]) -> list[Any]:
        if getattr(value, "__dict__", None):
            raise Unfit(f"{cls.__qualname__} has attributes that are no fields")
        return list(tuple.__iter__(value))

    def build(state: Any) -> tuple[Any, ...]:
        if type(state) is not list or len(state) != length:
            raise Unfit(f"{cls.__qualname__} has {length} fields")
        return tuple.__new__(cls, state)

    return Shape(name, cls, read, build)


def _record(name: str, cls: type, fields: list[str]) -> Shape:
    """Return the shape of a dataclass or an attrs class: exactly its fields, set without __init__."""
    slots = dict(_slots(cls))
    for field in fields:
        static = inspect.getattr_static(cls, field, None)
        if hasattr(type(static), "__set__") and not isinstance(static, MemberDescriptorType):
            raise Unfit(f"the field {field!r} of {cls.__qualname__} is a property")
    try:
        object.__new__(cls)
    except TypeError:
        raise Unfit(f"{_dotted(cls)} is built on a type that keeps more than fields") from None

    def read(record: Any) -> dict[str, Any]:
        state = dict(getattr(record, "__dict__", ()))
        for slot, member in slots.items():
            try:
                state[slot] = member.__get__(record)
            except AttributeError:
                continue
        for attribute in state.keys() - set(fields):
            if not isinstance(inspect.getattr_static(cls, attribute, None), cached_property):
                raise Unfit(f"its attribute {attribute!r} is no field")
        for field in fields:
            if field not in state:
                raise Unfit(f"its field {field!r} is not set")
        return {field: state[field] for field in fields}

    def build(state: Any) -> Any:
        if state.keys() != set(fields):
            odd = sorted(map(ascii, state.keys() ^ set(fields)))
            raise Unfit(f"{cls.__qualname__} has other fields here: {', '.join(odd):.200}")
        record: Any = object.__new__(cls)
        for field, value in state.items():
            object.__setattr__(record, field, value)
        return record

    return Shape(name, cls, read, build)


def _slots(cls: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType):
                yield name, member
