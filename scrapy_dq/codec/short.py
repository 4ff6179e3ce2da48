"""Shorten two items of nearly every request: `depth`, and a Referer on the same site.

Scrapy's middlewares set both as last items. In another position, or with other values, they are stored like
other items, because decoding must keep the order.
"""

from __future__ import annotations

from typing import Any

from scrapy_dq.codec.attributes import KEYS
from scrapy_dq.codec.unfit import Unfit, exactly

URL, HEADERS, META = KEYS["url"], KEYS["headers"], KEYS["meta"]
DEPTH = 14
"""An int of 64 bits, the last item of `meta`."""
REFERER = 15
"""The last header: the length of the prefix that it shares with the URL, or a list of this length and the
rest of the header."""
_REFERER = b"Referer"


def shorten(entry: dict[Any, Any]) -> dict[Any, Any]:
    """Return the lowered attributes of an entry in their short form; this changes *entry*."""
    meta = entry.get(META)
    if type(meta) is dict and next(reversed(meta)) == "depth" and _is_number(meta["depth"]):
        entry[DEPTH] = meta["depth"]
        if len(meta) > 1:
            entry[META] = dict(list(meta.items())[:-1])  # a copy: the request may use the same dict
        else:
            del entry[META]
    headers = entry.get(HEADERS)
    if headers and next(reversed(headers)) == _REFERER and len(headers[_REFERER]) == 1:
        referer = headers[_REFERER][0]
        shared = _shared(entry[URL].encode("utf-8", "surrogatepass"), referer)
        if shared:
            entry[REFERER] = [shared, referer[shared:]] if len(referer) > shared else shared
            if len(headers) > 1:
                entry[HEADERS] = dict(list(headers.items())[:-1])
            else:
                del entry[HEADERS]
    return entry


def lengthen(unpacked: Any) -> dict[Any, Any]:
    """Return the full attributes of an entry that was just *unpacked*; this changes the entry.

    Raises:
        Unfit, TypeError, ValueError: the entry is invalid.
    """
    entry: dict[Any, Any] = exactly(unpacked, dict)
    if DEPTH in entry:
        depth = entry.pop(DEPTH)
        if type(depth) is not int:
            exactly(depth, int)
        _add(entry, META, "depth", depth)
    if REFERER in entry:
        short = entry.pop(REFERER)
        shared, rest = short if type(short) is list and len(short) == 2 else (short, b"")
        url = entry.get(URL, "")
        if not (type(url) is str and type(shared) is int and type(rest) is bytes and shared >= 0):
            raise Unfit("a Referer is not a length, or a length and bytes")
        _add(entry, HEADERS, _REFERER, [url.encode("utf-8", "surrogatepass")[:shared] + rest])
    return entry


def _is_number(value: Any) -> bool:
    """Return whether *value* is an int that fits msgpack; a wider one becomes an extension."""
    return type(value) is int and -(2**63) <= value < 2**64


def _add(entry: dict[Any, Any], key: int, name: Any, value: Any) -> None:
    mapping = entry.setdefault(key, {})
    if type(mapping) is not dict or name in mapping:
        raise Unfit(f"{name!r} is written twice")
    mapping[name] = value


def _shared(url: bytes, referer: bytes) -> int:
    """Return the length of the shared prefix: the URL up to its last slash, or to the slash after its host.

    0: the Referer begins with neither of them.
    """
    for end in (url.rfind(b"/"), url.find(b"/", 8)):
        if end > 0 and referer.startswith(url[: end + 1]):
            return end + 1
    return 0
