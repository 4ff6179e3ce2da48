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
from scrapy_dq.codec.unfit import NotHere, Unfit, exactly

CLASS = "_class"


def dict_of(request: Request, spider: Spider, name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return the dict of *request*; raise Unfit, or what Scrapy raises, if it has none.

    Args:
        name_of: returns the name of a callback; raises Unfit.
    """
    values = request.to_dict(spider=spider)
    for name in ("callback", "errback"):
        if values[name] is not None:  # Scrapy finds a method by its function, whatever its object is
            values[name] = name_of(getattr(request, name))
    values["encoding"] = attributes.stored_encoding(values["encoding"])
    return values


def arguments_of(
    values: Any, checks: Mapping[str, Check], find_class: Callable[[Any], type[Request]]
) -> tuple[type[Request], dict[str, Any]]:
    """Return the class, and the arguments of its constructor; raise Unfit, or anything else.

    Args:
        checks: the check of each attribute.
        find_class: returns the Request class with a dotted name; raises Unfit.
    """
    values = dict(exactly(values, dict))
    name = values.pop(CLASS, None)
    cls = Request if name is None else find_class(name)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in cls.attributes:
            raise NotHere(f"attribute {name!a:.100}: neither its class nor this version of scrapy_dq has it")
        if value is None and name in DEFAULTS:
            continue
        # JSON has only text: where Scrapy has bytes, text stands for its UTF-8 form.
        if name == "headers" and isinstance(value, dict):
            value = {_bytes(key): _header(values) for key, values in value.items()}
        elif name == "body":
            value = _bytes(value)
        try:
            found[name] = checks.get(name, attributes.anything)(value)
        except Unfit as unfit:
            unfit.path.append(name)
            raise
    return cls, found


def _header(values: Any) -> Any:
    if isinstance(values, (list, tuple)):
        return [_bytes(value) for value in values]
    return [_bytes(values)]


def _bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if type(value) is str else value
