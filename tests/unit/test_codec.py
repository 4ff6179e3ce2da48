"""Encoding and decoding of requests: a decoded request equals the original, or it cannot be encoded."""

from __future__ import annotations

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

from scrapy_dq.codec import CannotDecode, CannotEncode, Codec, Serializer
from support.codec_requests import SHARED, SPIDER, URL, BookSpider, TokenRequest, described, entry, same


class Links(CrawlSpider):
    name = "links"
    rules = (Rule(LinkExtractor(), callback="parse_page"),)

    def parse_page(self, response: Response) -> Any: ...


class Sitemaps(SitemapSpider):
    name = "sitemaps"


@pytest.fixture
def spider() -> BookSpider:
    return BookSpider()


@pytest.fixture
def codec(spider: BookSpider) -> Codec:
    return Codec(spider)


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
        Request(request.url)  # w3lib before 2.5 turns [::1] into http://::1/, and fails on that
    except ValueError:  # such as "Invalid IPv6 URL"
        return cls(URL, **attributes)
    return request


@given(requests())
def test_every_request_comes_back_as_it_was(request: Request) -> None:
    """Class, URL, body, headers and all other attributes are equal, including types and order."""
    again = SHARED.decode(SHARED.encode(request))
    assert type(again) is type(request)
    assert same(described(again, SPIDER), described(request, SPIDER))
    if NO_CALLBACK not in (request.callback, request.errback):
        assert again.to_dict(spider=SPIDER) == request.to_dict(spider=SPIDER)


def test_attributes_that_a_constructor_would_change_come_back_unchanged(codec: Codec) -> None:
    """A deleted default header stays deleted, and a lower-case method stays lower-case."""
    request = JsonRequest(URL, data=1)
    del request.headers["Accept"]
    request.method = "get"
    again = codec.decode(codec.encode(request))
    assert (again.method, again.headers) == ("get", {b"Content-Type": [b"application/json"]})


def test_a_plain_get_is_little_more_than_its_url(codec: Codec, spider: BookSpider) -> None:
    """Defaults are left out of the payload, because Redis may keep 10 million entries in memory."""
    assert len(codec.encode(Request(URL))) == len(URL) + 4
    request = Request(URL, callback=spider.parse_book, meta={"depth": 3}, headers={"Referer": "x"})
    assert len(codec.encode(request)) < len(URL) + 45


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "url", ["http://exa mple.com/ä?ö=%zz", "http://x\xa0y/?é", "http://a..é/", "http://a/?%FF%FEa%00"]
)
@pytest.mark.parametrize("cls", [Request, TokenRequest])
def test_a_url_is_not_made_safe_twice(cls: Any, url: str, encoding: str, codec: Codec) -> None:
    """safe_url_string() would change some safe URLs again: with a space in the host or a UTF-16 query."""
    try:
        request = cls(url, encoding=encoding)
    except UnicodeError:
        pytest.skip("this older w3lib cannot make this URL safe")
    again = codec.decode(codec.encode(request))
    assert (again.url, again.meta) == (request.url, {})


@pytest.mark.parametrize("verbatim", [True, False, 1])
def test_a_verbatim_url_comes_back_verbatim(verbatim: Any, codec: Codec) -> None:
    """The decoded request has the same URL, and the same value of meta["verbatim_url"]."""
    request = Request("http://example.com/a b/ä?x=[]", meta={"a": 1, "verbatim_url": verbatim, "b": 2})
    again = codec.decode(codec.encode(request))
    assert again.url == request.url
    assert list(again.meta.items()) == list(request.meta.items())


def test_a_start_request_comes_back_marked_as_seeded(codec: Codec) -> None:
    """A retry copies the meta. If the retry counted as a start request, Redis would drop it as known."""
    request = Request(URL, meta={"is_start_request": True})
    assert codec.decode(codec.encode(request)).meta == {"is_start_request": True, "dq_seeded": True}
    assert "dq_seeded" not in request.meta
    for meta in ({"is_start_request": False}, {"depth": 1}):
        assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta


def test_a_crawl_spiders_requests_are_stored(codec: Codec) -> None:
    """The link_text in the meta is an lxml string, a subclass of str, and comes back as a str."""
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
    """Scrapy's SitemapSpider defines this callback, and the codec accepts it."""
    spider = Sitemaps()
    codec = Codec(spider)
    request = Request(URL, callback=spider._parse_sitemap)
    assert codec.decode(codec.encode(request)).callback == spider._parse_sitemap


@pytest.mark.parametrize("url", ["file:///etc/passwd", "FILE:/etc/passwd", "ftp://example.com/", "data:,x"])
def test_a_url_of_another_scheme_is_refused_with_the_name_of_the_setting(url: str, codec: Codec) -> None:
    """The message names the scheme and DQ_URL_SCHEMES."""
    request = Request(URL)
    request._url = url
    with pytest.raises(
        CannotEncode, match=r"^url: the scheme '\w+' is not in DQ_URL_SCHEMES \(http, https\)$"
    ):
        codec.encode(request)


def test_the_allowed_schemes_can_be_set(spider: BookSpider) -> None:
    """An allowed scheme can be stored and read; capitals do not matter."""
    codec = Codec(spider, schemes=["FTP", "data"])
    assert codec.decode(codec.encode(Request("ftp://example.com/"))).url == "ftp://example.com/"
    with pytest.raises(CannotEncode):
        codec.encode(Request(URL))


def test_an_entry_that_is_too_large_is_refused_with_both_figures(spider: BookSpider) -> None:
    """The message names DQ_MAX_ENTRY_BYTES. Decoding has the same limit."""
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
    """Encoding and decoding make the same checks."""
    request = Request(URL)
    if attribute == "headers":
        dict.update(request.headers, value)
    else:
        setattr(request, attribute, value)
    with pytest.raises(CannotEncode):
        codec.encode(request)


@pytest.mark.parametrize("serializer", [None, Serializer(msgpack)])
@pytest.mark.parametrize("encoding", ["charmap", "punycode", "hex", "no-such-encoding"])
def test_links_of_a_page_in_any_encoding_are_stored(
    encoding: str, serializer: Serializer | None, spider: BookSpider
) -> None:
    """`response.follow` copies the page's encoding, but the request does not need it: its URL is encoded."""
    codec = Codec(spider, serializer=serializer)
    request = Request("http://example.com/?q=%C3%A9", body=b"\xe9")
    request._encoding = encoding
    again = codec.decode(codec.encode(request))
    assert (again.url, again.body, again.encoding) == (request.url, request.body, "utf-8")


def test_the_reason_names_the_place_of_the_value_in_the_request(codec: Codec) -> None:
    """The user can find the value with the help of the path in the message."""
    request = Request(URL, cb_kwargs={"books": [{"file": 1}, {"file": open}]})
    with pytest.raises(
        CannotEncode, match=r"^cb_kwargs\['books'\]\[1\]\['file'\]: a 'builtins\.builtin_function"
    ):
        codec.encode(request)


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __bool__(self) -> bool:
        raise RuntimeError("bool")


@pytest.mark.parametrize("request_", [None, object(), Hostile(), Request, Spider], ids=range(5))
def test_encode_raises_only_cannot_encode(request_: Any, codec: Codec) -> None:
    """Another exception from enqueue_request() would hang Scrapy's engine."""
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
def test_depth_and_a_same_site_referer_take_few_bytes(
    meta: dict[str, Any], headers: dict[str, Any], short: dict[str, Any], codec: Codec, spider: BookSpider
) -> None:
    """Depth and a same-site Referer have a short form if they are the last key and the last header.

    Scrapy sets them last.
    """
    request = Request(NEAR, meta=meta, headers=headers)
    assert codec.encode(request) == entry(url=NEAR, **short)
    again = codec.decode(entry(url=NEAR, **short))
    assert same(described(again, spider), described(request, spider))
    assert request.meta == meta  # the stored request is unchanged


@pytest.mark.parametrize("depth", [2**64, -(2**63) - 1])
def test_a_depth_that_msgpack_has_no_int_for_comes_back(depth: int, codec: Codec) -> None:
    """Such a depth is stored in the meta like any other int of its size, not in the short form of a depth."""
    assert codec.decode(codec.encode(Request(NEAR, meta={"depth": depth}))).meta == {"depth": depth}


def test_the_layout_of_format_1_is_frozen(codec: Codec, spider: BookSpider) -> None:
    """Hosts with old and new versions may share a crawl, so all later versions must decode this payload."""
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
