"""Encodes and decodes a value in the meta of a request."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from msgpack import ExtType
from scrapy import Request

from scrapy_dq.codec import CannotEncode, Codec

URL = "https://example.com/"


def round_trip(value: Any, codec: Codec) -> Any:
    return codec.decode(codec.encode(Request(URL, meta={"value": value}))).meta["value"]


def refused(value: Any, codec: Codec) -> str:
    with pytest.raises(CannotEncode) as caught:
        codec.encode(Request(URL, meta={"value": value}))
    assert str(caught.value).startswith("meta['value']")
    return str(caught.value)


def lifted(name: str, state: Any, codec: Codec) -> Any:
    """Decode a stored instance of the class *name* with *state*. Return the instance."""
    return codec.value(msgpack.packb(ExtType(5, msgpack.packb([name, state]))))
