"""Untrusted bytes: whatever they are, nothing runs, nothing is imported, and one exception is raised."""

from __future__ import annotations

import importlib.util
import json
import math
import pickle
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property, partialmethod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgpack
import pytest
from msgpack import ExtType
from scrapy import Field, Item, Request, Spider
from scrapy.http import JsonRequest

from scrapy_dq import RedisCrawlSpider
from scrapy_dq.codec import FORMAT, CannotDecode, CannotEncode, Codec
from support.hostile import good, spoiled

URL = "https://example.com/"
PACKAGE = __name__.partition(".")[0]
CALLBACK, METHOD, HEADERS, BODY, COOKIES, META = 2, 4, 5, 6, 7, 8
TUPLE, SET, OBJECT, BYTEARRAY, DATETIME, DECIMAL, UUID, PATH = 2, 3, 5, 8, 9, 13, 14, 15

touched: list[str] = []


class BookSpider(Spider):
    name = "books"

    def parse_book(self, response: Any) -> Any: ...

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.assigned = self.parse_book

    @cached_property
    def cached_trap(self) -> Any:
        touched.append("cached_trap")
        return self.parse_book

    class_trap = classmethod(property(lambda cls: touched.append("class_trap")))  # type: ignore[arg-type]
    partial_trap = partialmethod(parse_book, None)

    @property
    def trap(self) -> Any:
        touched.append("trap")
        return self.parse_book

    @classmethod
    def from_crawler(cls, *args: Any, **kwargs: Any) -> Any:
        touched.append("from_crawler")
        return super().from_crawler(*args, **kwargs)

    @classmethod
    def update_settings(cls, settings: Any) -> None:
        touched.append("update_settings")

    @staticmethod
    def static(response: Any) -> Any: ...

    def closed(self, reason: str) -> None: ...

    def start_requests(self) -> Any: ...

    class Inner:
        pass


class BookItem(Item):
    title = Field()


@dataclass
class Price:
    amount: int

    def __post_init__(self) -> None:
        touched.append("post_init")


@dataclass
class Closing:
    amount: int

    def __del__(self) -> None:
        touched.append("del")


@dataclass(eq=False)
class Hashed:
    amount: int

    def __hash__(self) -> int:
        touched.append("hash")
        return 1


@dataclass(eq=False)
class Equal(Price):
    def __eq__(self, other: object) -> bool:
        touched.append("eq")
        return True


class ClosingItem(BookItem):
    def __del__(self) -> None:
        touched.append("del")


@dataclass(frozen=True)
class Frozen:
    amount: int


class Color(Enum):
    RED = 1


class Point(NamedTuple):
    x: int


class Plain:
    def __init__(self) -> None:
        touched.append("plain")


def factory(*args: Any) -> None:
    touched.append("factory")


@pytest.fixture
def codec() -> Iterator[Codec]:
    """Yield a codec, and see that nothing of this module was run in the meantime."""
    touched.clear()
    yield Codec(BookSpider())
    assert not touched


def pack(fields: Any) -> bytes:
    return bytes((FORMAT,)) + msgpack.packb(fields, unicode_errors="surrogatepass")


def extension(code: int, plain: Any) -> ExtType:
    return ExtType(code, msgpack.packb(plain))


def reason(payload: Any, codec: Codec) -> str:
    """Return why *payload* does not decode."""
    with pytest.raises(CannotDecode) as caught:
        codec.decode(payload)
    text = str(caught.value)
    assert text
    assert len(text) <= 500
    assert text.encode().decode().isprintable()
    return text


@pytest.mark.parametrize(
    "name",
    ["os.system", "scrapy.Spider", f"{__name__}.Plain", 1, ["os.system"], None, "\ud800"],
)
def test_only_imported_subclasses_of_request_are_built(name: Any, codec: Codec) -> None:
    """request_from_dict() would import and call anything."""
    if name is None:
        assert type(codec.decode(pack({0: name, 1: URL}))) is Request
    else:
        assert reason(pack({0: name, 1: URL}), codec)


@pytest.fixture
def unimported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a module that could be imported."""
    source = "import scrapy, typing\nclass Mine(scrapy.Request): ...\nclass P(typing.NamedTuple):\n  x: int\n"
    (tmp_path / "codec_unimported.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield "codec_unimported"
    sys.modules.pop("codec_unimported", None)


def test_a_request_class_is_not_imported(unimported: str, codec: Codec) -> None:
    """Of a module that this worker has not imported; once it has, the class is found."""
    payload = pack({0: f"{unimported}.Mine", 1: URL})
    assert "not an imported subclass of Request" in reason(payload, codec)
    assert unimported not in sys.modules
    module = importlib.import_module(unimported)
    assert type(codec.decode(payload)) is module.Mine


def test_a_class_of_a_value_is_not_imported(unimported: str) -> None:
    """Not even one in a package of the project."""
    codec = Codec(BookSpider(), spider_modules=[unimported])
    payload = pack({1: URL, META: {"x": extension(OBJECT, [f"{unimported}:P", [1]])}})
    assert "no imported module 'codec_unimported'" in reason(payload, codec)
    assert unimported not in sys.modules
    importlib.import_module(unimported)
    assert codec.decode(payload).meta["x"] == (1,)


def test_a_module_that_loads_lazily_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in sys.modules, but an attribute would run it; so would a module's __getattr__."""
    path = tmp_path / "codec_lazy.py"
    path.write_text("raise SystemExit('it was run')\n")
    spec = importlib.util.spec_from_file_location("codec_lazy", path)
    assert spec
    assert spec.loader
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    asking = ModuleType("codec_asking")
    asking.__getattr__ = factory  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "codec_lazy", lazy)
    monkeypatch.setitem(sys.modules, "codec_asking", asking)
    touched.clear()
    codec = Codec(BookSpider(), spider_modules=["codec_lazy", "codec_asking"])
    for module in ("codec_lazy", "codec_asking"):
        reason(pack({1: URL, META: {"x": extension(OBJECT, [f"{module}:P", [1]])}}), codec)
    assert not touched


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:int",
        "scrapy:Item",
        "http:HTTPStatus",
        f"{__name__}:factory",
        f"{__name__}:Plain",
        f"{__name__}:BookSpider.Inner",
        f"{__name__}:Item",
        f"{__name__}:touched.append",
        ":",
        f"{PACKAGE}:Price",
        f"{__name__}.Price",
        5,
        None,
        ["os:system"],
    ],
)
@pytest.mark.parametrize("state", [{}, None])
def test_only_the_projects_data_classes_are_rebuilt(name: Any, state: Any, codec: Codec) -> None:
    """Functions, other classes, others' packages and what a module merely imports are refused."""
    assert reason(pack({1: URL, META: {"x": extension(OBJECT, [name, state])}}), codec)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("BookItem", {"title": 1}, [{"other": 1}, {"_values": {}}, {"__class__": 1}, [], None, {1: 1}]),
        (
            "Price",
            {"amount": 1},
            [{}, {"amount": 1, "x": 1}, {"__class__": 1, "amount": 1}, ["amount"], None],
        ),
        ("Color", "RED", ["BLUE", "__class__", "mro", 1, None, ["RED"]]),
        ("Point", [1], [[], [1, 2], {"x": 1}, "x", None]),
    ],
)
def test_a_state_that_does_not_fit_the_class_is_refused(
    name: str, good: Any, bad: list[Any], codec: Codec
) -> None:
    """Exactly its fields, and no code of the class to make up for it."""
    assert codec.decode(pack({1: URL, META: {"x": extension(OBJECT, [f"{__name__}:{name}", good])}})).meta[
        "x"
    ]
    for state in bad:
        assert reason(pack({1: URL, META: {"x": extension(OBJECT, [f"{__name__}:{name}", state])}}), codec)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("Closing", {"amount": 1}),
        ("Hashed", {"amount": 1}),
        ("Equal", {"amount": 1}),
        ("ClosingItem", {"title": 1}),
    ],
)
def test_a_class_whose_methods_python_calls_implicitly_has_to_be_listed(
    name: str, state: dict[str, Any], codec: Codec
) -> None:
    """Also of an entry that is refused: what was made of it is thrown away, and that calls __del__."""
    payload = pack(
        {1: URL, META: {"x": extension(SET, [1, extension(OBJECT, [f"{__name__}:{name}", state])])}}
    )
    refused = reason(payload, codec)
    assert "has its own __" in refused
    assert not touched
    named = Codec(BookSpider(), types=[f"{__name__}.{name}"])
    payload = pack({1: URL, META: {"x": extension(OBJECT, [f"{__name__}:{name}", state])}})
    value = named.decode(payload).meta["x"]
    assert type(value).__name__ == name
    assert named.encode(Request(URL, meta={"x": value}))
    with pytest.raises(CannotEncode, match=rf"{name} has its own __.* if DQ_TYPES lists it$"):
        codec.encode(Request(URL, meta={"x": value}))
    del value
    touched.clear()


def test_what_a_dataclass_generates_looks_at_the_fields_alone(codec: Codec) -> None:
    """It may be a key, or a member of a set."""
    value = {Frozen(1), Frozen(2)}
    assert codec.decode(codec.encode(Request(URL, meta={"x": value}))).meta["x"] == value


@pytest.mark.parametrize(
    "name",
    [
        "__init__",
        "from_crawler",
        "start",
        "closed",
        "logger",
        "trap",
        "cached_trap",
        "class_trap",
        "partial_trap",
        "static",
        "assigned",
        "Inner",
        "name",
        "no_such_method",
        "\ud800",
        b"parse_book",
        None,
        ["parse_book"],
    ],
)
def test_a_callback_resolves_to_nothing_but_a_callback(name: Any, codec: Codec) -> None:
    """No dunder, no hook of Scrapy's, no property, no attribute, no class."""
    for key in (CALLBACK, CALLBACK + 1):
        why = reason(pack({1: URL, key: name}), codec)
        assert "the spider 'books' has no callback" in why


class FedSpider(RedisCrawlSpider):
    name = "fed"

    def parse_book(self, response: Any) -> Any: ...
    def parse_start_url(self, response: Any, **kwargs: Any) -> Any: ...
    def make_request_from_data(self, data: bytes) -> Any: ...
    def spider_idle(self) -> None: ...
    def process_results(self, response: Any, results: Any) -> Any: ...
    def _requests_to_follow(self, *args: Any) -> Any: ...


@pytest.mark.parametrize(
    "name",
    [
        "make_request_from_data",
        "spider_idle",
        "process_results",
        "_requests_to_follow",
        "warn_if_not_fed",
        "setup_redis",
    ],
)
def test_a_method_of_a_base_class_is_not_a_callback(name: str) -> None:
    """Of Scrapy's spiders and ours, overridden or not: it takes arguments of another kind."""
    codec = Codec(FedSpider())
    for own in ("parse_book", "parse_start_url", "parse"):
        assert codec.decode(pack({1: URL, CALLBACK: own})).callback
    assert "has no callback" in reason(pack({1: URL, CALLBACK: name}), codec)


def test_a_method_that_comes_from_python_itself_is_not_a_callback() -> None:
    """Of a mixin such as threading.Thread; a mixin of any other package may define callbacks."""

    class Encoding(BookSpider, json.JSONEncoder):
        pass

    codec = Codec(Encoding())
    assert codec.decode(pack({1: URL, CALLBACK: "parse_book"})).callback
    for name in ("encode", "default", "iterencode"):
        assert "has no callback" in reason(pack({1: URL, CALLBACK: name}), codec)


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
    """Other schemes, however written, and what would break a request line."""
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
    """Nor command the terminal that shows the log; and nothing but lists of bytes."""
    assert reason(pack({1: URL, HEADERS: headers}), codec).startswith("headers: ")


@pytest.mark.parametrize("headers", [
    {"X": "a\tb"}, {"X": "bücher"}, {"X": b"\x9b\x85"}, {"X": "\u009b"}, {"Referer": "http://x/ü"},
    {"Referer": b"http://x/\xe4"}, {"Referer": "http://x/\t", "X": "bücher"},
])  # fmt: skip
def test_usual_headers_are_stored(headers: Any, codec: Codec) -> None:
    """Whatever its encoding is."""
    request = Request(URL, headers=headers)
    assert codec.decode(codec.encode(request)).headers == request.headers


@pytest.mark.parametrize("part", ["x\r\nX-Evil: 1", "\0", "\x1b[2J", b"\n", "\x7f"])
@pytest.mark.parametrize("where", ["name", "value", "path", "key", "dict value"])
def test_a_cookie_has_no_control_characters(part: Any, where: str, codec: Codec) -> None:
    """The worker keeps it: its other requests to the site had a header of two lines."""
    cookies: Any = [{"name": "a", "value": "b", where: part}]
    if where in ("key", "dict value"):
        cookies = {part: "x"} if where == "key" else {"x": part}
    assert reason(pack({1: URL, COOKIES: cookies}), codec).startswith("cookies: a cookie contains CR, LF or")
    with pytest.raises(CannotEncode, match="cookies: a cookie contains CR, LF or"):
        codec.encode(Request(URL, cookies=cookies))


@pytest.mark.parametrize(
    "method", ["GET /x HTTP/1.1\r\nHost: y", "GET ", "", "GÉT", "\n", "GET\n", b"GET", None, 1]
)
def test_a_method_is_a_token(method: Any, codec: Codec) -> None:
    """It is the first word of the request line."""
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
    """Unknown attributes and wrong types, before any constructor sees them."""
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
    """Constructors with a second meaning, too: bytearray(5) is memory, datetime(bytes) checks nothing."""
    assert reason(pack({1: URL, META: {"x": value}}), codec)


class Bomb:
    def __reduce__(self) -> Any:
        return factory, ("unpickled",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_not_loaded(protocol: int, codec: Codec) -> None:
    """Neither as an entry nor inside one."""
    bomb = pickle.dumps(Bomb(), protocol)
    assert "format" in reason(bomb, codec)
    assert reason(bytes((FORMAT,)) + bomb, codec)
    assert codec.decode(pack({1: URL, META: {"x": bomb}})).meta["x"] == bomb


@pytest.mark.parametrize("version", [0, 2, 128, 255])
def test_another_format_is_refused_by_both_numbers(version: int, codec: Codec) -> None:
    """An older host leaves a newer one's entries to others, or says why it buries them."""
    payload = bytes((version,)) + pack({1: URL})[1:]
    assert reason(payload, codec) == f"its format is {version}, this version reads {FORMAT}"


def samples() -> list[bytes]:
    """Return good entries that hold something of everything, also instances of the project's classes."""
    price = Price.__new__(Price)
    price.amount = 1
    meta = {(1, "k"): [price, Color.RED, Point(1), BookItem(title="t")]}
    return [*good([URL] * 6), Codec(BookSpider()).encode(Request(URL, meta=meta))]


def test_a_truncated_entry_is_refused(codec: Codec) -> None:
    """At every byte; and so is one with something behind its end."""
    for sample in samples():
        for length in range(len(sample)):
            reason(sample[:length], codec)
        reason(sample + b"\0", codec)
        reason(sample + sample, codec)


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
    """Long before it could exhaust a stack, here or in deepcopy()."""
    payload = pack({1: URL, META: {}})[:-1] + b"\x81\xa1x" + wrap(levels)
    if levels == 60 and wrap(1) != b"\x81\xc0\xc0":
        assert codec.decode(payload)
    else:
        assert reason(payload, codec)


@pytest.mark.parametrize("levels", [60, 70, 500, 5000])
@pytest.mark.parametrize("code", [TUPLE, SET, OBJECT])
def test_deeply_nested_extensions_are_refused(levels: int, code: int, codec: Codec) -> None:
    """Extensions within extensions would take 40 kB of C stack each, were they unpacked inside each other."""
    data = b"\xc0"
    for _ in range(levels):
        if code == OBJECT:
            data = b"\x92" + msgpack.packb(f"{__name__}:Point") + b"\x91" + data
        else:
            data = b"\x91" + data
        data = msgpack.packb(ExtType(code, data))
    payload = pack({1: URL, META: {}})[:-1] + b"\x81\xa1x" + data
    if levels == 60 and code == TUPLE:
        assert codec.decode(payload)
    else:
        assert reason(payload, Codec(BookSpider(), max_bytes=10**8))


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
    """4 GiB in five bytes; lists within lists, each as long as the entry could be."""
    assert reason(pack({1: URL, META: {}})[:-1] + b"\x81\xa1x" + claim, codec)
    assert reason(bytes((FORMAT,)) + claim, codec)


def test_the_reason_is_one_short_printable_line(codec: Codec) -> None:
    """It goes to logs and terminals; the untrusted text in it is quoted and cut."""
    for name in ("\x1b[31m\n" * 50, "x" * 100_000, "\ud800\u202e"):
        reason(pack({1: URL, CALLBACK: name}), codec)
        reason(pack({0: name, 1: URL}), codec)
        reason(pack({1: name}), codec)
        reason(pack({1: f"http:{name}"}), codec)
        reason(pack({1: URL, name: 1}), codec)
        reason(pack({1: URL, 9: name}), codec)
        reason(pack({1: URL, META: {"x": extension(DECIMAL, "1\n2")}}), codec)


def test_no_spoiled_entry_raises_anything_else(codec: Codec) -> None:
    """20,000 corrupted entries: each decodes to a Request or raises CannotDecode."""
    decoded = 0
    for payload in spoiled(samples(), 20_000, random.Random(20)):
        with suppress(CannotDecode):
            assert codec.decode(payload).url.lower().startswith(("http:", "https:"))
            decoded += 1
    assert 500 < decoded < 15_000


@pytest.mark.parametrize("name", ["punycode", "Puny-Code", "idna"])
def test_an_encoding_of_host_names_is_refused(
    codec: Codec, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a request of a query of 60 kB took 71 s, and so did each copy of it."""
    assert "is not a text encoding" in reason(pack({1: URL, 9: name}), codec)
    monkeypatch.setattr("scrapy_dq.codec.requests.Request", pytest.fail)  # it is refused before one is made
    with pytest.raises(CannotDecode, match="is not a text encoding"):
        codec.build({"url": URL, "encoding": name})


CJK = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))


@pytest.mark.parametrize("url", [
    f"http://{CJK}/", f"\x01 http://u:p@{CJK}/", f"HTTP:\t//{CJK}/", f"http:\\\\{CJK}/",
    f"http:/\\u:p@{CJK}/",
    "http://" + "a." * 25_000 + "com/", "http://u:p@" + "a." * 500 + "com:80/", "http://" + "a" * 1_001,
])  # fmt: skip
def test_a_host_that_is_longer_than_any_is_refused(codec: Codec, url: str) -> None:
    """Python needs the square of its length to normalize it; Scrapy looks for cookies of each domain."""
    assert reason(pack({1: url}), codec)
    with pytest.raises(CannotDecode):
        codec.build({"url": url})


META_THAT_RUNS: dict[str, dict[str, Any]] = {
    "a file of Scrapy's": {"ftp_local_filename": b"x"},
    "a policy to import": {"referrer_policy": "os.abort"},
    "a policy to call": {"referrer_policy": [1]},
    "another browser": {"playwright_context_kwargs": {"user_data_dir": "x", "executable_path": "/bin/sh"}},
    "a file": {"playwright_context_kwargs": {"record_har_path": "x"}},
    "no kwargs": {"playwright_context_kwargs": ["proxy"]},
    "a callback to import": {"playwright_page_init_callback": "os.abort"},
    "a method of Scrapy's": {"playwright_page_event_handlers": {"load": "__init__"}},
    "a handler of no name": {"playwright_page_event_handlers": {"load": 5}},
    "no handlers": {"playwright_page_event_handlers": 5},
}


@pytest.mark.parametrize("meta", META_THAT_RUNS.values(), ids=list(META_THAT_RUNS))
def test_no_meta_has_scrapy_or_a_plugin_run_what_it_names(codec: Codec, meta: dict[str, Any]) -> None:
    """Scrapy imports and calls a referrer_policy; scrapy-playwright starts a browser with such arguments."""
    why = r"DQ_TYPES lists|has no callback|write a file"
    assert re.search(why, reason(pack({1: URL, META: meta}), codec))
    with pytest.raises(CannotEncode, match=why):
        codec.encode(Request(URL, meta=meta))


META_THAT_HARMS_OTHERS: dict[str, dict[str, Any]] = {
    "a depth that is no number": {"depth": Decimal("NaN")},
    "a depth that is a float": {"depth": math.nan},
    "a slot for ever": {"download_timeout": 1e300},
    "a slot for no time": {"download_timeout": math.nan},
}


@pytest.mark.parametrize("meta", META_THAT_HARMS_OTHERS.values(), ids=list(META_THAT_HARMS_OTHERS))
def test_no_meta_harms_other_requests(codec: Codec, meta: dict[str, Any]) -> None:
    """Scrapy keeps the greatest depth: after a NaN, comparing it failed for every response of the worker."""
    with pytest.raises(CannotEncode, match=r"depth is an int|download_timeout is a number"):
        codec.encode(Request(URL, meta=meta))
    (name, value), *_ = meta.items()
    stored = extension(DECIMAL, "NaN") if isinstance(value, Decimal) else value
    assert name in reason(pack({1: URL, META: {name: stored}}), codec)


WRITTEN_AND_REFUSED: dict[str, dict[str, Any]] = {
    **{f"meta: {name}": {"meta": meta} for name, meta in (META_THAT_RUNS | META_THAT_HARMS_OTHERS).items()},
    "a header of two lines": {"headers": {"A": "b\r\nC: d"}},
    "no encoding": {"encoding": "klingon"},
    "a method of two words": {"method": "GET / HTTP"},
    "a value that cannot be stored": {"meta": {"x": object()}},
    "too many bytes": {"body": b"x" * 1_048_576},
}


@pytest.mark.parametrize("written", WRITTEN_AND_REFUSED.values(), ids=list(WRITTEN_AND_REFUSED))
def test_what_may_not_be_stored_is_not_built_either(codec: Codec, written: dict[str, Any]) -> None:
    """A worker would have crawled it without storing it first."""
    with pytest.raises(CannotDecode):
        codec.build({"url": URL, **written})


POLICY = "scrapy.spidermiddlewares.referer.NoReferrerPolicy"


@pytest.mark.parametrize("meta", [
    {"referrer_policy": "no-referrer"}, {"referrer_policy": None}, {"download_timeout": 20.5, "depth": 7},
    {"playwright_page_event_handlers": {"dialog": "parse"}}, {"referrer_policy": POLICY},
])  # fmt: skip
def test_meta_that_names_what_is_usual_or_listed_is_stored(meta: dict[str, Any]) -> None:
    codec = Codec(BookSpider(), types=[POLICY])
    assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta


@dataclass
class Busy:
    """An instance of it in place of data would have these called."""

    path: str

    def keys(self) -> Any:
        touched.append("keys")
        return {}.keys()

    def items(self) -> Any:
        touched.append("items")
        return {}.items()

    def setdefault(self, name: str, value: Any) -> None:
        touched.append("setdefault")

    def __deepcopy__(self, memo: Any) -> Busy:
        touched.append("deepcopy")
        return self

    def __repr__(self) -> str:
        touched.append("repr")
        return ""


@pytest.mark.parametrize("cls", ["Price", "BookItem", "Color", "Point"])
def test_the_state_of_an_instance_is_data(codec: Codec, cls: str) -> None:
    """Not an instance itself, whose methods would be called."""
    busy = extension(5, [f"{Busy.__module__}:Busy", {"path": "x"}])
    value = extension(5, [f"{Busy.__module__}:{cls}", busy])
    assert "Busy" in reason(pack({1: URL, META: {"x": value}}), codec) or cls == "Point"


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_json_request_copies_is_data(codec: Codec, wrapped: bool) -> None:
    """Its constructor copies dumps_kwargs in depth."""
    busy: Any = extension(5, [f"{Busy.__module__}:Busy", {"path": "x"}])
    name = f"{JsonRequest.__module__}.{JsonRequest.__qualname__}"
    kwargs = {"x": [{"default": busy}]} if wrapped else busy
    assert "of the types that JSON has" in reason(pack({0: name, 1: URL, "dumps_kwargs": kwargs}), codec)
    request = JsonRequest(URL, data={"a": 1}, dumps_kwargs={"separators": (",", ":")})
    assert codec.decode(codec.encode(request)).dumps_kwargs == request.dumps_kwargs  # type: ignore[attr-defined]


def test_what_is_usual_of_a_browser_context_is_stored(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of it, if DQ_TYPES says so."""
    usual = {"java_script_enabled": False, "proxy": {"server": "http://proxy.example:3128"}}
    meta = {"playwright": True, "playwright_context_kwargs": usual}
    assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta
    module = ModuleType("scrapy_playwright.page")
    vars(module)["PageMethod"] = type("PageMethod", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, "scrapy_playwright", ModuleType("scrapy_playwright"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    listing = Codec(Spider("s"), types=["scrapy_playwright.page.PageMethod"])
    meta["playwright_context_kwargs"] = {"user_data_dir": "x"}
    assert listing.decode(listing.encode(Request(URL, meta=meta))).meta == meta
