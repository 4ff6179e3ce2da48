"""`SCHEDULER_SERIALIZER`: a project's own `dumps` and `loads` for requests as dicts, tested before use."""

from __future__ import annotations

import sys
from typing import Any

from scrapy import Request

from scrapy_dq.text import printable

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
                # JSON has no bytes.
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
        """Return the dict that was dumped, or whatever else the bytes hold."""
        return self._loads(dumped)

    @property
    def safe(self) -> bool:
        """Whether its `loads` is known to build only data, whatever the bytes are.

        Others cannot be tested for that: they may also read pickles, and the test has none.
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
