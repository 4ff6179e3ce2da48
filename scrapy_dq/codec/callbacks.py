"""Converts callbacks to names of spider methods and back; decides which methods stored requests may call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from types import MethodType
from typing import Any

from scrapy import Spider
from scrapy.http.request import NO_CALLBACK

from scrapy_dq.codec.unfit import NotHere, Unfit

BASES = frozenset({"scrapy", "scrapy_dq"})
"""Packages whose spider classes a project subclasses."""

SCRAPY_CALLBACKS = frozenset(
    {"parse", "_parse", "parse_start_url", "_callback", "_errback", "_parse_sitemap", "initialized"}
)
"""Callbacks that Scrapy's own spiders set: Spider, CrawlSpider, SitemapSpider, InitSpider."""

_HOOKS = frozenset({"start", "start_requests", "closed"})  # Scrapy calls them; no version defines all of them

NO_CALLBACK_NAME = ""


class Callbacks:
    """The callbacks of one spider, as its class is now. One table converts in both directions.

    There are three kinds of callbacks. First, SCRAPY_CALLBACKS. Second, methods of classes outside BASES and
    Python's library, unless a class of BASES defines the same name, because such a method takes other
    arguments. Third, methods of other objects that are attributes of the spider
    (`self.page = Helper().page`), if a class of the project defines them, because a library's method may do
    more than parse a page. No property is read.
    """

    def __init__(self, spider: Spider, packages: Collection[str] = ()) -> None:
        """Build the table; *packages* are the project's, besides the packages of the spider's classes."""
        self._spider_name = repr(spider.name)
        self._packages = {*packages, *map(_package, type(spider).__mro__)} - BASES - sys.stdlib_module_names
        self._attributes = vars(spider)  # the dict itself: later changes count
        self._own_objects = (spider, type(spider))
        self._methods: dict[str, Callable[..., Any]] = {NO_CALLBACK_NAME: NO_CALLBACK}
        self._hooks = _hooks(spider)
        self._methods.update(_callbacks(spider, self._hooks, self._is_foreign))
        self._names = {method: name for name, method in self._methods.items()}

    def name_of(self, callback: Any) -> str:
        """Return the name that resolves to *callback*; raise Unfit if it has no such name."""
        # Equal bound methods have the same function and the same object.
        name = self._names.get(callback) if callback is NO_CALLBACK or type(callback) is MethodType else None
        if name is None and self._is_foreign(callback):
            name = next((held for held in self._attributes if self._held(held) == callback), None)
        if name is None:
            called = getattr(callback, "__qualname__", type(callback).__qualname__)
            raise Unfit(f"{called} is not a method of the spider {self._spider_name} that can be a callback")
        return name

    def method_of(self, name: Any) -> Callable[..., Any]:
        """Return the bound method called *name*; raise NotHere if the spider has no such callback."""
        method = (self._methods.get(name) or self._held(name)) if type(name) is str else None
        if method is None:
            raise NotHere(f"the spider {self._spider_name} has no callback {name!a:.100}")
        return method

    def _held(self, name: str) -> Callable[..., Any] | None:
        """Return the method of another object that is the spider's attribute *name*."""
        held = self._attributes.get(name)
        hidden = name in self._methods or name in self._hooks or _is_dunder(name)
        return held if not hidden and self._is_foreign(held) else None

    def _is_foreign(self, method: Any) -> bool:
        """Return whether *method* is bound to another object, and a class of the project defines it."""
        if type(method) is not MethodType or any(method.__self__ is one for one in self._own_objects):
            return False
        owner = method.__self__ if isinstance(method.__self__, type) else type(method.__self__)
        return any(
            _package(base) in self._packages
            and any(
                method.__func__ is (raw.__func__ if isinstance(raw, classmethod) else raw)
                for raw in vars(base).values()
            )
            for base in owner.__mro__
        )


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _hooks(spider: Spider) -> frozenset[str]:
    bases = (vars(cls) for cls in type(spider).__mro__ if _package(cls) in BASES)
    return _HOOKS.union(*bases) - SCRAPY_CALLBACKS


def _callbacks(
    spider: Spider, hooks: Collection[str], is_foreign: Callable[[Any], bool]
) -> Iterator[tuple[str, MethodType]]:
    found: dict[str, tuple[str, Any]] = {}
    for cls in type(spider).__mro__:
        for name, raw in vars(cls).items():
            found.setdefault(name, (_package(cls), raw))
    for name, (package, raw) in found.items():
        if package in BASES:
            allowed = name in SCRAPY_CALLBACKS
        else:
            allowed = name not in hooks and package not in sys.stdlib_module_names
        if not allowed or _is_dunder(name):
            continue
        if isinstance(raw, classmethod) and inspect.isfunction(raw.__func__):
            yield name, MethodType(raw.__func__, type(spider))
        elif _is_method(raw):
            yield name, MethodType(raw, spider)
        elif is_foreign(raw):
            yield name, raw


def _is_method(raw: Any) -> bool:
    # Cython and similar compilers turn a function into such a method descriptor.
    return inspect.isfunction(raw) or (
        inspect.ismethoddescriptor(raw) and callable(raw) and not isinstance(raw, (staticmethod, classmethod))
    )
