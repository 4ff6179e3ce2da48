"""Values that are refused, or stored only if DQ_TYPES lists their class; how deep values may be nested."""

from __future__ import annotations

import enum
import http
import sys
from collections import Counter, UserString, defaultdict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from threading import Lock
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import pytest
from scrapy import Field, Item, Request, Spider
from scrapy.link import Link

from scrapy_dq.codec import BadType, CannotEncode, Codec
from support.codec_values import URL, refused, round_trip


class BookSpider(Spider):
    name = "books"


class BookItem(Item):
    title = Field()
    tags = Field()


@dataclass
class Price:
    amount: Decimal
    currency: str = "EUR"
    checked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.checked = True


@dataclass
class Cached:
    a: int

    @cached_property
    def double(self) -> int:
        return 2 * self.a


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any = 0


class LoosePoint(Point):
    pass


Renamed = namedtuple("AnotherName", "a")


class Plain:
    pass


@dataclass
class Guarded:
    value: int

    @property
    def value(self) -> int:  # type: ignore[no-redef]
        return self.__dict__["value"]

    @value.setter
    def value(self, value: int) -> None:
        self.__dict__["value"] = value


@dataclass
class Listing(list[int]):
    a: int = 1


@dataclass
class Unset:
    a: int = field(init=False)


@dataclass(slots=True)
class UnsetSlot:
    a: int = field(init=False)


def local_dataclass() -> Any:
    @dataclass
    class Local:
        a: int = 1

    return Local()


@pytest.fixture
def codec() -> Codec:
    return Codec(BookSpider())


class Wrapped:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Equal:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Markup(str):
    """A class of another package."""


Markup.__module__ = "msgpack"


@pytest.mark.parametrize(
    ("value", "listed"),
    [
        (Plain(), [f"{__name__}.Plain"]),
        (Equal(), [f"{__name__}.Equal"]),
        (Link(URL), ["scrapy.link.Link"]),
        (Wrapped(Wrapped(Link(URL))), [f"{__name__}.Wrapped", "scrapy.link.Link"]),
        (Markup("a"), ["msgpack.Markup"]),
        (object(), ["builtins.object"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_listed_classes_are_stored(
    value: Any, listed: list[str], codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without DQ_TYPES, these values are refused, and the error names the setting."""
    monkeypatch.setattr(msgpack, "Markup", Markup, raising=False)
    assert "DQ_TYPES" in refused(value, codec)
    assert type(round_trip(value, Codec(BookSpider(), types=listed))) is type(value)


def dataclass_with_more() -> Price:
    price = Price(Decimal(1))
    price.more = 1  # type: ignore[attr-defined]
    return price


def item_with_more() -> BookItem:
    item = BookItem()
    item._more = 1
    return item


def described_counter() -> Any:
    counter: Any = Counter("ab")
    counter.about = 1
    return counter


def point_with_more() -> LoosePoint:
    point = LoosePoint(1)
    point.more = 1  # type: ignore[attr-defined]
    return point


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (defaultdict(lambda: 1), "its default_factory cannot be stored"),
        (described_counter(), "has attributes (about)"),
        (Permission.READ | Permission.WRITE, "not a single member of Permission"),
        (sys.version_info, "'sys.version_info' cannot be stored"),
        (UserString("a"), "cannot be stored"),
        (Plain, "cannot be stored"),
        (Lock(), "cannot be stored"),
        (http, "cannot be stored"),
        (ZoneInfo("UTC"), "cannot be stored"),
        (Request(URL), "cannot be stored"),
        (msgpack.ExtType(2, b"\x90"), "msgpack.ext.ExtType"),
        (Renamed(1), "has a class 'AnotherName'"),
        (local_dataclass(), "<locals>.Local'"),
        (dataclass_with_more(), "'more' is not a field"),
        (item_with_more(), "'_more' is not a field"),
        (point_with_more(), "attributes that are not fields"),
        (Guarded(1), "'value' of Guarded is a property"),
        (Listing(), "it consists of more than its attributes"),
        (Unset(), "'a' is not set"),
        (UnsetSlot(), "'a' is not set"),
        (open, "builtin_function_or_method"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_value_that_would_come_back_changed_is_refused(value: Any, reason: str, codec: Codec) -> None:
    """A request with such a value stays local, even if the value is nested, or a key of a dict."""
    assert reason in refused(value, codec)
    assert reason in refused([{"a": (value,)}], codec)
    if type(value).__hash__ and not isinstance(value, Price):
        assert reason in refused({value: 1}, codec)


class Base:
    __slots__ = ("slot",)


class Step(Base):
    """A class with a slot, a property, and methods that must not run. DQ_TYPES may list it."""

    made: ClassVar[int] = 0

    def __init__(self, name: str, **more: Any) -> None:
        Step.made += 1
        self.name = name
        self.slot = more

    @property
    def method(self) -> None:
        raise AssertionError("a property was read")

    @method.setter
    def method(self, value: Any) -> None:
        raise AssertionError("a property was set")

    def __setattr__(self, name: str, value: Any) -> None:
        if Step.made > 1:
            raise AssertionError("a method was run")
        object.__setattr__(self, name, value)

    class Inner:
        pass


def test_a_plain_class_that_is_listed_is_carried_by_its_attributes(codec: Codec) -> None:
    """All attributes are kept, and no method runs. If the class is unlisted, the error names DQ_TYPES."""
    Step.made = 0
    step = Step("click", on=("a", 1))
    listing = Codec(BookSpider(), types=[f"{__name__}.Step", f"{__name__}.Step.Inner"])
    assert "DQ_TYPES" in refused(step, codec)
    Step.made = 2
    again = round_trip(step, listing)
    assert type(again) is Step
    assert (vars(again), again.slot) == ({"name": "click"}, {"on": ("a", 1)})
    assert type(round_trip(Step.Inner(), listing)) is Step.Inner
    vars(step)["method"] = 5
    assert vars(round_trip(step, listing)) == {"name": "click", "method": 5}


class Copied:
    def __reduce__(self) -> Any:
        raise AssertionError("it was run")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zz", "'zz' cannot be imported"),
        ("no_such_module.Thing", "cannot be imported"),
        ("http.nothing", "cannot be imported: AttributeError"),
        ("http.client", "is not the dotted name of a class"),
        (f"{__name__}.Copied", "its __reduce__ defines how it is copied"),
        (f"{__name__}.Guarded", "is a property"),
        ("zoneinfo.ZoneInfo", "it consists of more than its attributes"),
        ("pathlib.PurePath", "cannot be stored: its __reduce__"),
    ],
)
def test_a_class_that_cannot_be_carried_cannot_be_listed(name: str, reason: str) -> None:
    """A worker does not start if DQ_TYPES lists such a class. Otherwise requests would later stay local."""
    with pytest.raises(BadType, match=reason):
        Codec(BookSpider(), types=[name])


def test_a_class_that_is_always_carried_can_be_listed() -> None:
    """Listing a class that is always stored changes nothing."""
    listing = Codec(BookSpider(), types=["datetime.datetime", "decimal.Decimal"])
    assert round_trip(Decimal(1), listing) == Decimal(1)


def test_the_packages_of_the_spider_modules_are_the_project() -> None:
    """A spider from elsewhere may use classes from the packages of SPIDER_MODULES, and from no others."""
    spider = type("Elsewhere", (Spider,), {"name": "e", "__module__": "elsewhere.spiders"})()
    package, _, _ = __name__.partition(".")
    assert type(round_trip(Point(1), Codec(spider, spider_modules=[f"{package}.spiders"]))) is Point
    assert "DQ_TYPES" in refused(Point(1), Codec(spider, spider_modules=["another", f"{package}x.spiders"]))
    assert "DQ_TYPES" in refused(Point(1), Codec(spider))


def test_a_plain_spider_does_not_make_scrapy_the_project() -> None:
    """The package of the class scrapy.Spider does not count as the project's package."""
    codec = Codec(Spider("plain"))
    assert "DQ_TYPES" in refused(Item(), codec)


def nested(levels: int, shape: Any) -> Any:
    value: Any = "core"
    for _ in range(levels):
        value = shape(value)
    return value


@pytest.mark.parametrize(
    "shape",
    [
        lambda v: [v],
        lambda v: (v,),
        lambda v: {"k": v},
        lambda v: frozenset({v}),
        lambda v: {(v,): 1} if isinstance(v, str) else {"k": v},
        lambda v: Point(1, v),
    ],
    ids=["list", "tuple", "dict", "frozenset", "key", "class"],
)
def test_a_value_that_can_be_encoded_can_be_decoded_at_any_depth(shape: Any, codec: Codec) -> None:
    """Encoder and decoder count levels alike; 100 levels are too many for both."""
    for levels in range(20, 100):
        value = nested(levels, shape)
        try:
            payload = codec.encode(Request(URL, meta={"value": value}))
        except CannotEncode:
            break
        assert codec.decode(payload).meta["value"] == value
    assert 30 < levels < 66
    assert "nested deeper than 64 levels" in refused(value, codec)


def cycles() -> Iterator[Any]:
    a: list[Any] = []
    a.append(a)
    yield a
    b: dict[str, Any] = {}
    b["b"] = ({"b": b},)
    yield b
    c = Price(Decimal(1))
    c.currency = c  # type: ignore[assignment]
    yield c


@pytest.mark.parametrize("value", list(cycles()), ids=["list", "dict", "dataclass"])
def test_a_value_that_contains_itself_is_refused(value: Any, codec: Codec) -> None:
    """A cyclic value exceeds the depth limit."""
    assert "contains itself" in refused(value, codec)


def test_a_value_whose_shared_parts_would_explode_is_refused(codec: Codec) -> None:
    """Each of 50 lists holds the previous list twice. DQ_MAX_ENTRY_BYTES stops the walk over 2**50 values."""
    value: list[Any] = []
    for _ in range(50):
        value = [value, value]
    assert "DQ_MAX_ENTRY_BYTES = 1,048,576" in refused(value, codec)


def test_the_size_limit_applies_to_each_entry() -> None:
    """Only the size of one entry counts, not the sum of the entries that the codec has encoded."""
    codec = Codec(BookSpider(), max_bytes=1000)
    for _ in range(20):
        assert round_trip(list(range(100)), codec)


def test_a_class_that_its_module_replaced_is_refused(codec: Codec) -> None:
    """The value would come back as an instance of the new class."""
    stale = dataclass(type("Cached", (), {"__module__": __name__, "__annotations__": {"a": "int"}}))
    assert "not the class that its module has" in refused(stale(1), codec)


@dataclass(eq=False)
class ByIdentity:
    a: int = 1


def test_keys_that_would_become_one_are_refused(codec: Codec) -> None:
    """Two objects may be different keys only by identity. Their stored forms are equal."""
    assert "the same stored form" in refused({ByIdentity(): 1, ByIdentity(): 2}, codec)
