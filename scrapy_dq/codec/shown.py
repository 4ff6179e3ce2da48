"""Show payloads as plain values for people and programs, without looking up classes or running code."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from scrapy_dq.codec import formats
from scrapy_dq.codec.attributes import CLASS, NAMES
from scrapy_dq.codec.classes import Classes
from scrapy_dq.codec.shapes import Shape
from scrapy_dq.codec.short import lengthen
from scrapy_dq.codec.values import Values
from scrapy_dq.frontier.messages import apart
from scrapy_dq.text import printable

_NAMES = {CLASS: "class", **NAMES}
_SCALARS = (type(None), bool, int, float, str)
# Names, in lower case, of headers, and of keys of `meta` and of a browser's context. Their values are hidden.
_SECRET = frozenset((
    "authorization", "proxy-authorization", "cookie", "cookie2", "set-cookie", "set-cookie2",
    "http_pass", "ftp_password", "password", "http_credentials",
))  # fmt: skip
_COOKIES = "cookies"
_PROXIES = frozenset(("proxy", "_auth_proxy"))
# A proxy may have no scheme, and its password may be unescaped. Other URLs may have an @ in the path.
_PROXY_LOGIN = re.compile(r"^([a-z][a-z0-9+.-]*://)?.*@", re.DOTALL | re.IGNORECASE)
_LOGIN = re.compile(r"(:/+)[^/?#\s]*@")
_HIDDEN = "..."
_MAX_BITS = 10_000
"""Bits of the widest integer that is shown. Python does not convert much wider integers to text."""


class _Instance:
    """Stands for an instance of a project's class."""

    def __init__(self, name: str, state: Any) -> None:
        self.name = name
        self.state = state


class _AnyClass(Classes):
    """Accepts every class name, and creates no instance of the class."""

    def __init__(self) -> None:
        super().__init__((), ())

    def find(self, name: str) -> Shape:
        """Return a shape that keeps the state and the name."""
        build: Callable[[Any], Any] = lambda state: _Instance(name, state)  # noqa: E731
        return Shape(name, _Instance, lambda instance: instance.state, build)


def shown(payload: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the content of a payload in values that JSON has, without logins; never raise.

    `kind` is request, fed (a start payload), item, serialized or unreadable. A request's attributes are in
    the same dict. An item of a Queue is shown whole, because it is the user's own data.
    """
    payload = formats.untraced(apart(payload)[1])
    try:
        return _shown(payload, max_bytes)
    except Exception as error:  # some dead letters cannot be decoded
        return {
            "kind": "unreadable",
            "reason": printable(str(error) or type(error).__name__),
            "bytes": len(payload),
        }


def url_of(payload: bytes, max_bytes: int) -> str:
    """Return the unchanged URL of a stored request, including a login; "" for any other payload."""
    return str(_request_of(payload, max_bytes).get("url", ""))


def priority_of(payload: bytes, max_bytes: int) -> int:
    """Return the priority of a stored request; 0 for any other payload."""
    found = _request_of(payload, max_bytes).get("priority")
    return int(found) if isinstance(found, int) else 0


def without_logins(value: Any, name: str = "") -> Any:
    """Return a JSON value without passwords and other logins; *name* is its key."""
    if name.lower() in _SECRET:
        return _HIDDEN
    if name.lower() == _COOKIES and value:
        return dict.fromkeys(value, _HIDDEN) if isinstance(value, dict) else _HIDDEN
    if isinstance(value, str):
        if name in _PROXIES:
            return _PROXY_LOGIN.sub(rf"\g<1>{_HIDDEN}@", value)
        return _LOGIN.sub(rf"\g<1>{_HIDDEN}@", value)
    if isinstance(value, dict):
        return {key: without_logins(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [without_logins(item) for item in value]
    return value


def _shown(payload: bytes, max_bytes: int) -> dict[str, Any]:
    formats.check_size(payload, max_bytes)
    kind = payload[0] if payload else None
    if kind == formats.REQUEST:
        # Scrapy's middlewares write logins into the headers and `meta` of a request. Retries keep them.
        return {"kind": "request", **without_logins(_request(payload[1:], max_bytes))}
    if kind == formats.PAYLOAD:
        return {"kind": "fed", "payload": without_logins(_plain(payload[1:]))}
    if kind == formats.ITEM:
        return {"kind": "item", "item": _lifted(payload[1:], max_bytes)}
    if kind == formats.SERIALIZED:
        return _serialized(payload[1:]) | {"kind": "serialized", "bytes": len(payload) - 1}
    raise ValueError(f"its format is {kind}, which this version does not read")


def _serialized(dumped: bytes) -> dict[str, Any]:
    """Return the attributes of a request that SCHEDULER_SERIALIZER has written, if it is a JSON object."""
    try:
        written = json.loads(dumped)
    except ValueError:  # it may be a pickle, which must not be read here
        return {}
    plain = _plain(written)
    return dict(without_logins(plain)) if isinstance(plain, dict) else {}


def _request(packed: bytes, max_bytes: int) -> dict[str, Any]:
    values = Values(_AnyClass(), max_bytes)
    found = {"url": "", "method": "GET", "callback": None, "priority": 0}
    for key, value in lengthen(values.unpack(packed)).items():
        name = key if type(key) is str else _NAMES.get(key, f"attribute {key!a:.100}")
        if name != "kind":
            found[name] = _plain(values.lift(value))
    return found


def _request_of(payload: bytes, max_bytes: int) -> dict[str, Any]:
    payload = formats.untraced(apart(payload)[1])
    if len(payload) > max_bytes or payload[:1] != bytes((formats.REQUEST,)):
        return {}
    try:
        return _request(payload[1:], max_bytes)
    except Exception:  # as in `shown`
        return {}


def _lifted(packed: bytes, max_bytes: int) -> Any:
    values = Values(_AnyClass(), max_bytes)
    return _plain(values.lift(values.unpack(packed)))


def _plain(value: Any) -> Any:
    """Return *value* in types that JSON has; bytes that are not UTF-8 become {"base64": ...}."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return str(value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, _Instance):
        return {"class": _plain(value.name), "state": _plain(value.state)}
    return str(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else str(plain)
