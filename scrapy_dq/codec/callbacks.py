"""Callbacks <-> the names of spider methods: which methods a stored request may call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

from scrapy import Spider
from scrapy.http.request import NO_CALLBACK

from scrapy_dq.codec.unfit import Unfit

BASES = frozenset({"scrapy", "scrapy_dq"})
"""Packages whose spider classes a project subclasses."""

SCRAPY_CALLBACKS = frozenset(
    {"parse", "_parse", "parse_start_url", "_callback", "_errback", "_parse_sitemap", "initialized"}
)
"""Callbacks that Scrapy's own spiders set: Spider, CrawlSpider, SitemapSpider, InitSpider."""

_HOOKS = frozenset({"start", "start_requests", "closed"})  # Scrapy calls them; no version defines all of them

NO_CALLBACK_NAME = ""


class Callbacks:
    """The callbacks of one spider, as its class is now. Both directions use the same table.

    A callback is one of SCRAPY_CALLBACKS, or a method of a class that is neither of BASES nor Python's own;
    but not one that a class of BASES also defines: that one takes other arguments. Attributes of the
    instance do not count, and no property is read.
    """

    def __init__(self, spider: Spider) -> None:
        self._spider_name = repr(spider.name)
        self._methods: dict[str, Callable[..., Any]] = {NO_CALLBACK_NAME: NO_CALLBACK}
        self._methods.update(_callbacks(spider))
        self._names = {method: name for name, method in self._methods.items()}

    def name_of(self, callback: Any) -> str:
        """Return the name that resolves to *callback* again; raise Unfit if there is none."""
        # Equal bound methods have the same function and the same object.
        name = self._names.get(callback) if callback is NO_CALLBACK or type(callback) is MethodType else None
        if name is None:
            called = getattr(callback, "__qualname__", type(callback).__qualname__)
            raise Unfit(f"{called} is not a method of the spider {self._spider_name} that can be a callback")
        return name

    def method_of(self, name: Any) -> Callable[..., Any]:
        """Return the bound method called *name*; raise Unfit if there is none."""
        method = self._methods.get(name) if type(name) is str else None
        if method is None:
            raise Unfit(f"the spider {self._spider_name} has no callback {name!a:.100}")
        return method


def _callbacks(spider: Spider) -> Iterator[tuple[str, MethodType]]:
    visited = set()
    classes = [(cls, cls.__module__.partition(".")[0]) for cls in type(spider).__mro__]
    hooks = _HOOKS.union(*(vars(cls) for cls, package in classes if package in BASES)) - SCRAPY_CALLBACKS
    for cls, package in classes:
        for name, raw in vars(cls).items():
            if name in visited:
                continue
            visited.add(name)
            if name.startswith("__") and name.endswith("__"):
                continue
            if package in BASES:
                allowed = name in SCRAPY_CALLBACKS
            else:
                allowed = name not in hooks and package not in sys.stdlib_module_names
            if not allowed:
                continue
            if isinstance(raw, classmethod) and inspect.isfunction(raw.__func__):
                yield name, MethodType(raw.__func__, type(spider))
            elif _is_method(raw):
                yield name, MethodType(raw, spider)


def _is_method(raw: Any) -> bool:
    # The second kind is what Cython and similar compilers make of a function.
    return inspect.isfunction(raw) or (
        inspect.ismethoddescriptor(raw) and callable(raw) and not isinstance(raw, (staticmethod, classmethod))
    )
