"""A line of text -> a request: a URL, or JSON of the attributes of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scrapy import Request

from scrapy_dq.codec import CannotDecode, Codec
from scrapy_dq.pushing.lines import Line
from scrapy_dq.text import printable

LONGEST = 8
"""A line may be this many times as long as an entry: JSON needs six bytes for some."""


class BadLine(ValueError):
    """No request can be made from it; the message says why."""


class Written:
    """Makes requests from lines."""

    def __init__(self, codec: Codec, common: Mapping[str, Any] | None = None) -> None:
        """*common*: attributes for lines that do not set them; keys of `meta` are merged."""
        self._codec = codec
        self._common = dict(common or {})

    def request(self, line: Line) -> Request | None:
        """Return the request that a line describes; None: it is blank, or a comment (#).

        The keys of a JSON object are the names of a request's attributes, as in an item of a `Queue`; a
        callback is the name of a method of the spider.

        Raises:
            BadLine: the line is invalid.
        """
        if line.text is None:
            raise BadLine("it is too long")
        try:
            text = line.text.decode().strip()
        except UnicodeDecodeError as error:
            raise BadLine(f"it is not valid UTF-8 ({error})") from error
        if not text or text.startswith("#"):
            return None
        written = _object(text) if text.startswith(("{", "[", '"')) else {"url": text}
        try:
            return self._codec.build(self._common | written | {"meta": self._meta(written)})
        except CannotDecode as error:
            raise BadLine(str(error)) from error

    def _meta(self, written: Mapping[str, Any]) -> dict[str, Any]:
        own = written.get("meta") or {}
        if not isinstance(own, dict):
            raise BadLine(f'its "meta" is a {type(own).__name__}, not an object')
        return {**self._common.get("meta", {}), **own}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(printable(f"it begins like JSON but is invalid ({error})")) from error
    if not isinstance(found, dict):
        raise BadLine(f"its JSON is a {type(found).__name__}, not an object")
    return found
