"""`SCHEDULER_SERIALIZER`: a project's own `dumps` and `loads` for requests as dicts, tested before use.

`Request.to_dict()` makes the dicts; scrapy-redis stores the same dicts. A dict from Redis must not run code,
so its parts go through the checks of our own entries. `scrapy.utils.request.request_from_dict` is not used,
because it imports any module that the dict names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from scrapy import Request, Spider

from scrapy_dq.codec import attributes
from scrapy_dq.codec.attributes import DEFAULTS, Check
from scrapy_dq.codec.unfit import NotHere, Unfit, exactly
from scrapy_dq.text import printable

CLASS = "_class"
SAFE_MODULES = ("json", "orjson", "ujson", "simplejson", "rapidjson", "msgpack")
"""Modules whose own `loads` builds only data."""


class BadSerializer(Exception):
    """Requests cannot be stored with this serializer; the message says why."""


class Serializer:
    """A serializer's `dumps` and `loads`, for bytes."""

    def __init__(self, serializer: Any) -> None:
        """Test *serializer* with a plain request.

        Raises:
            BadSerializer: the request is not the same after `dumps` and `loads`.
        """
        self._dumps, self._loads = serializer.dumps, serializer.loads
        self._as_text = False
        sample = Request("http://localhost/", headers={"Accept": "*/*"}, body=b"x").to_dict()
        try:
            self._try(sample)
        except Exception as error:
            try:
                # JSON has no bytes, so the second test writes bytes as text.
                self._as_text = True
                self._try(sample)
            except Exception:
                reason = printable(f"{type(error).__name__}: {error}", 300)
                raise BadSerializer(f"it does not restore a plain request ({reason})") from error

    def dumps(self, values: dict[str, Any]) -> bytes:
        """Return the bytes to store for a request's dict."""
        dumped = self._dumps(_as_text(values) if self._as_text else values)
        if isinstance(dumped, str):
            return dumped.encode()
        if not isinstance(dumped, (bytes, bytearray)):
            raise TypeError(f"dumps() returned a {type(dumped).__name__}, not bytes or str")
        return bytes(dumped)

    def loads(self, dumped: bytes) -> Any:
        """Return the dumped dict, or any other content of the bytes; may raise any exception.

        Raises:
            NotHere: this worker lacks a class that a pickle names.
        """
        try:
            return self._loads(dumped)
        except (AttributeError, ImportError) as error:
            raise NotHere(f"{type(error).__name__}: {error}") from error

    @property
    def safe(self) -> bool:
        """Whether `loads` is known to build only data from any bytes.

        No test can show this for another function, because this function may read pickles in addition to the
        format of the test.
        """
        return any(self._loads is getattr(sys.modules.get(name), "loads", None) for name in SAFE_MODULES)

    def _try(self, sample: dict[str, Any]) -> None:
        again = self.loads(self.dumps(sample))
        if not isinstance(again, dict) or again.keys() != sample.keys() or again["url"] != sample["url"]:
            raise TypeError(f"loads() returned {again!r:.200}")


def _as_text(values: dict[str, Any]) -> dict[str, Any]:
    headers = values.get("headers") or {}
    return {
        **values,
        "headers": {_text(name): [_text(value) for value in lines] for name, lines in headers.items()},
        "body": _text(values.get("body", b"")),
    }


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def dict_of(request: Request, spider: Spider, name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return the dict of *request*; raise Unfit or an error of Scrapy if that is impossible.

    Args:
        name_of: returns the name of a callback; raises Unfit.
    """
    values = request.to_dict(spider=spider)
    for name in ("callback", "errback"):
        if values[name] is not None:  # Scrapy compares only the method's function, not its object
            values[name] = name_of(getattr(request, name))
    values["encoding"] = attributes.stored_encoding(values["encoding"])
    return values


def arguments_of(
    values: Any, checks: Mapping[str, Check], find_class: Callable[[Any], type[Request]]
) -> tuple[type[Request], dict[str, Any]]:
    """Return the class and the arguments of its constructor; raise Unfit or another exception.

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
        # JSON has no bytes: text stands for bytes in UTF-8.
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
