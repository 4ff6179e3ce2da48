"""Which values of the standard library, numpy and parsers come back, and with which type."""

from __future__ import annotations

import http
import re
import socket
import sys
import time as struct_time
from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from contextlib import suppress
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address, ip_interface, ip_network
from types import MappingProxyType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import pytest
from scrapy import Request, Spider

from scrapy_dq.codec import CannotDecode, Codec, Items
from scrapy_dq.codec.shown import shown
from scrapy_dq.codec.standard import SHAPES
from support.codec_values import URL, lifted, refused, round_trip


class BookSpider(Spider):
    name = "books"


@pytest.fixture
def codec() -> Codec:
    return Codec(BookSpider())


@pytest.mark.parametrize(
    "zone",
    [
        timezone.utc,
        timezone(timedelta(hours=-3, minutes=-30)),
        ZoneInfo("Europe/Berlin"),
        timezone(timedelta(0, 1, 5)),
    ],
)
def test_an_aware_datetime_comes_back_at_the_same_instant(zone: Any, codec: Codec) -> None:
    """The UTC offset is kept, but not the name of the time zone."""
    for fold in (0, 1):
        moment = datetime(2026, 10, 25, 2, 30, 0, 123456, tzinfo=zone, fold=fold)
        again = round_trip(moment, codec)
        assert again.utcoffset() == moment.utcoffset()
        assert again.astimezone(timezone.utc) == moment.astimezone(timezone.utc)
        assert type(again.tzinfo) is timezone


def test_a_time_of_day_keeps_its_offset_if_it_has_one(codec: Codec) -> None:
    """Without a date, Europe/Berlin has no offset. Such a time is refused, because it would lose its zone."""
    for value in (time(1, 2, 3, 4, fold=1), time(1, tzinfo=timezone(timedelta(hours=2)))):
        again = round_trip(value, codec)
        assert (again, again.fold, again.utcoffset()) == (value, value.fold, value.utcoffset())
    assert "UTC offset" in refused(time(1, tzinfo=ZoneInfo("Europe/Berlin")), codec)


@pytest.mark.parametrize(
    "text", ["1.50", "-0", "1E+4299", "1E-4299", "9" * 4300, "NaN", "sNaN12", "-Infinity"]
)
def test_a_decimal_keeps_every_digit(text: str, codec: Codec) -> None:
    """Signs, trailing zeros, exponents and the digits of a NaN are kept."""
    assert str(round_trip(Decimal(text), codec)) == str(Decimal(text))


@pytest.mark.parametrize(
    "value",
    [
        1.5j, range(1, 9, 2), Fraction(1, 3), OrderedDict(b=1, a=[2]), Counter(a=2, b=-1), deque(),
        ChainMap({"a": 1}, {}),
        deque([1, [2]], 3), defaultdict(list, a=[1]), defaultdict(None, a=1), defaultdict(Counter),
        UserDict(a=1), UserList([1]), SimpleNamespace(a=[1]), MappingProxyType({"a": [1]}), array("d", [1.5]),
        struct_time.gmtime(5), timezone.utc, timezone(timedelta(hours=2), "X"), ip_address("1.2.3.4"),
        ip_address("fe80::1%eth0"), ip_network("10.0.0.0/8"), ip_interface("2001:db8::5/64"),
        http.HTTPStatus.OK, urlsplit("http://a/b?c"), socket.AF_INET,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_of_the_standard_library_comes_back(value: Any, codec: Codec) -> None:
    """The value may be in a container, a key of a dict, or an item of a Queue."""
    again = round_trip([{"a": (value,)}], codec)[0]["a"][0]
    assert (type(again), again) == (type(value), value)
    for name in ("default_factory", "maxlen", "tm_gmtoff"):
        assert getattr(again, name, None) == getattr(value, name, None)
    items = Items((), 10_000)
    assert items.decode(items.encode(value)) == value
    assert shown(codec.encode(Request(URL, meta={"a": value})), 10_000)["kind"] == "request"
    with suppress(TypeError):  # unhashable
        assert round_trip({value: 1} if hash(value) else {}, codec) == {value: 1}


def test_a_worker_without_numpy_gets_the_plain_value(codec: Codec) -> None:
    """Decoding imports no module, so numpy's scalars become plain values, and other classes are refused."""
    for name, state in (("float32", 0.5), ("int8", 5), ("str_", "a"), ("bool_", True)):
        assert lifted(f"numpy:{name}", state, codec) == state
    for name, state in (("float32", "a"), ("int8", True), ("ndarray", 1), ("", 1)):
        with pytest.raises(CannotDecode):
            lifted(f"numpy:{name}", state, codec)
    for name in ("numpy:datetime64", "pandas:Timestamp", "pandas:NaT", "pandas:DataFrame"):
        with pytest.raises(CannotDecode, match="is not imported in this worker"):
            lifted(name, None, codec)
    assert not {"numpy", "pandas"} & sys.modules.keys()


def test_a_string_of_a_parser_becomes_a_str(codec: Codec) -> None:
    """A string of BeautifulSoup refers to its whole page, so only the text is kept."""
    text = type("NavigableString", (str,), {"__module__": "bs4.element"})("a")
    text.parent = open
    again = round_trip({text: text}, codec)
    assert [*map(type, (*again, *again.values()))] == [str, str]


def test_a_pattern_comes_back_with_its_flags(codec: Codec) -> None:
    """A pattern with re.DEBUG is refused, because compiling it would print."""
    for pattern in (re.compile("a.b", re.I | re.S), re.compile(b"a")):
        assert round_trip(pattern, codec) == pattern
    for state in (["a", int(re.DEBUG)], ["a", "b"], [1, 0], "a"):
        with pytest.raises(CannotDecode):
            lifted("re:Pattern", state, codec)
    assert "such as re.DEBUG" in refused(re.compile("a", re.DEBUG), codec)


@pytest.mark.parametrize(
    "name", [*(shape.name for shape in SHAPES), "http:HTTPStatus", "urllib.parse:SplitResult"]
)
def test_a_state_of_another_shape_raises_only_cannot_decode(name: str, codec: Codec) -> None:
    """No state can make the codec run code: a default_factory can only be one of a few builtin types."""
    plain: list[Any] = [None, 1, "", {}, {1: 2}, {"a": "b"}]
    lists: list[Any] = [[], [1], [1, 0], [2**63, 2**63], ["", {}], ["print", {}], [-1, []], ["q", ["a"]]]
    for state in plain + lists:
        with suppress(CannotDecode):
            value = lifted(name, state, codec)
            assert f"{type(value).__module__}:{type(value).__qualname__}" == name
            assert getattr(value, "default_factory", None) is None


@pytest.mark.parametrize(
    "name",
    ["subprocess:Popen", "threading:Thread"],
)
def test_no_other_class_of_the_standard_library_is_rebuilt(name: str, codec: Codec) -> None:
    """Only Enums, named tuples and the classes in SHAPES are rebuilt."""
    for state in ({}, [], [1], "", None):
        with pytest.raises(CannotDecode, match="cannot be stored"):
            lifted(name, state, codec)
