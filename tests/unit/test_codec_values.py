"""The values that meta, cb_kwargs and the like may hold: exact types, or a clear refusal."""

from __future__ import annotations

import enum
import http
import re
import socket
import sys
import time as struct_time
from array import array
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    UserString,
    defaultdict,
    deque,
    namedtuple,
)  # fmt: skip
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from threading import Lock
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import ExtType
from scrapy import Field, Item, Request, Spider
from scrapy.link import Link

from scrapy_dq.codec import FORMAT, BadType, CannotDecode, CannotEncode, Codec, Items
from scrapy_dq.codec.shown import shown
from scrapy_dq.codec.standard import SHAPES

URL = "https://example.com/"


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


class Word(str, enum.Enum):
    YES = "yes"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any = 0


class LoosePoint(Point):
    pass


class StrictPoint(Point):
    def __new__(cls, *args: Any) -> Any:
        raise AssertionError("a constructor was run")


Pair = namedtuple("Pair", "a b")
Renamed = namedtuple("AnotherName", "a")


class Shelf:
    class Position(NamedTuple):
        row: int


class Plain:
    pass


class Text(str):
    pass


class Data(bytes):
    pass


class Number(int):
    def __int__(self) -> int:
        raise AssertionError("a method was run")


class Ratio(float):
    pass


class Words(list[Any]):
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


def there_and_back(value: Any, codec: Codec) -> Any:
    return codec.decode(codec.encode(Request(URL, meta={"value": value}))).meta["value"]


def refused(value: Any, codec: Codec) -> str:
    with pytest.raises(CannotEncode) as caught:
        codec.encode(Request(URL, meta={"value": value}))
    assert str(caught.value).startswith("meta['value']")
    return str(caught.value)


def lifted(name: str, state: Any, codec: Codec) -> Any:
    """Return the instance of an entry that names this class."""
    return codec.value(msgpack.packb(ExtType(5, msgpack.packb([name, state]))))


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
    | st.sampled_from([*Color, *Level, *Word, Path("/a/b"), PurePosixPath("a"), PureWindowsPath("c:\\a")]),
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
    """Return the types in *value*, all the way down, with the order of dicts and the values of floats."""
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
    """Through all containers, classes and keys of dicts."""
    again = there_and_back(value, SHARED)
    assert again == value
    assert types_of(again) == types_of(value)


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
    """With its UTC offset fixed: the name of a zone is not kept."""
    for fold in (0, 1):
        moment = datetime(2026, 10, 25, 2, 30, 0, 123456, tzinfo=zone, fold=fold)
        again = there_and_back(moment, codec)
        assert again.utcoffset() == moment.utcoffset()
        assert again.astimezone(timezone.utc) == moment.astimezone(timezone.utc)
        assert type(again.tzinfo) is timezone


def test_a_time_of_day_keeps_its_offset_if_it_has_one(codec: Codec) -> None:
    """A zone without a date says no offset, and is refused rather than dropped."""
    for value in (time(1, 2, 3, 4, fold=1), time(1, tzinfo=timezone(timedelta(hours=2)))):
        again = there_and_back(value, codec)
        assert (again, again.fold, again.utcoffset()) == (value, value.fold, value.utcoffset())
    assert "UTC offset" in refused(time(1, tzinfo=ZoneInfo("Europe/Berlin")), codec)


@pytest.mark.parametrize(
    "text", ["1.50", "-0", "1E+4299", "1E-4299", "9" * 4300, "NaN", "sNaN12", "-Infinity"]
)
def test_a_decimal_keeps_every_digit(text: str, codec: Codec) -> None:
    """Signs, zeros, exponents and payloads."""
    assert str(there_and_back(Decimal(text), codec)) == str(Decimal(text))


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
        Words([1, [2]]),
        Fixed((1, [2])),
        Tags({1}),
        FixedTags({1}),
        TextDict(a=[1]),
        Ordered(b=1, a=[2]),
        Tally("aab"),
        Color.ALSO_RED,
        Word.YES,
    ],
    ids=lambda value: value.name if isinstance(value, enum.Enum) else repr(value),
)
def test_an_instance_of_the_projects_classes_comes_back(value: Any, codec: Codec) -> None:
    """meta={"item": MyItem()} is the commonest pattern there is."""
    again = there_and_back({"nested": [value]}, codec)["nested"][0]
    assert type(again) is type(value)
    assert again == value


def test_an_instance_is_rebuilt_without_running_its_classes_code(codec: Codec) -> None:
    """No __init__, no __post_init__, no __setitem__: their arguments would be untrusted."""
    price = Price(Decimal(1))
    price.checked = False
    assert there_and_back(price, codec).checked is False
    item = StrictItem.__new__(StrictItem)
    Item.__init__(item)
    Item.__setitem__(item, "title", "t")
    assert dict(there_and_back(item, codec)) == {"title": "t"}
    point = tuple.__new__(StrictPoint, (1, 2))
    assert there_and_back(point, codec) == point


def test_a_subclass_of_a_builtin_type_keeps_its_attributes(codec: Codec) -> None:
    """A str may have some, like any other object."""
    text = Text("a")
    text.language = ["en"]  # type: ignore[attr-defined]
    again = there_and_back({text: text}, codec)
    assert again == {"a": "a"}
    for found in (*again, *again.values()):
        assert (type(found), vars(found)) == (Text, {"language": ["en"]})
    text.language = open  # type: ignore[attr-defined]
    assert "language" in refused(text, codec)


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
    """Also in a container, as a key, and from a Queue."""
    again = there_and_back([{"a": (value,)}], codec)[0]["a"][0]
    assert (type(again), again) == (type(value), value)
    for name in ("default_factory", "maxlen", "tm_gmtoff"):
        assert getattr(again, name, None) == getattr(value, name, None)
    items = Items((), 10_000)
    assert items.decode(items.encode(value)) == value
    assert shown(codec.encode(Request(URL, meta={"a": value})), 10_000)["kind"] == "request"
    with suppress(TypeError):  # unhashable
        assert there_and_back({value: 1} if hash(value) else {}, codec) == {value: 1}


def test_a_worker_without_numpy_gets_the_plain_value(codec: Codec) -> None:
    """Nothing is imported because an entry names it."""
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
    """As BeautifulSoup's: it refers to its whole page."""
    text = type("NavigableString", (str,), {"__module__": "bs4.element"})("a")
    text.parent = open
    again = there_and_back({text: text}, codec)
    assert [*map(type, (*again, *again.values()))] == [str, str]


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
def test_what_is_listed_is_stored(
    value: Any, listed: list[str], codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason why it was not names DQ_TYPES."""
    monkeypatch.setattr(msgpack, "Markup", Markup, raising=False)
    assert "DQ_TYPES" in refused(value, codec)
    assert type(there_and_back(value, Codec(BookSpider(), types=listed))) is type(value)


def test_a_pattern_comes_back_with_its_flags(codec: Codec) -> None:
    """But not with re.DEBUG, which would print."""
    for pattern in (re.compile("a.b", re.I | re.S), re.compile(b"a")):
        assert there_and_back(pattern, codec) == pattern
    for state in (["a", int(re.DEBUG)], ["a", "b"], [1, 0], "a"):
        with pytest.raises(CannotDecode):
            lifted("re:Pattern", state, codec)


@pytest.mark.parametrize(
    "name", [*(shape.name for shape in SHAPES), "http:HTTPStatus", "urllib.parse:SplitResult"]
)
def test_a_state_of_another_shape_raises_nothing_else(name: str, codec: Codec) -> None:
    """Neither runs it code: a factory is one of some builtin types."""
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
    """Only Enums, named tuples, and the classes in SHAPES."""
    for state in ({}, [], [1], "", None):
        with pytest.raises(CannotDecode, match="is not stored"):
            lifted(name, state, codec)


def test_a_cached_property_is_computed_again(codec: Codec) -> None:
    """It is not a field, and nothing is lost without it."""
    value = Cached(2)
    assert value.double == 4
    again = there_and_back(value, codec)
    assert vars(again) == {"a": 2}
    assert again.double == 4


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
        (defaultdict(lambda: 1), "its default_factory is code"),
        (described_counter(), "has attributes (about)"),
        (Permission.READ | Permission.WRITE, "not a single member of Permission"),
        (sys.version_info, "'sys.version_info' is not stored"),
        (UserString("a"), "is not stored"),
        (Plain, "is not stored"),
        (Lock(), "is not stored"),
        (http, "is not stored"),
        (ZoneInfo("UTC"), "is not stored"),
        (Request(URL), "is not stored"),
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
def test_what_would_come_back_changed_is_refused(value: Any, reason: str, codec: Codec) -> None:
    """Rather kept on this worker than silently another type; as a part and as a key, too."""
    assert reason in refused(value, codec)
    assert reason in refused([{"a": (value,)}], codec)
    if type(value).__hash__ and not isinstance(value, Price):
        assert reason in refused({value: 1}, codec)


class Base:
    __slots__ = ("slot",)


class Step(Base):
    """A class like any other."""

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
    """Whatever these are, without running a method of it; unlisted it stays local, with a message."""
    Step.made = 0
    step = Step("click", on=("a", 1))
    listing = Codec(BookSpider(), types=[f"{__name__}.Step", f"{__name__}.Step.Inner"])
    assert "DQ_TYPES" in refused(step, codec)
    Step.made = 2
    again = there_and_back(step, listing)
    assert type(again) is Step
    assert (vars(again), again.slot) == ({"name": "click"}, {"on": ("a", 1)})
    assert type(there_and_back(Step.Inner(), listing)) is Step.Inner
    vars(step)["method"] = 5
    assert vars(there_and_back(step, listing)) == {"name": "click", "method": 5}


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
def test_what_cannot_be_carried_is_not_listed(name: str, reason: str) -> None:
    """Told as a worker starts, and not by a request that stays local."""
    with pytest.raises(BadType, match=reason):
        Codec(BookSpider(), types=[name])


def test_what_is_carried_anyway_may_be_listed() -> None:
    """It changes nothing."""
    listing = Codec(BookSpider(), types=["datetime.datetime", "decimal.Decimal"])
    assert there_and_back(Decimal(1), listing) == Decimal(1)


PAGE_METHODS = """
from typing import Any
class PageMethod:
    def __init__(self, method, *args, **kwargs):
        self.method, self.args, self.kwargs, self.result = method, args, kwargs, None
"""


@pytest.fixture
def page_method(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a class as that of scrapy-playwright 0.0.48, in a module of that name."""
    module = ModuleType("scrapy_playwright.page")
    exec(PAGE_METHODS, vars(module))
    monkeypatch.setitem(sys.modules, "scrapy_playwright.page", module)
    monkeypatch.setitem(sys.modules, "scrapy_playwright", ModuleType("scrapy_playwright"))
    monkeypatch.setattr(sys.modules["scrapy_playwright"], "page", module, raising=False)
    return vars(module)["PageMethod"]


def test_page_methods_are_carried_without_their_results(page_method: Any, codec: Codec) -> None:
    """What scrapy-playwright has found stays in the worker that ran it."""
    method = page_method("wait_for_selector", "div.quote", timeout=5000)
    method.result = object()
    again = there_and_back([method], codec)[0]
    assert type(again) is page_method
    assert vars(again) == {
        "method": "wait_for_selector", "args": ("div.quote",), "kwargs": {"timeout": 5000}, "result": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"method": 1}, {"args": []}, {"kwargs": None}, {"more": 1}],
    ids=" ".join,
)
def test_a_page_method_of_another_shape_is_not_read(
    changes: dict[str, Any], page_method: Any, codec: Codec
) -> None:
    """Whoever can write to Redis can have stored it."""
    state = {"method": "click", "args": ExtType(2, msgpack.packb([])), "kwargs": {}}

    def read(state: dict[str, Any]) -> Any:
        stored = ExtType(5, msgpack.packb([f"{page_method.__module__}:PageMethod", state]))
        return codec.decode(bytes((FORMAT,)) + msgpack.packb({1: URL, 8: {"x": stored}})).meta["x"]

    assert read(state).method == "click"
    with pytest.raises(CannotDecode, match="PageMethod"):
        read(state | changes)


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("goto", "file:///etc/passwd"), {}),
        (("set_input_files", "input", "/etc/passwd"), {}),
        (("screenshot",), {"path": "/tmp/x"}),
        (("add_script_tag",), {"path": "x"}),
        (("__class__",), {}),
    ],
)
def test_page_methods_that_reach_further_have_to_be_listed(
    args: Any, options: Any, page_method: Any, codec: Codec
) -> None:
    """Files, and other addresses; those that are listed are carried like any other class."""
    method = page_method(*args, **options)
    assert "DQ_TYPES lists scrapy_playwright.page.PageMethod" in refused(method, codec)
    listing = Codec(BookSpider(), types=["scrapy_playwright.page.PageMethod"])
    assert vars(there_and_back(method, listing)) == vars(method)
    payload = listing.encode(Request(URL, meta={"x": method}))
    with pytest.raises(CannotDecode, match="DQ_TYPES"):
        codec.decode(payload)


def test_the_project_is_the_packages_of_the_spider_modules() -> None:
    """A spider from elsewhere may use the items of SPIDER_MODULES' packages, not of its neighbours'."""
    spider = type("Elsewhere", (Spider,), {"name": "e", "__module__": "elsewhere.spiders"})()
    package, _, _ = __name__.partition(".")
    assert type(there_and_back(Point(1), Codec(spider, spider_modules=[f"{package}.spiders"]))) is Point
    assert "DQ_TYPES" in refused(Point(1), Codec(spider, spider_modules=["another", f"{package}x.spiders"]))
    assert "DQ_TYPES" in refused(Point(1), Codec(spider))


def test_scrapys_classes_do_not_become_the_projects_by_a_plain_spider() -> None:
    """scrapy.Spider's own module is not a project."""
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
def test_what_encodes_at_any_depth_decodes(shape: Any, codec: Codec) -> None:
    """Both ways count alike; 100 levels are too many for each."""
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
def test_what_contains_itself_is_refused(value: Any, codec: Codec) -> None:
    """By the limit of depth."""
    assert "contains itself" in refused(value, codec)


def test_shared_parts_do_not_explode(codec: Codec) -> None:
    """50 lists, each twice the one before: 2**50 values, refused by DQ_MAX_ENTRY_BYTES without a walk."""
    value: list[Any] = []
    for _ in range(50):
        value = [value, value]
    assert "DQ_MAX_ENTRY_BYTES = 1,048,576" in refused(value, codec)


def test_the_bound_is_of_one_entry_not_of_all() -> None:
    """A crawl encodes millions."""
    codec = Codec(BookSpider(), max_bytes=1000)
    for _ in range(20):
        assert there_and_back(list(range(100)), codec)


def test_a_class_that_its_module_replaced_is_refused(codec: Codec) -> None:
    """It would come back as its successor."""
    stale = dataclass(type("Cached", (), {"__module__": __name__, "__annotations__": {"a": "int"}}))
    assert "not the class that its module has" in refused(stale(1), codec)


@dataclass(eq=False)
class ByIdentity:
    a: int = 1


def test_keys_that_would_become_one_are_refused(codec: Codec) -> None:
    """Two objects that are keys by identity have the same state."""
    assert "the same stored form" in refused({ByIdentity(): 1, ByIdentity(): 2}, codec)


def test_a_set_is_the_same_bytes_in_every_order() -> None:
    """Of strings each process has its own: the names of start requests and of children come of the bytes."""
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
    """Workers of several versions derive the ids of entries from them."""
    assert codec.packed(value).hex() == packed
    assert types_of(codec.value(bytes.fromhex(packed))) == types_of(value)
