"""The classes that an entry may contain: the project's own, the classes in DQ_TYPES, and some of the standard
library, numpy and pandas.

A name in an entry must not run code: it is looked up only in imported modules of allowed packages.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import EnumMeta
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

from scrapy_dq.codec import arrays, playwright, standard
from scrapy_dq.codec.shapes import Shape, is_named_tuple, shape_of
from scrapy_dq.codec.unfit import Unfit, UnknownClass

CARRIED: frozenset[type] = frozenset({
    type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset,
    datetime, date, time, timedelta, Decimal, UUID, type(Path()), Path, PurePosixPath, PureWindowsPath,
    *(shape.cls for shape in standard.SHAPES),
})  # fmt: skip
"""What entries can always contain, besides scalars of numpy and pandas."""


class BadType(ValueError):
    """A class that DQ_TYPES lists cannot be stored; the message says why."""


class Classes:
    """The classes of some packages, and those listed by name."""

    def __init__(self, packages: Collection[str], types: Collection[str]) -> None:
        """Allow the classes of top-level *packages*, and *types*: dotted names of single classes.

        Raises:
            BadType: one of *types* is not a class, or its instances cannot be stored.
        """
        self._packages = frozenset(packages)
        self._by_class: dict[type, Shape] = {shape.cls: shape for shape in standard.SHAPES}
        self._by_name: dict[str, Shape] = {shape.name: shape for shape in standard.SHAPES}
        for name in types:
            shape = _listed(name)
            if shape is not None:
                self._by_name[shape.name] = shape

    def shape_of(self, cls: type) -> Shape:
        """Return the shape of *cls*; raise Unfit if instances of it may not be stored."""
        shape = self._by_class.get(cls)
        if shape is None:
            shape = arrays.shape_of(cls) or self.find(f"{cls.__module__}:{cls.__qualname__}")
            if shape.cls is not cls:
                name = f"{cls.__module__}.{cls.__qualname__}"
                raise Unfit(f"{name} is not the class that its module has under that name")
            self._by_class[cls] = shape
        return shape

    def find(self, name: str) -> Shape:
        """Return the shape of the class with that "module:QualName"; raise UnknownClass, import nothing."""
        shape = self._by_name.get(name)
        if shape is None:
            module, _, qualname = name.partition(":")
            if module in arrays.MODULES:
                return arrays.find(name)  # not kept: the worker may import the module later
            package = module.partition(".")[0]
            cls = _look_up(module, qualname)
            if name == playwright.NAME or package in self._packages:
                if cls is None:
                    raise UnknownClass(f"no imported module {module!a:.100} has a class {qualname!a:.100}")
            # An Enum or a named tuple runs no code, whatever an entry writes into its fields.
            elif package not in sys.stdlib_module_names or not (
                isinstance(cls, EnumMeta) or (cls is not None and is_named_tuple(cls))
            ):
                raise UnknownClass(f"a {f'{module}.{qualname}'!a:.200} is not stored")
            if method := _method_that_runs(cls):
                raise UnknownClass(
                    f"{module}.{qualname} has its own {method}, which would run on data from Redis"
                )
            shape = self._by_name[name] = _shape(name, cls)
        return shape

    def listing(self) -> Listing:
        """Return the same classes, and all that DQ_TYPES could list."""
        listing = Listing(self._packages, ())
        listing._by_name.update(self._by_name)
        return listing


class Listing(Classes):
    """Accepts each class that DQ_TYPES could list, and keeps the names that it would need."""

    def __init__(self, packages: Collection[str], types: Collection[str]) -> None:
        super().__init__(packages, types)
        self.names: list[str] = []

    def shape_of(self, cls: type) -> Shape:
        """Return the shape of *cls*; raise Unfit if DQ_TYPES could not list it."""
        try:
            return super().shape_of(cls)
        except Unfit:
            name = f"{cls.__module__}.{cls.__qualname__}"
            try:
                shape = _listed(name) if cls.__module__ in sys.modules else None
            except BadType:
                shape = None
            if shape is None or shape.cls is not cls:
                _shape(name, cls, listed=True)  # it raises, if there is another reason
                raise Unfit("its class is not found by its name") from None
            self.names.append(name)
            self._by_class[cls] = self._by_name[shape.name] = shape
            return shape


def _method_that_runs(cls: type) -> str:
    """Return the name of a handwritten method that Python calls implicitly on an instance."""
    for name in ("__del__", "__hash__", "__eq__"):
        base = next((base for base in cls.__mro__ if name in vars(base)), object)
        package = base.__module__.partition(".")[0]
        code = getattr(vars(base).get(name), "__code__", None)
        # Methods written in C, or generated by dataclasses and attrs, only read the fields.
        generated = code is None or code.co_filename.startswith("<")
        if not (generated or package == "scrapy" or package in sys.stdlib_module_names):
            return name
    return ""


def _look_up(module: str, qualname: str) -> type | None:
    place: Any = sys.modules.get(module)
    if place is not None:
        for part in qualname.split("."):
            # Not getattr: that would run a module's __getattr__, or load a module that imports lazily.
            place = object.__getattribute__(place, "__dict__").get(part)
            if not isinstance(place, type):
                break
        else:
            if (place.__module__, place.__qualname__) == (module, qualname):
                found: type = place
                return found
    return None


def _shape(name: str, cls: type, *, listed: bool = False) -> Shape:
    if name == playwright.NAME:
        return playwright.shape_of(cls, listed=listed)
    return shape_of(name, cls, listed=listed)


def _listed(dotted: str) -> Shape | None:
    """Import a class that DQ_TYPES lists, and return its shape; None: entries can always contain it."""
    module, _, qualname = dotted.rpartition(".")
    try:
        found: Any = None
        while module and found is None:
            try:
                found = importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise
                module, _, outer = module.rpartition(".")  # a class within a class
                qualname = f"{outer}.{qualname}"
        for part in qualname.split(".") if found is not None else ():
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything while it is imported
        raise BadType(f"{dotted!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise BadType(f"{dotted!r} is not the dotted name of a class")
    if found in CARRIED or arrays.shape_of(found) is not None:
        return None
    name = f"{found.__module__}:{found.__qualname__}"
    try:
        return _shape(name, found, listed=True)
    except Unfit as error:
        raise BadType(f"instances of {dotted!r} cannot be stored: {error}") from error
