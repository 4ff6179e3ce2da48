"""Request <-> bytes: what comes back equals what went in, and what would not is refused at once."""

from __future__ import annotations

import json
import logging
import math
import pickle
from functools import cached_property, partial
from logging import LoggerAdapter
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import HtmlResponse, JsonRequest, Response, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider

from scrapy_dq.codec import FORMAT, CannotDecode, CannotEncode, Codec, Serializer
from scrapy_dq.scheduling.due_times import as_stored
from scrapy_dq.scheduling.stored_form import shorten_referer

URL = "https://example.com/a?b=1"


class Base(Spider):
    def parse_overridden(self, response: Response) -> Any: ...


class BookSpider(Base):
    name = "books"
    rules = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.assigned = lambda response: None

    def parse(self, response: Response, **kwargs: Any) -> Any: ...

    def parse_book(self, response: Response) -> Any: ...

    def __parse_private(self, response: Response) -> Any: ...

    def parse_overridden(self, response: Response) -> Any: ...

    def private(self) -> Any:
        return self.__parse_private

    def overridden(self) -> Any:
        return super().parse_overridden

    @classmethod
    def parse_class(cls, response: Response) -> Any: ...

    @staticmethod
    def parse_static(response: Response) -> Any: ...

    async def start(self) -> Any:
        yield

    def start_requests(self) -> Any: ...

    def closed(self, reason: str) -> Any: ...

    @classmethod
    def update_settings(cls, settings: Any) -> None: ...

    def __call__(self, response: Response) -> Any: ...


class Links(CrawlSpider):
    name = "links"
    rules = (Rule(LinkExtractor(), callback="parse_page"),)

    def parse_page(self, response: Response) -> Any: ...


class Sitemaps(SitemapSpider):
    name = "sitemaps"


class TokenRequest(Request):
    """A subclass that names what it adds."""

    attributes = (*Request.attributes, "token")

    def __init__(self, *args: Any, token: Any = "none", **kwargs: Any) -> None:
        self.token = token
        super().__init__(*args, **kwargs)


class UrlRequest(Request):
    """A subclass that names a single attribute."""

    attributes = ("url",)


class ForgetfulRequest(Request):
    """A subclass that cannot be rebuilt: it does not name what its constructor wants."""

    def __init__(self, url: str, secret: str, **kwargs: Any) -> None:
        super().__init__(url, **kwargs)


class WaitingRequest(Request):
    """A subclass that does not name what it adds, and can be built without it."""

    def __init__(self, *args: Any, wait_s: int = 0, **kwargs: Any) -> None:
        self.wait_s = wait_s
        super().__init__(*args, **kwargs)


class ShoutingRequest(Request):
    """A subclass that comes back changed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_body(self.body + b"!")


@pytest.fixture
def spider() -> BookSpider:
    return BookSpider()


@pytest.fixture
def codec(spider: BookSpider) -> Codec:
    return Codec(spider)


def entry(**fields: Any) -> bytes:
    """Return the bytes of an entry as FORMAT 1 lays it out."""
    keys = ["_class", "url", "callback", "errback", "method", "headers", "body", "cookies", "meta"]
    keys += ["encoding", "priority", "dont_filter", "flags", "cb_kwargs", "depth", "referer"]
    fields = {"url": URL, **fields}
    return bytes((FORMAT,)) + msgpack.packb({keys.index(name): value for name, value in fields.items()})


def same(a: Any, b: Any) -> bool:
    """Return whether *a* and *b* are equal, in all types and in the order of dicts, too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def described(request: Request, spider: Spider) -> dict[str, Any]:
    names = {NO_CALLBACK: "NO_CALLBACK"}
    fields = {name: getattr(request, name) for name in request.attributes}
    for name in ("callback", "errback"):
        fields[name] = names.get(fields[name]) or getattr(fields[name], "__name__", None)
    return fields | {"headers": dict(request.headers), "headers encoding": request.headers.encoding}


SPIDER = BookSpider()
SHARED = Codec(SPIDER, max_bytes=8_000_000)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCALARS, inner, max_size=4),
    max_leaves=12,
)
METAS = st.builds(
    dict, st.dictionaries(st.text(max_size=8), VALUES, max_size=4), depth=st.integers() | st.booleans()
) | st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
CONTROLS = {*range(32), 127} - {ord("\t")}
HEADER_VALUES = st.binary(max_size=12).filter(lambda data: not CONTROLS & set(data))
HEADERS = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,9}", fullmatch=True),
    st.lists(HEADER_VALUES, max_size=3),
    max_size=4,
)
COOKIE_TEXTS = st.text(max_size=5).filter(lambda text: not CONTROLS & set(map(ord, text)))
COOKIE_BYTES = st.binary(max_size=5).filter(lambda data: not CONTROLS & set(data))
COOKIES = st.dictionaries(COOKIE_TEXTS, COOKIE_TEXTS, max_size=3) | st.lists(
    st.fixed_dictionaries({"name": COOKIE_TEXTS, "value": COOKIE_TEXTS | COOKIE_BYTES | st.integers()}),
    max_size=3,
)
CALLBACKS = st.sampled_from(
    [None, NO_CALLBACK, SPIDER.parse, SPIDER._parse, SPIDER.parse_book, SPIDER.private(), SPIDER.parse_class]
)
ATTRIBUTES = {
    "callback": CALLBACKS,
    "errback": CALLBACKS,
    "method": st.sampled_from(["GET", "POST", "put", "PROPFIND"]),
    "headers": HEADERS,
    "cookies": COOKIES,
    "meta": METAS,
    "encoding": st.sampled_from(["utf-8", "latin-1", "cp1252", "gbk"]),
    "priority": st.integers(),
    "dont_filter": st.booleans(),
    "flags": st.lists(st.text(max_size=5), max_size=3),
    "cb_kwargs": METAS,
}
URLS = st.builds(
    "{}://{}/{}?{}#{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(["example.com", "user:pa ss@exämple.com:8080", "[::1]", "exa mple.com", "x\xa0y"]),
    *[st.text(st.characters(codec="utf-8"), max_size=10).map(lambda s: s.replace("/", "")) for _ in range(3)],
)
TEXTS = st.text(st.characters(codec="ascii"), max_size=8)
BODIES = {
    Request: st.fixed_dictionaries({}, optional={"body": st.binary()}),
    TokenRequest: st.fixed_dictionaries({}, optional={"body": st.binary(), "token": VALUES}),
    FormRequest: st.fixed_dictionaries(
        {}, optional={"formdata": st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS, max_size=2), max_size=3)}
    ),
    JsonRequest: st.fixed_dictionaries({}, optional={"data": st.dictionaries(TEXTS, TEXTS, max_size=3)})
    | st.fixed_dictionaries({"body": st.binary(), "dumps_kwargs": st.just({"indent": 2})}),
    XmlRpcRequest: st.fixed_dictionaries(
        {"methodname": st.just("f")}, optional={"params": st.tuples(st.integers(0, 9), st.text("abc"))}
    ).filter(lambda k: "params" in k)
    | st.just({}),
}


@st.composite
def requests(draw: st.DrawFn) -> Request:
    cls = draw(st.sampled_from(list(BODIES)))
    attributes = draw(st.fixed_dictionaries({}, optional=ATTRIBUTES))
    try:
        request = cls(draw(URLS), **attributes, **draw(BODIES[cls]))
        Request(request.url)  # w3lib before 2.5 makes http://::1/ of [::1], and nothing of that
    except ValueError:  # such as "Invalid IPv6 URL"
        return cls(URL, **attributes)
    return request


@given(requests())
def test_every_request_comes_back_as_it_was(request: Request) -> None:
    """Class, URL, body, headers and all other attributes are equal, in their types and in order, too."""
    again = SHARED.decode(SHARED.encode(request))
    assert type(again) is type(request)
    assert same(described(again, SPIDER), described(request, SPIDER))
    if NO_CALLBACK not in (request.callback, request.errback):
        assert again.to_dict(spider=SPIDER) == request.to_dict(spider=SPIDER)


def test_what_a_constructor_would_change_comes_back_as_it_was(codec: Codec) -> None:
    """A header that was taken off, and a method that is not in capitals."""
    request = JsonRequest(URL, data=1)
    del request.headers["Accept"]
    request.method = "get"
    again = codec.decode(codec.encode(request))
    assert (again.method, again.headers) == ("get", {b"Content-Type": [b"application/json"]})


def test_a_plain_get_is_little_more_than_its_url(codec: Codec, spider: BookSpider) -> None:
    """Defaults are left out: 10 million entries are kept in memory."""
    assert len(codec.encode(Request(URL))) == len(URL) + 4
    request = Request(URL, callback=spider.parse_book, meta={"depth": 3}, headers={"Referer": "x"})
    assert len(codec.encode(request)) < len(URL) + 45


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "url", ["http://exa mple.com/ä?ö=%zz", "http://x\xa0y/?é", "http://a..é/", "http://a/?%FF%FEa%00"]
)
@pytest.mark.parametrize("cls", [Request, TokenRequest])
def test_a_url_is_not_made_safe_twice(cls: Any, url: str, encoding: str, codec: Codec) -> None:
    """safe_url_string() changes some safe URLs again: spaces in hosts, queries of UTF-16 pages."""
    try:
        request = cls(url, encoding=encoding)
    except UnicodeError:
        pytest.skip("an older w3lib that cannot make it safe once")
    again = codec.decode(codec.encode(request))
    assert (again.url, again.meta) == (request.url, {})


@pytest.mark.parametrize("verbatim", [True, False, 1])
def test_a_verbatim_url_comes_back_verbatim(verbatim: Any, codec: Codec) -> None:
    """meta["verbatim_url"] itself is kept, and means what it meant."""
    request = Request("http://example.com/a b/ä?x=[]", meta={"a": 1, "verbatim_url": verbatim, "b": 2})
    again = codec.decode(codec.encode(request))
    assert again.url == request.url
    assert list(again.meta.items()) == list(request.meta.items())


def test_a_start_request_comes_back_marked_as_seeded(codec: Codec) -> None:
    """A retry copies meta; as a second seed it would be dropped as admitted, and lost."""
    request = Request(URL, meta={"is_start_request": True})
    assert codec.decode(codec.encode(request)).meta == {"is_start_request": True, "dq_seeded": True}
    assert "dq_seeded" not in request.meta
    for meta in ({"is_start_request": False}, {"depth": 1}):
        assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta


def test_a_crawl_spiders_requests_are_stored(codec: Codec) -> None:
    """Its meta["link_text"] is an lxml string, a subclass of str, and comes back as a str."""
    spider = Links()
    spider._follow_links = True
    codec = Codec(spider)
    page = HtmlResponse(URL, body=b"<a href='/x'>There</a>", request=Request(URL))
    (request,) = spider._requests_to_follow(page)
    assert request is not None
    assert type(request.meta["link_text"]) is not str
    again = codec.decode(codec.encode(request))
    assert again.meta == {"rule": 0, "link_text": "There"}
    assert type(again.meta["link_text"]) is str
    assert (again.callback, again.errback) == (spider._callback, spider._errback)


def test_a_sitemap_spiders_requests_are_stored() -> None:
    """Its own callback is Scrapy's, and is allowed."""
    spider = Sitemaps()
    codec = Codec(spider)
    request = Request(URL, callback=spider._parse_sitemap)
    assert codec.decode(codec.encode(request)).callback == spider._parse_sitemap


def test_a_method_that_an_attribute_hides_is_the_classes_method(spider: BookSpider, codec: Codec) -> None:
    """Attributes of the spider object play no part, on either side."""
    request = Request(URL, callback=spider.parse_book)
    payload = codec.encode(request)
    spider.parse_book = print  # type: ignore[method-assign, assignment]
    assert codec.decode(payload).callback == request.callback
    assert codec.encode(request) == payload


class Page:
    """An object with callbacks, which a spider has."""

    def parse(self, response: Response) -> Any: ...

    def fail(self, failure: Any) -> Any: ...

    @classmethod
    def parse_any(cls, response: Response) -> Any: ...

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class PagesSpider(BookSpider):
    of_class = Page().parse

    def __init__(self) -> None:
        super().__init__()
        self.page = Page().parse
        self.fail = Page().fail
        self.any_page = Page.parse_any
        self.parse_book = Page().parse  # type: ignore[method-assign]
        self.closed = Page().parse  # type: ignore[method-assign]
        self.again = self.parse_overridden
        self.stop = LoggerAdapter(logging.getLogger(), {}).info


@pytest.mark.parametrize("serializer", [None, Serializer(json)])
@pytest.mark.parametrize("name", ["page", "of_class", "any_page"])
def test_a_method_of_an_object_that_the_spider_has_is_stored_by_the_attributes_name(
    name: str, serializer: Serializer | None
) -> None:
    """As with a JOBDIR; another worker calls its own spider's object."""
    here, there = PagesSpider(), PagesSpider()
    payload = Codec(here, serializer=serializer).encode(Request(URL, getattr(here, name), errback=here.fail))
    again = Codec(there, serializer=serializer).decode(payload)
    assert (again.callback, again.errback) == (getattr(there, name), there.fail)


def test_a_method_that_the_spider_gets_later_is_stored_by_the_attributes_name() -> None:
    """`start()` may make the object."""
    spider = PagesSpider()
    codec = Codec(spider)
    spider.late = Page().parse  # type: ignore[attr-defined]
    payload = codec.encode(Request(URL, spider.late))  # type: ignore[attr-defined]
    assert codec.decode(payload).callback == spider.late  # type: ignore[attr-defined]
    spider.late = Page().parse  # type: ignore[attr-defined]
    assert codec.decode(payload).callback == spider.late  # type: ignore[attr-defined]


@pytest.mark.parametrize("serializer", [None, Serializer(json)])
def test_a_method_of_an_object_that_no_attribute_leads_to_is_refused(serializer: Serializer | None) -> None:
    """Another object's, one that the name of a method hides, a hook, and what a library's class defines."""
    spider = PagesSpider()
    codec = Codec(spider, serializer=serializer)
    hidden, hook = spider.parse_book, spider.closed
    for callback in (Page().parse, hidden, hook, spider.stop):
        with pytest.raises(CannotEncode, match="callback"):
            codec.encode(Request(URL, callback))


@pytest.mark.parametrize("name", ["stop", "closed", "again", "crawler", "assigned", "helper"])
def test_an_entry_calls_no_other_attribute_of_the_spider(name: str) -> None:
    """A library's method may do more than parse a page."""
    codec = Codec(PagesSpider())
    codec.decode(entry(callback="page"))
    with pytest.raises(CannotDecode, match="has no callback"):
        codec.decode(entry(callback=name))


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, response: Response) -> Any: ...


@pytest.mark.parametrize("refused", [
    lambda response: None, partial(print, 1), print, BookSpider().parse_book, BookSpider.parse_book,
    BookSpider.parse_static, Unhashable(), SPIDER.assigned, SPIDER.overridden(), SPIDER.closed,
    SPIDER.__call__, SPIDER.log,
])  # fmt: skip
@pytest.mark.parametrize("kind", ["callback", "errback"])
def test_a_callback_that_no_name_leads_to_is_refused(refused: Any, kind: str) -> None:
    """What encodes must also decode. The reason says which, and whose."""
    with pytest.raises(CannotEncode, match=f"^{kind}: .* is not a method of the spider 'books'"):
        SHARED.encode(Request(URL, **{kind: refused}))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "FILE:/etc/passwd", "ftp://example.com/", "data:,x"])
def test_a_url_of_another_scheme_is_refused_by_the_settings_name(url: str, codec: Codec) -> None:
    """The message names the scheme and DQ_URL_SCHEMES."""
    request = Request(URL)
    request._url = url
    with pytest.raises(
        CannotEncode, match=r"^url: the scheme '\w+' is not in DQ_URL_SCHEMES \(http, https\)$"
    ):
        codec.encode(request)


def test_the_schemes_are_a_setting(spider: BookSpider) -> None:
    """What is allowed goes both ways; capitals do not matter."""
    codec = Codec(spider, schemes=["FTP", "data"])
    assert codec.decode(codec.encode(Request("ftp://example.com/"))).url == "ftp://example.com/"
    with pytest.raises(CannotEncode):
        codec.encode(Request(URL))


def test_an_entry_that_is_too_large_is_refused_with_both_figures(spider: BookSpider) -> None:
    """The message names DQ_MAX_ENTRY_BYTES; the same bound holds on the way back."""
    small, large = Codec(spider, max_bytes=2048), Codec(spider)
    with pytest.raises(CannotEncode, match=r"^3,\d{3} bytes are more than DQ_MAX_ENTRY_BYTES = 2,048"):
        small.encode(Request(URL, body=b"x" * 3000))
    with pytest.raises(CannotDecode, match=r"DQ_MAX_ENTRY_BYTES = 2,048"):
        small.decode(large.encode(Request(URL, body=b"x" * 3000)))
    request = Request(URL, body=b"x" * (2048 - len(small.encode(Request(URL))) - 4))
    assert len(small.encode(request)) == 2048
    assert small.decode(small.encode(request)).body == request.body


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("headers", {b"X": [b"1\r\nEvil: 2"]}),
        ("headers", {b"X": (b"1",)}),
        ("method", "GET / HTTP/1.1\r\n"),
        ("priority", 1.5),
        ("flags", ("a",)),
        ("_body", "text"),
        ("_url", "http://example.com/\r\nHost: evil"),
    ],
)
def test_an_attribute_that_would_not_decode_is_refused(attribute: str, value: Any, codec: Codec) -> None:
    """Both ends make the same checks."""
    request = Request(URL)
    if attribute == "headers":
        dict.update(request.headers, value)
    else:
        setattr(request, attribute, value)
    with pytest.raises(CannotEncode):
        codec.encode(request)


@pytest.mark.parametrize("serializer", [None, Serializer(msgpack)])
@pytest.mark.parametrize("encoding", ["charmap", "punycode", "hex", "no-such-encoding"])
def test_no_encoding_of_a_page_keeps_its_links_in_one_worker(
    encoding: str, serializer: Serializer | None, spider: BookSpider
) -> None:
    """A web site names its encoding, and `response.follow` copies it; the URL is encoded already."""
    codec = Codec(spider, serializer=serializer)
    request = Request("http://example.com/?q=%C3%A9", body=b"\xe9")
    request._encoding = encoding
    again = codec.decode(codec.encode(request))
    assert (again.url, again.body, again.encoding) == (request.url, request.body, "utf-8")


def test_the_reason_says_where_in_the_request_the_trouble_is(codec: Codec) -> None:
    """A person finds the value by it."""
    request = Request(URL, cb_kwargs={"books": [{"file": 1}, {"file": open}]})
    with pytest.raises(
        CannotEncode, match=r"^cb_kwargs\['books'\]\[1\]\['file'\]: a 'builtins\.builtin_function"
    ):
        codec.encode(request)


def test_a_request_class_that_is_found_by_no_name_is_refused(codec: Codec) -> None:
    """Another worker would not have a class defined in a function."""

    class Local(Request):
        pass

    with pytest.raises(CannotEncode, match="Local is not a class that another worker can find"):
        codec.encode(Local(URL))


def test_of_two_request_classes_with_one_name_the_newer_is_stored(codec: Codec) -> None:
    """After a module was loaded again; an entry cannot say which it means."""
    older, newer = (type("Twice", (Request,), {"__module__": __name__}) for _ in range(2))
    assert type(codec.decode(codec.encode(newer(URL)))) is newer
    with pytest.raises(CannotEncode, match=r"Twice is not a class that another worker can find"):
        codec.encode(older(URL))


def test_a_request_class_that_cannot_be_rebuilt_is_refused(codec: Codec) -> None:
    """Its first entry is decoded at once, rather than buried by every worker."""
    with pytest.raises(CannotEncode, match=r"ForgetfulRequest cannot be rebuilt .* 'secret'"):
        codec.encode(ForgetfulRequest(URL, "x"))
    with pytest.raises(CannotEncode, match=r"ShoutingRequest is rebuilt .* another body"):
        codec.encode(ShoutingRequest(URL))
    for cls in (TokenRequest, UrlRequest):
        again = codec.decode(codec.encode(cls(URL)))
        assert (type(again), again.url) == (cls, URL)


def test_what_a_request_class_does_not_name_is_not_dropped(codec: Codec) -> None:
    """As those of scrapy-selenium: it would come back with the default, from the first one or a later one."""
    for _ in range(2):
        assert codec.decode(codec.encode(WaitingRequest(URL))).wait_s == 0  # type: ignore[attr-defined]
        with pytest.raises(CannotEncode, match=r"WaitingRequest is rebuilt with another wait_s"):
            codec.encode(WaitingRequest(URL, wait_s=9))


class MakingRequest(Request):
    """Has attributes that its constructor makes, and one that is computed when it is needed."""

    # Scrapy's has slots from some version on.
    __slots__ = ("slotted",) if hasattr(Request(URL), "__dict__") else ("__dict__", "slotted")

    def __init__(self, *args: Any, slotted: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slotted = slotted
        self.lock = object()

    @cached_property
    def short(self) -> str:
        return self.url[:3]


def test_what_a_request_class_makes_by_itself_need_not_come_back(codec: Codec) -> None:
    """An object, a cached property; what it was given in a slot has to."""
    for _ in range(2):
        request = MakingRequest(URL)
        assert request.short
        assert type(codec.decode(codec.encode(request))) is MakingRequest
        with pytest.raises(CannotEncode, match="is rebuilt with another slotted"):
            codec.encode(MakingRequest(URL, slotted=1))


class SigningRequest(Request):
    """A subclass whose constructor modifies all that it is given, in depth."""

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
def test_what_a_constructor_changes_comes_back_as_it_was_stored(
    cls: Any, serializer: Serializer | None, spider: BookSpider
) -> None:
    """A request is rebuilt by its constructor, which changes it a second time."""
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


def test_a_constructors_arguments_are_copies_in_a_dict_as_well(codec: Codec) -> None:
    """A request of scrapy-redis is adopted."""
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
def test_each_request_of_a_class_is_checked_not_the_first_alone(
    serializer: Serializer | None, spider: BookSpider
) -> None:
    """A constructor may treat one value in another way than the next."""
    codec = Codec(spider, serializer=serializer)
    assert type(codec.decode(codec.encode(LimitedRequest(URL, item=math.nan)))) is LimitedRequest
    urgent = LimitedRequest(URL)
    urgent.priority = 6
    with pytest.raises(CannotEncode, match=r"LimitedRequest cannot be rebuilt .*too urgent"):
        codec.encode(urgent)
    with pytest.raises(CannotEncode, match=r"LimitedRequest is rebuilt .* another built"):
        codec.encode(LimitedRequest(URL, built=1))
    if serializer is None:  # JSON has no sets; one is not copied for the constructor
        with pytest.raises(CannotEncode, match=r"LimitedRequest is rebuilt .* another codes"):
            codec.encode(LimitedRequest(URL, codes={"a"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("meta", {"a": 1}), ("priority", 1), ("method", "POST")],
)
def test_an_attribute_of_request_that_a_class_does_not_list_is_not_dropped(name: str, value: Any) -> None:
    """It would come back with the default."""
    with pytest.raises(CannotEncode, match=f"UrlRequest is rebuilt with another {name}"):
        SHARED.encode(UrlRequest(URL, **{name: value}))


class Unsure:
    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_a_value_that_cannot_be_compared_is_named(codec: Codec) -> None:
    """As an array of numpy."""
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


def test_what_an_attribute_contains_is_compared(codec: Codec) -> None:
    """In lists and slots as well."""
    for _ in range(2):
        assert codec.decode(codec.encode(SlottedRequest(URL))).extras[0].number == 0  # type: ignore[attr-defined]
        with pytest.raises(CannotEncode, match="is rebuilt with another extras"):
            codec.encode(SlottedRequest(URL, number=1))


def test_a_copy_that_is_stored_does_not_go_through_the_constructor(codec: Codec) -> None:
    """Parts of some requests are left out before they are stored."""
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


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __bool__(self) -> bool:
        raise RuntimeError("bool")


@pytest.mark.parametrize("request_", [None, object(), Hostile(), Request, Spider], ids=range(5))
def test_encode_raises_only_cannot_encode(request_: Any, codec: Codec) -> None:
    """An exception out of enqueue_request() hangs Scrapy's engine."""
    with pytest.raises(CannotEncode):
        codec.encode(request_)
    request = Request(URL)
    request.dont_filter = request_
    if request_ is not None:
        with pytest.raises(CannotEncode):
            codec.encode(request)


NEAR = "https://example.com/shop/a?b=1"


@pytest.mark.parametrize(
    ("meta", "headers", "short"),
    [
        ({"depth": 3}, {}, {"depth": 3}),
        ({"a": 1, "depth": 0}, {}, {"meta": {"a": 1}, "depth": 0}),
        ({"depth": 3, "a": 1}, {}, {"meta": {"depth": 3, "a": 1}}),
        ({"depth": True}, {}, {"meta": {"depth": True}}),
        ({"depth": 2**64 - 1}, {}, {"depth": 2**64 - 1}),
        ({}, {"Referer": "https://example.com/shop/"}, {"referer": 25}),
        ({}, {"Referer": "https://example.com/shop/b"}, {"referer": [25, b"b"]}),
        (
            {},
            {"X": "1", "Referer": "https://example.com/z"},
            {"headers": {b"X": [b"1"]}, "referer": [20, b"z"]},
        ),
        ({}, {"Referer": "https://else.com/"}, {"headers": {b"Referer": [b"https://else.com/"]}}),
        (
            {},
            {"Referer": "https://example.com/", "X": "1"},
            {"headers": {b"Referer": [b"https://example.com/"], b"X": [b"1"]}},
        ),
        ({}, {"Referer": [NEAR, NEAR]}, {"headers": {b"Referer": [NEAR.encode()] * 2}}),
    ],
)
def test_what_nearly_all_have_takes_few_bytes(
    meta: dict[str, Any], headers: dict[str, Any], short: dict[str, Any], codec: Codec, spider: BookSpider
) -> None:
    """`depth` and a Referer of the same site, if they come last, as Scrapy sets them: all keeps its order."""
    request = Request(NEAR, meta=meta, headers=headers)
    assert codec.encode(request) == entry(url=NEAR, **short)
    again = codec.decode(entry(url=NEAR, **short))
    assert same(described(again, spider), described(request, spider))
    assert request.meta == meta  # the request that was stored is as it was


@pytest.mark.parametrize("depth", [2**64, -(2**63) - 1])
def test_a_depth_that_msgpack_has_no_int_for_comes_back(depth: int, codec: Codec) -> None:
    """It is written as wide ints are, not in the short form: the reader would not accept it as an int."""
    assert codec.decode(codec.encode(Request(NEAR, meta={"depth": depth}))).meta == {"depth": depth}


def test_the_layout_of_format_1_is_frozen(codec: Codec, spider: BookSpider) -> None:
    """Old and new hosts share a crawl: these bytes decode for ever."""
    payload = entry(
        callback="parse_book",
        errback="",
        method="POST",
        headers={b"X": [b"1"]},
        body=b"b",
        cookies={"a": "b"},
        meta={"depth": 1, "x": 2},
        encoding="latin-1",
        priority=-3,
        dont_filter=True,
        flags=["f"],
        cb_kwargs={"k": (msgpack.ExtType(2, b"\x91\x01"))},
    )
    request = Request(
        URL,
        spider.parse_book,
        "POST",
        {"X": "1"},
        b"b",
        {"a": "b"},
        {"depth": 1, "x": 2},
        "latin-1",
        -3,
        True,
        NO_CALLBACK,
        ["f"],
        {"k": (1,)},
    )
    assert described(codec.decode(payload), spider) == described(request, spider)
    assert len(codec.encode(request)) == len(payload)
    again = codec.decode(entry(_class="scrapy.http.request.json_request.JsonRequest"))
    assert type(again) is JsonRequest
