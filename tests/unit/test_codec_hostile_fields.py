"""Untrusted URLs, headers, cookies and encodings; fields and extensions of a wrong shape, size or depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgpack
import pytest
from msgpack import ExtType
from scrapy import Request

from scrapy_dq.codec import FORMAT, CannotDecode, CannotEncode, Codec
from support.packed_entries import (
    BODY,
    BYTEARRAY,
    CALLBACK,
    COOKIES,
    DATETIME,
    DECIMAL,
    HEADERS,
    META,
    METHOD,
    OBJECT,
    PATH,
    SET,
    TUPLE,
    URL,
    UUID,
    extension,
    pack,
    reason,
)
from unit.test_codec_hostile import BookSpider, touched


@pytest.fixture
def codec() -> Iterator[Codec]:
    """Yield a codec, and check afterwards that no trap of test_codec_hostile.py was touched."""
    touched.clear()
    yield Codec(BookSpider())
    assert not touched


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "fi\nle:///etc/passwd",
        "ftp://example.com/",
        "://example.com/",
        "http:example.com",
        " http://example.com/",
        "http://example.com/\r\nX: y",
        "http://example.com/\0",
        "http://example.com/\u009b31m",
        "http://example.com/\u2028",
        "http://example.com/\u202e",
        "http://[/",
        "http://\u2100.example/",
        b"http://example.com/",
        None,
    ],
)
@pytest.mark.parametrize("meta", [{}, {"verbatim_url": True}])
def test_a_url_that_is_not_allowed_is_refused(url: Any, meta: Any, codec: Codec) -> None:
    """The codec refuses other schemes in any spelling, and characters that would break a request line."""
    assert reason(pack({1: url, META: meta}), codec).startswith(("url: ", "ValueError: Missing scheme"))


@pytest.mark.parametrize(
    "headers",
    [
        {b"X": [b"1\r\nEvil: 2"]},
        {b"X\r\nEvil": [b"1"]},
        {b"Referer": [b"http://x/\x1b[2J\x1b]0;forged\x07"]},
        {b"X": [b"\x7f"]},
        {b"Referer": ["http://x/\u009b31m".encode()]},
        {b"X": [b"1", b"\r"]},
        {b"X": b"1"},
        {b"X": {}},
        {b"X": ["1"]},
        {"X": [b"1"]},
        {b"X": [extension(BYTEARRAY, b"1")]},
        [[b"X", b"1"]],
    ],
)
def test_a_header_cannot_smuggle_another(headers: Any, codec: Codec) -> None:
    """A header must also not control a terminal that shows the log. Only lists of bytes are accepted."""
    assert reason(pack({1: URL, HEADERS: headers}), codec).startswith("headers: ")


@pytest.mark.parametrize("headers", [
    {"X": "a\tb"}, {"X": "bücher"}, {"X": b"\x9b\x85"}, {"X": "\u009b"}, {"Referer": "http://x/ü"},
    {"Referer": b"http://x/\xe4"}, {"Referer": "http://x/\t", "X": "bücher"},
])  # fmt: skip
def test_usual_headers_are_stored(headers: Any, codec: Codec) -> None:
    """The encoding of the header makes no difference."""
    request = Request(URL, headers=headers)
    assert codec.decode(codec.encode(request)).headers == request.headers


@pytest.mark.parametrize("part", ["x\r\nX-Evil: 1", "\0", "\x1b[2J", b"\n", "\x7f"])
@pytest.mark.parametrize("where", ["name", "value", "path", "key", "dict value"])
def test_a_cookie_has_no_control_characters(part: Any, where: str, codec: Codec) -> None:
    """The worker would keep the cookie and send a header of two lines with later requests to the site."""
    cookies: Any = [{"name": "a", "value": "b", where: part}]
    if where in ("key", "dict value"):
        cookies = {part: "x"} if where == "key" else {"x": part}
    assert reason(pack({1: URL, COOKIES: cookies}), codec).startswith("cookies: a cookie contains CR, LF or")
    with pytest.raises(CannotEncode, match="cookies: a cookie contains CR, LF or"):
        codec.encode(Request(URL, cookies=cookies))


@pytest.mark.parametrize(
    "method", ["GET /x HTTP/1.1\r\nHost: y", "GET ", "", "GÉT", "\n", "GET\n", b"GET", None, 1]
)
def test_an_invalid_method_is_refused(method: Any, codec: Codec) -> None:
    """The method is the first word of the request line."""
    assert reason(pack({1: URL, METHOD: method}), codec).startswith("method: ")


SHAPES: dict[str, Any] = {
    "nothing": {},
    "two urls": {1: URL, "url": "file:///"},
    "another attribute": {1: URL, "data": {}},
    "a later attribute": {1: URL, 16: 1},
    "a body in a list": {1: URL, BODY: [1]},
    "a body of text": {1: URL, BODY: "text"},
    "a number as cookies": {1: URL, COOKIES: 1},
    "cookies in lists": {1: URL, COOKIES: [["name", "a"]]},
    "meta in a list": {1: URL, META: []},
    "a tuple as meta": {1: URL, META: extension(TUPLE, [])},
    "no encoding": {1: URL, 9: "no-such-encoding"},
    "a number as encoding": {1: URL, 9: 8},
    "a float as priority": {1: URL, 10: 1.5},
    "a dict as flags": {1: URL, 12: {}},
    "a list as cb_kwargs": {1: URL, 13: [["a", 1]]},
    "no depth": {1: URL, 14: "x"},
    "two depths": {1: URL, 14: 1, META: {"depth": 2}},
    "a depth without meta": {1: URL, 14: 1, META: 5},
    "a negative Referer": {1: URL, 15: -1},
    "a Referer of text": {1: URL, 15: [1, "text"]},
    "half a Referer": {1: URL, 15: [1]},
    "a Referer without a URL": {15: 5},
    "a Referer of a URL in bytes": {1: b"http://a/", 15: 5},
    "a Referer of two lines": {1: URL, 15: [8, b"a\r\nX: 1"]},
    "two Referers": {1: URL, 15: 5, HEADERS: {b"Referer": [b"x"]}},
    "a URL alone": URL,
    "a number": 1,
    "an extension": ExtType(4, b""),
}


@pytest.mark.parametrize("fields", SHAPES.values(), ids=list(SHAPES))
def test_an_entry_of_another_shape_is_refused(fields: Any, codec: Codec) -> None:
    """Unknown attributes and wrong types are refused before any constructor gets them."""
    assert reason(pack(fields), codec)


VALUES: dict[str, Any] = {
    "unknown": ExtType(99, b"\xc0"),
    "an empty tuple": ExtType(TUPLE, b""),
    "two tuples": ExtType(TUPLE, b"\x90\x90"),
    "a tuple of text": extension(TUPLE, "abc"),
    "a set of lists": extension(SET, [[1]]),
    "a bytearray as key": {extension(BYTEARRAY, b""): 1},
    "a size of memory": extension(BYTEARRAY, 5),
    "a pickled datetime": extension(DATETIME, [None, 0, datetime(2026, 1, 1).__reduce__()[1][0]]),
    "month 13": extension(DATETIME, [None, 0, 2026, 13, 1, 0, 0, 0, 0]),
    "a field more": extension(DATETIME, [None, 0, 2026, 1, 1, 0, 0, 0, 0, 0]),
    "a bool as hour": extension(DATETIME, [None, 0, 2026, 1, True, 0, 0, 0, 0]),
    "a pickled date": extension(10, [b"\x07\xea\x01\x01"]),
    "a pickled time": extension(11, [None, 0, b"\0\0\0\0\0\0"]),
    "too many days": extension(12, [2**63, 0, 0]),
    "no decimal": extension(DECIMAL, "1x"),
    "a short uuid": extension(UUID, b"short"),
    "a number as path": extension(PATH, ["", 1]),
    "another path": extension(PATH, ["other", "a"]),
    "a class in a dict": extension(OBJECT, {"a": 1, "b": 2}),
    "a timestamp": msgpack.Timestamp(1),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_an_extension_that_does_not_fit_is_refused(value: Any, codec: Codec) -> None:
    """Constructors misread some values: bytearray(5) allocates memory, and datetime(bytes) checks nothing."""
    assert reason(pack({1: URL, META: {"x": value}}), codec)


@pytest.mark.parametrize("version", [0, 2, 128, 255])
def test_another_format_is_refused_with_both_numbers(version: int, codec: Codec) -> None:
    """A worker makes an entry of a newer format a dead letter, with this reason."""
    payload = bytes((version,)) + pack({1: URL})[1:]
    assert reason(payload, codec) == f"its format is {version}; this version reads format {FORMAT}"


@pytest.mark.parametrize("levels", [60, 70, 500, 1000, 5000, 100_000])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda n: b"\x91" * n + b"\xc0",
        lambda n: b"\x81\xa1k" * n + b"\xc0",
        lambda n: b"\x81" * n + b"\xc0" * (n + 1),
    ],
    ids=["lists", "dicts", "dicts as keys"],
)
def test_deep_nesting_is_refused(levels: int, wrap: Callable[[int], bytes], codec: Codec) -> None:
    """Nested values are refused long before the codec or deepcopy() could exhaust the stack."""
    payload = pack({1: URL, META: {}})[:-1] + b"\x81\xa1x" + wrap(levels)
    if levels == 60 and wrap(1) != b"\x81\xc0\xc0":
        assert codec.decode(payload)
    else:
        assert reason(payload, codec)


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x02",
        b"\xdd\x00\x10\x00\x00" * 1000,
    ],
)
def test_a_claimed_length_takes_no_memory(claim: bytes, codec: Codec) -> None:
    """Some entries claim 4 GiB in five bytes. One has 1,000 nested lists that each claim 2**20 elements."""
    assert reason(pack({1: URL, META: {}})[:-1] + b"\x81\xa1x" + claim, codec)
    assert reason(bytes((FORMAT,)) + claim, codec)


def test_the_reason_is_one_short_printable_line(codec: Codec) -> None:
    """The reason is written to logs and terminals, so untrusted text in it is quoted and cut."""
    for name in ("\x1b[31m\n" * 50, "x" * 100_000, "\ud800\u202e"):
        reason(pack({1: URL, CALLBACK: name}), codec)
        reason(pack({0: name, 1: URL}), codec)
        reason(pack({1: name}), codec)
        reason(pack({1: f"http:{name}"}), codec)
        reason(pack({1: URL, name: 1}), codec)
        reason(pack({1: URL, 9: name}), codec)
        reason(pack({1: URL, META: {"x": extension(DECIMAL, "1\n2")}}), codec)


@pytest.mark.parametrize("name", ["punycode", "Puny-Code", "idna"])
def test_an_encoding_of_host_names_is_refused(
    codec: Codec, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With such an encoding, a request with a 60 kB query took 71 s to build, and each copy took as long."""
    assert "is not a text encoding" in reason(pack({1: URL, 9: name}), codec)
    monkeypatch.setattr("scrapy_dq.codec.requests.Request", pytest.fail)  # refused before a request is built
    with pytest.raises(CannotDecode, match="is not a text encoding"):
        codec.build({"url": URL, "encoding": name})


CJK = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))


@pytest.mark.parametrize("url", [
    f"http://{CJK}/", f"\x01 http://u:p@{CJK}/", f"HTTP:\t//{CJK}/", f"http:\\\\{CJK}/",
    f"http:/\\u:p@{CJK}/",
    "http://" + "a." * 25_000 + "com/", "http://u:p@" + "a." * 500 + "com:80/", "http://" + "a" * 1_001,
])  # fmt: skip
def test_a_host_name_that_is_too_long_is_refused(codec: Codec, url: str) -> None:
    """Python normalizes a host name in quadratic time, and Scrapy looks for cookies of each parent domain."""
    assert reason(pack({1: url}), codec)
    with pytest.raises(CannotDecode):
        codec.build({"url": url})
