"""Subclasses of Request: a request that would come back with other values is refused."""

from __future__ import annotations

import json
import math
import pickle
from functools import cached_property
from typing import Any

import pytest
from scrapy import Request

from scrapy_dq.codec import CannotEncode, Codec, Serializer
from scrapy_dq.scheduling.due_times import as_stored
from scrapy_dq.scheduling.stored_form import shorten_referer
from support.codec_requests import SHARED, URL, BookSpider, TokenRequest, described, same


class UrlRequest(Request):
    """A subclass whose `attributes` list only the URL."""

    attributes = ("url",)


class ForgetfulRequest(Request):
    """A subclass that cannot be rebuilt, because its `attributes` lack a required argument."""

    def __init__(self, url: str, secret: str, **kwargs: Any) -> None:
        super().__init__(url, **kwargs)


class WaitingRequest(Request):
    """A subclass that does not list its extra attribute, and can be built without it."""

    def __init__(self, *args: Any, wait_s: int = 0, **kwargs: Any) -> None:
        self.wait_s = wait_s
        super().__init__(*args, **kwargs)


class ShoutingRequest(Request):
    """A subclass whose body changes when it is rebuilt."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_body(self.body + b"!")


@pytest.fixture
def spider() -> BookSpider:
    return BookSpider()


@pytest.fixture
def codec(spider: BookSpider) -> Codec:
    return Codec(spider)


def test_a_request_class_that_cannot_be_found_by_name_is_refused(codec: Codec) -> None:
    """Another worker could not find a class that is defined in a function."""

    class Local(Request):
        pass

    with pytest.raises(CannotEncode, match="Local is not a class that another worker can find"):
        codec.encode(Local(URL))


def test_only_the_newer_of_two_request_classes_with_one_name_is_stored(codec: Codec) -> None:
    """After a module is loaded again, its old and new classes have one name, which leads to the new class."""
    older, newer = (type("Twice", (Request,), {"__module__": __name__}) for _ in range(2))
    assert type(codec.decode(codec.encode(newer(URL)))) is newer
    with pytest.raises(CannotEncode, match=r"Twice is not a class that another worker can find"):
        codec.encode(older(URL))


def test_a_request_class_that_cannot_be_rebuilt_is_refused(codec: Codec) -> None:
    """The encoder checks whether it can decode the entry. Otherwise a worker would have to bury it."""
    with pytest.raises(CannotEncode, match=r"ForgetfulRequest cannot be rebuilt .* 'secret'"):
        codec.encode(ForgetfulRequest(URL, "x"))
    with pytest.raises(CannotEncode, match=r"ShoutingRequest is rebuilt .* another body"):
        codec.encode(ShoutingRequest(URL))
    for cls in (TokenRequest, UrlRequest):
        again = codec.decode(codec.encode(cls(URL)))
        assert (type(again), again.url) == (cls, URL)


def test_attributes_that_a_request_class_does_not_list_are_not_dropped(codec: Codec) -> None:
    """An unlisted attribute, as scrapy-selenium's requests have, would come back with its default."""
    for _ in range(2):
        assert codec.decode(codec.encode(WaitingRequest(URL))).wait_s == 0  # type: ignore[attr-defined]
        with pytest.raises(CannotEncode, match=r"WaitingRequest is rebuilt with another wait_s"):
            codec.encode(WaitingRequest(URL, wait_s=9))


class MakingRequest(Request):
    """A request with attributes that its constructor makes, and with a cached property."""

    # Scrapy's Request has slots from some version on.
    __slots__ = ("slotted",) if hasattr(Request(URL), "__dict__") else ("__dict__", "slotted")

    def __init__(self, *args: Any, slotted: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slotted = slotted
        self.lock = object()

    @cached_property
    def short(self) -> str:
        return self.url[:3]


def test_attributes_that_a_request_class_creates_need_not_come_back(codec: Codec) -> None:
    """A cached property, or an object that the constructor creates, may differ. An argument must not."""
    for _ in range(2):
        request = MakingRequest(URL)
        assert request.short
        assert type(codec.decode(codec.encode(request))) is MakingRequest
        with pytest.raises(CannotEncode, match="is rebuilt with another slotted"):
            codec.encode(MakingRequest(URL, slotted=1))


class SigningRequest(Request):
    """A subclass whose constructor changes all its arguments, even nested ones."""

    def __init__(self, url: str, **kwargs: Any) -> None:
        for name in ("headers", "meta", "cb_kwargs", "cookies"):
            kwargs.setdefault(name, {})["X-Signature"] = "text"
        kwargs["meta"].get("tags", []).append("signed")
        super().__init__(url, **kwargs)


class ApiRequest(Request):
    """A subclass whose constructor merges its arguments into the attributes, and adds to numbers."""

    def __init__(self, url: str, params: Any = None, **kwargs: Any) -> None:
        kwargs["meta"] = {**(kwargs.get("meta") or {}), "api": params or {}}
        kwargs["cb_kwargs"] = {**(kwargs.get("cb_kwargs") or {}), "params": params}
        kwargs["cookies"] = {**(kwargs.get("cookies") or {}), "api": str(params)}
        kwargs["flags"] = [*(kwargs.get("flags") or ()), "api"]
        kwargs["priority"] = kwargs.get("priority", 0) + 10
        kwargs["dont_filter"] = not kwargs.get("dont_filter")
        kwargs["errback"] = None
        super().__init__(url, **kwargs)
        self.method = "POST" if self.method == "GET" else "GET"


SERIALIZERS = pytest.mark.parametrize("serializer", [None, Serializer(json), Serializer(pickle)])


@SERIALIZERS
@pytest.mark.parametrize("cls", [SigningRequest, ApiRequest])
def test_a_request_whose_constructor_changes_it_comes_back_as_stored(
    cls: Any, serializer: Serializer | None, spider: BookSpider
) -> None:
    """Rebuilding runs the constructor again; its changes must not be applied twice."""
    codec = Codec(spider, serializer=serializer)
    request = cls(
        URL,
        headers={"A": "1"},
        meta={"x": {"y": 1}, "tags": ["a"]},
        cb_kwargs={"k": 1},
        cookies={"c": "d"},
        flags=["f"],
    )
    assert same(described(codec.decode(codec.encode(cls(URL))), spider), described(cls(URL), spider))
    if cls is ApiRequest:
        request.meta["api"] = {"render": False}
    request.errback = spider.parse_book
    before = described(request, spider)
    again = codec.decode(codec.encode(request))
    assert type(again) is cls
    assert same(described(again, spider), before)
    assert same(described(request, spider), before)


def test_a_constructor_gets_copies_of_the_values_of_a_dict(codec: Codec) -> None:
    """from_dict() builds requests adopted from scrapy-redis. A constructor may change its arguments."""
    name = f"{__name__}.SigningRequest"
    again = codec.from_dict({"_class": name, "url": URL, "headers": {b"A": [b"1"]}, "meta": {"tags": ["a"]}})
    assert (dict(again.headers), again.meta) == ({b"A": [b"1"]}, {"tags": ["a"]})


class LimitedRequest(Request):
    """A subclass that accepts no large priority, and counts how often it was built."""

    attributes = (*Request.attributes, "built", "item", "codes")

    def __init__(self, *args: Any, built: int = 0, item: Any = None, codes: Any = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.priority > 5:
            raise ValueError("too urgent")
        self.built = built + 1 if built else 0
        self.item = item
        self.codes = codes
        if isinstance(codes, set):
            codes.add(len(codes))


@SERIALIZERS
def test_each_request_of_a_class_is_checked(serializer: Serializer | None, spider: BookSpider) -> None:
    """The constructor may accept one value and refuse another, so one checked request is not enough."""
    codec = Codec(spider, serializer=serializer)
    assert type(codec.decode(codec.encode(LimitedRequest(URL, item=math.nan)))) is LimitedRequest
    urgent = LimitedRequest(URL)
    urgent.priority = 6
    with pytest.raises(CannotEncode, match=r"LimitedRequest cannot be rebuilt .*too urgent"):
        codec.encode(urgent)
    with pytest.raises(CannotEncode, match=r"LimitedRequest is rebuilt .* another built"):
        codec.encode(LimitedRequest(URL, built=1))
    if serializer is None:  # JSON has no sets; a set is not copied for the constructor
        with pytest.raises(CannotEncode, match=r"LimitedRequest is rebuilt .* another codes"):
            codec.encode(LimitedRequest(URL, codes={"a"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("meta", {"a": 1}), ("priority", 1), ("method", "POST")],
)
def test_an_attribute_of_request_that_a_class_does_not_list_is_not_dropped(name: str, value: Any) -> None:
    """The class would give the attribute its default when the request is rebuilt."""
    with pytest.raises(CannotEncode, match=f"UrlRequest is rebuilt with another {name}"):
        SHARED.encode(UrlRequest(URL, **{name: value}))


class Unsure:
    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_a_value_that_cannot_be_compared_is_named(codec: Codec) -> None:
    """For example, the comparison of a numpy array raises."""
    with pytest.raises(CannotEncode, match="WaitingRequest is rebuilt with another wait_s"):
        codec.encode(WaitingRequest(URL, wait_s=Unsure()))  # type: ignore[arg-type]
    request = WaitingRequest(URL)
    request.extra = [Unsure()]  # type: ignore[attr-defined]
    with pytest.raises(CannotEncode, match="WaitingRequest is rebuilt with another extra"):
        codec.encode(request)


class Slotted:
    __slots__ = ("number",)

    def __init__(self, number: int = 0) -> None:
        self.number = number


class SlottedRequest(Request):
    def __init__(self, *args: Any, number: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.extras = [Slotted(number)]


def test_the_contents_of_an_attribute_are_compared(codec: Codec) -> None:
    """The comparison also covers the elements of lists, and the `__slots__` of objects."""
    for _ in range(2):
        assert codec.decode(codec.encode(SlottedRequest(URL))).extras[0].number == 0  # type: ignore[attr-defined]
        with pytest.raises(CannotEncode, match="is rebuilt with another extras"):
            codec.encode(SlottedRequest(URL, number=1))


def test_a_copy_that_is_stored_does_not_go_through_the_constructor(codec: Codec) -> None:
    """For example, as_stored() makes a copy without dq_delay, and shorten_referer() a copy's Referer."""
    request = ApiRequest(URL, {"render": True}, headers={"Referer": "http://a/" + "x" * 3000})
    request.meta["dq_delay"] = 5
    stored = as_stored(request)
    shorten_referer(stored)
    again = codec.decode(codec.encode(stored))
    assert (again.priority, again.meta) == (10, {"api": {"render": True}})
    assert again.headers == {b"Referer": [b"http://a/"]}
    assert "dq_delay" in request.meta
    assert len(request.headers[b"Referer"] or b"") > 3000
    with pytest.raises(CannotEncode, match="is rebuilt with another wait_s"):
        codec.encode(as_stored(WaitingRequest(URL, wait_s=9, meta={"dq_delay": 5})))
