"""Untrusted bytes that name classes: nothing runs, nothing is imported, and only CannotDecode is raised."""

from __future__ import annotations

import importlib.util
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
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

from scrapy_dq.codec import FORMAT, CannotDecode, CannotEncode, Codec
from support.hostile import corrupted, good
from support.packed_entries import META, OBJECT, SET, TUPLE, URL, extension, pack, reason

PACKAGE = __name__.partition(".")[0]

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
    """Yield a codec, and check afterwards that it has run no code of this module."""
    touched.clear()
    yield Codec(BookSpider())
    assert not touched


@pytest.mark.parametrize(
    "name",
    ["os.system", "scrapy.Spider", f"{__name__}.Plain", 1, ["os.system"], None, "\ud800"],
)
def test_only_imported_subclasses_of_request_are_built(name: Any, codec: Codec) -> None:
    """Scrapy's request_from_dict() would import and call any name."""
    if name is None:
        assert type(codec.decode(pack({0: name, 1: URL}))) is Request
    else:
        assert reason(pack({0: name, 1: URL}), codec)


@pytest.fixture
def unimported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a module that Python could import."""
    source = "import scrapy, typing\nclass Mine(scrapy.Request): ...\nclass P(typing.NamedTuple):\n  x: int\n"
    (tmp_path / "codec_unimported.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield "codec_unimported"
    sys.modules.pop("codec_unimported", None)


def test_a_request_class_is_not_imported(unimported: str, codec: Codec) -> None:
    """Only a worker that has already imported the module finds the class."""
    payload = pack({0: f"{unimported}.Mine", 1: URL})
    assert "not an imported subclass of Request" in reason(payload, codec)
    assert unimported not in sys.modules
    module = importlib.import_module(unimported)
    assert type(codec.decode(payload)) is module.Mine


def test_a_class_of_a_value_is_not_imported(unimported: str) -> None:
    """Not even a class in a package of the project is imported."""
    codec = Codec(BookSpider(), spider_modules=[unimported])
    payload = pack({1: URL, META: {"x": extension(OBJECT, [f"{unimported}:P", [1]])}})
    assert "no imported module 'codec_unimported'" in reason(payload, codec)
    assert unimported not in sys.modules
    importlib.import_module(unimported)
    assert codec.decode(payload).meta["x"] == (1,)


def test_a_module_that_loads_lazily_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading an attribute of a module that is not loaded yet would run its code, or its __getattr__()."""
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
    """Functions, other classes, other packages and re-exported names are refused."""
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
    """The state must have exactly the fields of the class, because no code runs that could add a field."""
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
def test_a_class_whose_methods_python_calls_implicitly_must_be_listed(
    name: str, state: dict[str, Any], codec: Codec
) -> None:
    """Python calls some methods even of a refused value: deleting an object calls its __del__."""
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


def test_a_frozen_dataclass_comes_back_as_a_member_of_a_set(codec: Codec) -> None:
    """A decoded frozen dataclass can be a key of a dict or a member of a set."""
    value = {Frozen(1), Frozen(2)}
    assert codec.decode(codec.encode(Request(URL, meta={"x": value}))).meta["x"] == value


class Bomb:
    def __reduce__(self) -> Any:
        return factory, ("unpickled",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_not_loaded(protocol: int, codec: Codec) -> None:
    """A pickle is neither read as an entry nor unpickled inside an entry."""
    bomb = pickle.dumps(Bomb(), protocol)
    assert "format" in reason(bomb, codec)
    assert reason(bytes((FORMAT,)) + bomb, codec)
    assert codec.decode(pack({1: URL, META: {"x": bomb}})).meta["x"] == bomb


def samples() -> list[bytes]:
    """Return valid entries that contain every kind of value, including instances of the project's classes."""
    price = Price.__new__(Price)
    price.amount = 1
    meta = {(1, "k"): [price, Color.RED, Point(1), BookItem(title="t")]}
    return [*good([URL] * 6), Codec(BookSpider()).encode(Request(URL, meta=meta))]


def test_a_truncated_entry_is_refused(codec: Codec) -> None:
    """An entry that is cut off after any byte is refused, and so is an entry with extra bytes."""
    for sample in samples():
        for length in range(len(sample)):
            reason(sample[:length], codec)
        reason(sample + b"\0", codec)
        reason(sample + sample, codec)


@pytest.mark.parametrize("levels", [60, 70, 500, 5000])
@pytest.mark.parametrize("code", [TUPLE, SET, OBJECT])
def test_deeply_nested_extensions_are_refused(levels: int, code: int, codec: Codec) -> None:
    """Unpacking nested extensions recursively would take 40 kB of C stack for each level."""
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


def test_a_corrupted_entry_raises_only_cannot_decode(codec: Codec) -> None:
    """Each of 20,000 corrupted entries decodes to a Request or raises CannotDecode."""
    decoded = 0
    for payload in corrupted(samples(), 20_000, random.Random(20)):
        with suppress(CannotDecode):
            assert codec.decode(payload).url.lower().startswith(("http:", "https:"))
            decoded += 1
    assert 500 < decoded < 15_000


@dataclass
class Busy:
    """A class whose methods would be called if an instance took the place of plain data."""

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
    """If the state could be an instance of a class, the codec would call methods of that class."""
    busy = extension(5, [f"{Busy.__module__}:Busy", {"path": "x"}])
    value = extension(5, [f"{Busy.__module__}:{cls}", busy])
    assert "Busy" in reason(pack({1: URL, META: {"x": value}}), codec) or cls == "Point"


@pytest.mark.parametrize("wrapped", [False, True])
def test_dumps_kwargs_of_a_json_request_are_plain_data(codec: Codec, wrapped: bool) -> None:
    """JsonRequest's constructor copies dumps_kwargs deeply, which would call methods of an instance."""
    busy: Any = extension(5, [f"{Busy.__module__}:Busy", {"path": "x"}])
    name = f"{JsonRequest.__module__}.{JsonRequest.__qualname__}"
    kwargs = {"x": [{"default": busy}]} if wrapped else busy
    assert "of the types that JSON has" in reason(pack({0: name, 1: URL, "dumps_kwargs": kwargs}), codec)
    request = JsonRequest(URL, data={"a": 1}, dumps_kwargs={"separators": (",", ":")})
    assert codec.decode(codec.encode(request)).dumps_kwargs == request.dumps_kwargs  # type: ignore[attr-defined]
