"""Requests <-> the dicts of `Request.to_dict()`: what a project's own serializer, or scrapy-redis, stores.

A dict that is read back must not run code. Its parts go through the checks of our own entries, and
`scrapy.utils.request.request_from_dict`, which imports whatever module the dict names, is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scrapy import Request, Spider

from scrapy_dq.codec import attributes
from scrapy_dq.codec.attributes import DEFAULTS, Check
from scrapy_dq.codec.unfit import NotHere, Unfit

CLASS = "_class"


class Dicts:
    """Writes and reads the dicts of one spider's requests."""

    def __init__(
        self,
        spider: Spider,
        name_of: Callable[[Any], str],
        checks: Mapping[str, Check],
        find_class: Callable[[Any], type[Request]],
    ) -> None:
        """
        Args:
            name_of: returns the name of a callback; raises Unfit.
            checks: the check of each attribute.
            find_class: returns the Request class with a dotted name; raises Unfit.
        """
        self._spider = spider
        self._name_of = name_of
        self._checks = checks
        self._find_class = find_class

    def dict_of(self, request: Request) -> dict[str, Any]:
        """Return the dict of *request*; raise Unfit, or what Scrapy raises, if it could not be rebuilt."""
        values = request.to_dict(spider=self._spider)
        for name in ("callback", "errback"):
            if values[name] is not None:  # Scrapy finds a method by its function, whatever its object is
                values[name] = self._name_of(getattr(request, name))
        values["encoding"] = attributes.stored_encoding(values["encoding"])
        cls, _ = self.arguments_of(values)
        if cls is not type(request):
            raise Unfit(f"{values[CLASS]} is not the name of its class")
        return values

    def arguments_of(self, values: Any) -> tuple[type[Request], dict[str, Any]]:
        """Return the class, and the arguments of its constructor; raise Unfit, or anything else."""
        values = dict(attributes.plain_dict(values))
        name = values.pop(CLASS, None)
        cls = Request if name is None else self._find_class(name)
        found: dict[str, Any] = {}
        for name, value in values.items():
            if name not in cls.attributes:
                raise NotHere(
                    f"attribute {name!a:.100}: neither its class nor this version of scrapy_dq has it"
                )
            if value is None and name in DEFAULTS:
                continue
            try:
                found[name] = self._checked(name, value) if name in self._checks else value
            except Unfit as unfit:
                unfit.path.append(name)
                raise
        return cls, found

    def _checked(self, name: str, value: Any) -> Any:
        # JSON has only text: where Scrapy has bytes, text stands for its UTF-8 form.
        if name == "headers" and isinstance(value, dict):
            value = {_bytes(key): _header(values) for key, values in value.items()}
        elif name == "body":
            value = _bytes(value)
        return self._checks[name](value)


def _header(values: Any) -> Any:
    if isinstance(values, (list, tuple)):
        return [_bytes(value) for value in values]
    return [_bytes(values)]


def _bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if type(value) is str else value
