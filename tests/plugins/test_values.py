"""Scalars of numpy and pandas, and strings of BeautifulSoup, in requests."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_dq.codec import CannotDecode, CannotEncode, Codec

pytestmark = pytest.mark.plugins
URL = "http://example.com/"


class ItsSpider(Spider):
    name = "its"


def round_trip(value: Any) -> Any:
    codec = Codec(ItsSpider())
    return codec.decode(codec.encode(Request(URL, meta={"value": value}))).meta["value"]


@pytest.mark.parametrize("module", ["numpy", "pandas"])
def test_scalars_come_back_with_their_classes(module: str) -> None:
    """The scalars are in a list, and are keys of dicts."""
    library = importlib.import_module(module)
    if module == "numpy":
        values = [library.bool_(1), library.int8(-5), library.uint64(2**64 - 1), library.float32(0.1)]
        values += [library.float64(0.1), library.complex64(1j), library.str_("a\0"), library.bytes_(b"a\0")]
        values += [library.datetime64("2026-01-02T03:04:05.123456789"), library.timedelta64(5, "25s")]
        values += [library.datetime64("NaT", "ns")]
    else:
        values = [library.Timestamp("2026-01-02 03:04:05.123456789"), library.Timedelta("1ns"), library.NaT]
        values += [library.Timestamp("2026-01-02", tz="Europe/Berlin"), library.NA]
    again = round_trip(values)
    assert [*map(type, again)] == [*map(type, values)]
    assert [*map(str, again[:3])] == [*map(str, values[:3])]
    for value, other in zip(values, again, strict=True):
        assert other is value or other == value or (other != other and value != value)
        assert [*map(type, round_trip({value: 1}))] == [type(value)]


def test_a_value_without_a_plain_form_is_refused() -> None:
    numpy, pandas = (importlib.import_module(name) for name in ("numpy", "pandas"))
    soup = importlib.import_module("bs4").BeautifulSoup("<p>a</p>", "html.parser")
    for value in (numpy.longdouble(1), numpy.array([1]), numpy.timedelta64(1), pandas.Series([1]), soup.p):
        with pytest.raises(CannotEncode):
            Codec(ItsSpider()).encode(Request(URL, meta={"value": value}))


def test_a_scalar_of_another_shape_is_refused() -> None:
    """Another program that writes to the same Redis may have stored a state with other parts or types."""
    msgpack = importlib.import_module("msgpack")
    codec = Codec(ItsSpider())
    for name in ("int8", "float32", "datetime64", "timedelta64", "ndarray", "dtype", "load", "bool_"):
        for state in (None, [], "a", 2**40, [1, "x", 1], [1, "s"], {}, [b"", "s", 1]):
            packed = msgpack.packb(msgpack.ExtType(5, msgpack.packb([f"numpy:{name}", state])))
            with pytest.raises(CannotDecode):
                codec.value(packed)
    for name in ("Timestamp", "Timedelta", "DataFrame", "read_pickle", "NaTs"):
        for state in (None, [], "a", 1, [1, "x", None], [1, "s"], [1, "s", "Europe/Berlin"], {}):
            packed = msgpack.packb(msgpack.ExtType(5, msgpack.packb([f"pandas:{name}", state])))
            with pytest.raises(CannotDecode):
                codec.value(packed)


def test_strings_of_beautifulsoup_come_back_as_str() -> None:
    """Such a string refers to its whole page, so only the text is kept."""
    soup = importlib.import_module("bs4").BeautifulSoup("<p>a<!--b--></p>", "html.parser")
    again = round_trip([*soup.p.contents])
    assert (again, [*map(type, again)]) == (["a", "b"], [str, str])
