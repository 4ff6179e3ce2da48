"""Entries packed by hand, and the reasons why they do not decode."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from msgpack import ExtType

from scrapy_dq.codec import FORMAT, CannotDecode, Codec

URL = "https://example.com/"
CALLBACK, METHOD, HEADERS, BODY, COOKIES, META = 2, 4, 5, 6, 7, 8
TUPLE, SET, OBJECT, BYTEARRAY, DATETIME, DECIMAL, UUID, PATH = 2, 3, 5, 8, 9, 13, 14, 15


def pack(fields: Any) -> bytes:
    return bytes((FORMAT,)) + msgpack.packb(fields, unicode_errors="surrogatepass")


def extension(code: int, plain: Any) -> ExtType:
    return ExtType(code, msgpack.packb(plain))


def reason(payload: Any, codec: Codec) -> str:
    """Return the reason why *payload* does not decode."""
    with pytest.raises(CannotDecode) as caught:
        codec.decode(payload)
    text = str(caught.value)
    assert text
    assert len(text) <= 500
    assert text.encode().decode().isprintable()
    return text
