"""Instances of the project's classes, in any container, come back equal and with the same type."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Field, Item, Request, Spider

from scrapy_dq.codec import Codec
from support.codec_values import URL, refused, round_trip


class BookSpider(Spider):
    name = "books"


class BookItem(Item):
    title = Field()
    tags = Field()


class StrictItem(BookItem):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("a constructor was run")

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("a setter was run")


@dataclass
class Price:
    amount: Decimal
    currency: str = "EUR"
    checked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.checked = True


@dataclass(frozen=True)
class Frozen:
    price: Price
    __private: int = 1


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: tuple[int, ...] = ()


@dataclass
class Cached:
    a: int

    @cached_property
    def double(self) -> int:
        return 2 * self.a


@attrs.define
class Author:
    name: str
    born: date | None = None
    _token: str = ""


class Color(enum.Enum):
    RED = object()
    ALSO_RED = RED


class Level(enum.IntEnum):
    LOW = 1


class Command(str, enum.Enum):
    YES = "yes"


class Point(NamedTuple):
    x: int
    y: Any = 0


class StrictPoint(Point):
    def __new__(cls, *args: Any) -> Any:
        raise AssertionError("a constructor was run")


Pair = namedtuple("Pair", "a b")


class Shelf:
    class Position(NamedTuple):
        row: int


class Text(str):
    pass


class Data(bytes):
    pass


class Number(int):
    def __int__(self) -> int:
        raise AssertionError("a method was run")


class Ratio(float):
    pass


class Commands(list[Any]):
    def extend(self, more: Any) -> None:
        raise AssertionError("a method was run")


class Fixed(tuple[Any, ...]):
    pass


class Tags(set[int]):
    pass


class FixedTags(frozenset[int]):
    pass


class TextDict(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("a method was run")

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("a method was run")


class Ordered(OrderedDict[str, Any]):
    pass


class Tally(Counter[str]):
    pass


@pytest.fixture
def codec() -> Codec:
    return Codec(BookSpider())


HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.dates()
    | st.datetimes()
    | st.times()
    | st.timedeltas()
    | st.sampled_from([*Color, *Level, *Command, Path("/a/b"), PurePosixPath("a"), PureWindowsPath("c:\\a")]),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Point, st.integers(), inner)
        | st.builds(Slotted, st.integers(), st.tuples(inner))
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    HASHABLE | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.builds(Price, inner, inner)
        | st.builds(Author, inner)
        | st.builds(lambda title: BookItem(title=title), inner)
    ),
    max_leaves=8,
)
SHARED = Codec(BookSpider(), max_bytes=8_000_000)


def types_of(value: Any) -> Any:
    """Return the types of *value* and of all values in it, the order of dicts, and the texts of floats."""
    kind = type(value)
    if isinstance(value, dict):
        return kind, [(types_of(k), types_of(v)) for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, map(types_of, value)))
    if isinstance(value, (list, tuple)):
        return kind, [types_of(item) for item in value]
    if isinstance(value, Item):
        return kind, types_of(dict(value))
    if kind in (Price, Author, Slotted):
        return kind, [types_of(getattr(value, name)) for name in getattr(kind, "__annotations__", {})]
    return kind, repr(value) if kind is float else None


@given(VALUES)
def test_every_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    """Hypothesis draws values inside any container or class, and as keys of dicts."""
    again = round_trip(value, SHARED)
    assert again == value
    assert types_of(again) == types_of(value)


@pytest.mark.parametrize(
    "value",
    [
        Price(Decimal("9.90")),
        Frozen(Price(Decimal(1))),
        Slotted(1, (2,)),
        Author("a", date(1900, 1, 1), token="t"),
        BookItem(title="t", tags={"a"}),
        Point(1, [2]),
        Pair(1, 2),
        Shelf.Position(3),
        Text("a"),
        Data(b"a"),
        Number(5),
        Ratio(1.5),
        Commands([1, [2]]),
        Fixed((1, [2])),
        Tags({1}),
        FixedTags({1}),
        TextDict(a=[1]),
        Ordered(b=1, a=[2]),
        Tally("aab"),
        Color.ALSO_RED,
        Command.YES,
    ],
    ids=lambda value: value.name if isinstance(value, enum.Enum) else repr(value),
)
def test_an_instance_of_the_projects_classes_comes_back(value: Any, codec: Codec) -> None:
    """meta={"item": MyItem()} is the most common use."""
    again = round_trip({"nested": [value]}, codec)["nested"][0]
    assert type(again) is type(value)
    assert again == value


def test_an_instance_is_rebuilt_without_running_its_classes_code(codec: Codec) -> None:
    """No __init__, __post_init__ or __setitem__ runs, because they would get untrusted arguments."""
    price = Price(Decimal(1))
    price.checked = False
    assert round_trip(price, codec).checked is False
    item = StrictItem.__new__(StrictItem)
    Item.__init__(item)
    Item.__setitem__(item, "title", "t")
    assert dict(round_trip(item, codec)) == {"title": "t"}
    point = tuple.__new__(StrictPoint, (1, 2))
    assert round_trip(point, codec) == point


def test_a_subclass_of_a_builtin_type_keeps_its_attributes(codec: Codec) -> None:
    """An instance of a subclass of str may have attributes, like any other object."""
    text = Text("a")
    text.language = ["en"]  # type: ignore[attr-defined]
    again = round_trip({text: text}, codec)
    assert again == {"a": "a"}
    for found in (*again, *again.values()):
        assert (type(found), vars(found)) == (Text, {"language": ["en"]})
    text.language = open  # type: ignore[attr-defined]
    assert "language" in refused(text, codec)


def test_a_cached_property_is_computed_again(codec: Codec) -> None:
    """The cached value is not a field, so it is not stored, and Python computes it again."""
    value = Cached(2)
    assert value.double == 4
    again = round_trip(value, codec)
    assert vars(again) == {"a": 2}
    assert again.double == 4


def test_a_set_is_the_same_bytes_in_every_order() -> None:
    """Each process orders sets differently, and ids of start requests and children depend on the bytes."""
    codec = Codec(BookSpider())
    one, other = set([0, 8]), set([8, 0])  # noqa: C405 - the order matters
    assert list(one) != list(other)
    assert codec.encode(Request(URL, meta={"x": one})) == codec.encode(Request(URL, meta={"x": other}))
    mixed = {"a", b"a", 1, (1, "b"), frozenset({"c", "d"}), None}
    assert codec.decode(codec.encode(Request(URL, meta={"x": mixed}))).meta["x"] == mixed


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (None, "c0"),
        (True, "c3"),
        (2**70, "c70901400000000000000000"),
        (-1.5, "cbbff8000000000000"),
        ("\ud800", "a3eda080"),
        (b"b", "c40162"),
        ([1, {"a": (2,)}], "920181a161d5029102"),
        ({3, "a"}, "d6039203a161"),
        (frozenset({1}), "d5049101"),
        (bytearray(b"x"), "c70308c40178"),
        (datetime(2026, 1, 2, 3, fold=1), "c70c0999c001cd07ea010203000000"),
        (
            datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            "c7140999cf00000001ad27480000cd07ea010200000000",
        ),
        (date(2026, 1, 2), "c7060a93cd07ea0102"),
        (time(1, 2), "c7070b96c00001020000"),
        (timedelta(1, 2, 3), "d60c93010203"),
        (Decimal("1.50"), "c7050da4312e3530"),
        (UUID(int=5), "c7120ec41000000000000000000000000000000005"),
        (PurePosixPath("a"), "c7090f92a5706f736978a161"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_the_bytes_of_a_value_are_frozen(value: Any, packed: str, codec: Codec) -> None:
    """Workers of all versions compute the ids of entries from these bytes, so the bytes must never change."""
    assert codec.packed(value).hex() == packed
    assert types_of(codec.value(bytes.fromhex(packed))) == types_of(value)
