"""`SCHEDULER_SERIALIZER`: a project's own `dumps` and `loads` for the dicts of requests, tried before use."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

from scrapy import Request

from scrapy_dq.text import printable


class BadSerializer(Exception):
    """Requests cannot be stored with this serializer; the message tells a person why."""


class _Probe:
    """An instance that comes back shows that what is read may name any class."""


class Serializer:
    """A serializer's `dumps` and `loads`, for bytes."""

    def __init__(self, serializer: Any) -> None:
        """Try *serializer* with a plain request.

        Raises:
            BadSerializer: that does not come back as it was.
        """
        self._dumps, self._loads = serializer.dumps, serializer.loads
        self._as_text = False
        sample = Request("http://localhost/", headers={"Accept": "*/*"}, body=b"x").to_dict()
        try:
            self._try(sample)
        except Exception as error:
            try:
                # JSON knows no bytes.
                self._as_text = True
                self._try(sample)
            except Exception:
                reason = printable(f"{type(error).__name__}: {error}", 300)
                raise BadSerializer(f"a plain request does not come back from it ({reason})") from error

    def dumps(self, values: dict[str, Any]) -> bytes:
        """Return what is stored of a request's dict."""
        dumped = self._dumps(_as_text(values) if self._as_text else values)
        if isinstance(dumped, str):
            return dumped.encode()
        if not isinstance(dumped, (bytes, bytearray)):
            raise TypeError(f"dumps() returned a {type(dumped).__name__}, not bytes or str")
        return bytes(dumped)

    def loads(self, dumped: bytes) -> Any:
        """Return what a dict was dumped from, or whatever else a stranger wrote."""
        return self._loads(dumped)

    @property
    def runs_code(self) -> str:
        """Why bytes from Redis could run code in `loads`, as tried; empty: no sign of it."""
        harmless = {"scrapy_dq": 1}
        # Protocol 0 begins like data of others: marshal would make room for 170 million members.
        if _quietly(self._loads, pickle.dumps(harmless, 2)) == harmless:
            return "its loads() reads pickles"
        if is_pickle(self.dumps(harmless)):
            return "its dumps() writes pickles"
        again = _quietly(lambda: self.loads(self.dumps({"probe": _Probe()})))
        if isinstance(again, dict) and isinstance(again.get("probe"), _Probe):
            return "its loads() makes instances of any class that the bytes name"
        return ""

    def _try(self, sample: dict[str, Any]) -> None:
        again = self.loads(self.dumps(sample))
        if not isinstance(again, dict) or again.keys() != sample.keys() or again["url"] != sample["url"]:
            raise TypeError(f"loads() returned {again!r:.200}")


def is_pickle(dumped: bytes) -> bool:
    """Tell whether *dumped* is a whole pickle, without reading it as one."""
    try:
        last = 0
        for _, _, position in pickletools.genops(dumped):
            last = position or 0
    except Exception:
        return False
    return last + 1 == len(dumped)


def _quietly(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception:
        return None


def _as_text(values: dict[str, Any]) -> dict[str, Any]:
    headers = values.get("headers") or {}
    return {
        **values,
        "headers": {_text(name): [_text(value) for value in lines] for name, lines in headers.items()},
        "body": _text(values.get("body", b"")),
    }


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
