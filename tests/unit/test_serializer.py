"""SCHEDULER_SERIALIZER: the entries that a codec with a project's serializer stores, reads and refuses."""

from __future__ import annotations

import json
import logging
import pickle
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import FormRequest, Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import JsonRequest, Response
from scrapy.http.request import NO_CALLBACK
from scrapy.settings import Settings

from scrapy_dq.codec import FORMAT, BadSerializer, CannotDecode, CannotEncode, Codec, Serializer
from scrapy_dq.codec.formats import SERIALIZED
from scrapy_dq.factory import codec_of, config_of
from scrapy_dq.settings import ConfigError

URL = "http://example.com/a?b=c"


class BookSpider(Spider):
    name = "books"

    def parse(self, response: Response, **kwargs: Any) -> Any: ...

    def parse_book(self, response: Response) -> Any: ...


def as_json(value: Any) -> str:
    """Dump *value* as users' JSON serializers for scrapy-redis do. Keys of its dicts may be bytes."""
    return json.dumps(_texts(value))


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {_texts(key): _texts(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_texts(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def serializer(dumps: Any, loads: Any) -> SimpleNamespace:
    return SimpleNamespace(dumps=dumps, loads=loads)


OWN_JSON = serializer(as_json, json.loads)
ZIPPED_PICKLE = serializer(
    lambda value: zlib.compress(pickle.dumps(value)), lambda data: pickle.loads(zlib.decompress(data))
)
SAFE = {"json": json, "own json": OWN_JSON}
UNKNOWN = {
    "own loads": serializer(as_json, lambda data: json.loads(data)), "pickle": pickle, "zipped": ZIPPED_PICKLE
}  # fmt: skip


def codec(serializer: Any, spider: Spider | None = None, **options: Any) -> Codec:
    return Codec(spider or BookSpider(), serializer=Serializer(serializer), **options)


def stored(values: Any) -> bytes:
    """Return an entry with *values*, as a worker with the serializer `json` reads it."""
    return bytes((SERIALIZED,)) + json.dumps(values).encode()


@pytest.mark.parametrize("name", [*SAFE, "pickle", "zipped"])
def test_a_request_comes_back_from_its_serializer(name: str) -> None:
    """Bytes stay bytes, callbacks become methods. An entry is a format byte and the serializer's output."""
    chosen = (SAFE | UNKNOWN)[name]
    spider = BookSpider()
    request = Request(
        URL, spider.parse_book, "PUT", {"A": ["é", "c"]}, "body é", {"k": "v"}, {"depth": 2}, "latin-1", 7,
        True, errback=spider.parse_book, flags=["f"], cb_kwargs={"x": [1, None]},
    )  # fmt: skip
    if name == "own json":
        request = request.replace(headers={"A": "é"}, body="body é", encoding="utf-8")
    entry = codec(chosen, spider).encode(request)
    assert entry[0] == SERIALIZED == 4
    again = codec(chosen, spider).decode(entry)
    assert again.to_dict(spider=spider) == request.to_dict(spider=spider)
    assert type(again) is Request


@pytest.mark.parametrize("request_", [
    FormRequest(URL, formdata={"a": "b"}), JsonRequest(URL, data={"a": 1}),
    Request(URL, body=b"\xff\x00\xe9", headers={"X": b"\xfe"}),
])  # fmt: skip
def test_other_request_classes_come_back(request_: Request) -> None:
    again = codec(json).decode(codec(json).encode(request_))
    assert type(again) is type(request_)
    assert again.to_dict() == request_.to_dict()


def test_a_start_request_does_not_count_as_a_seed_again() -> None:
    """A retry copies the meta, so the decoded request is marked as already seeded."""
    again = codec(json).decode(codec(json).encode(Request(URL, meta={"is_start_request": True})))
    assert again.meta["dq_seeded"] is True


def test_entries_written_without_the_serializer_can_still_be_read() -> None:
    """After the setting is added, a crawl continues. If the setting is removed, an error gives the reason."""
    ours = Codec(BookSpider()).encode(Request(URL))
    assert ours[0] == FORMAT
    assert codec(json).decode(ours).url == URL
    with pytest.raises(CannotDecode, match="a SCHEDULER_SERIALIZER wrote it, and this worker has none"):
        Codec(BookSpider()).decode(codec(json).encode(Request(URL)))


class Local(Request):
    attributes = (*Request.attributes, "extra")
    extra = object()


class Outer:
    class Local(Request):
        """Request.to_dict() gives this class a name that leads to the other Local."""


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Outer.Local(URL), "Local is not the name of its class"),
        (Request(URL, meta={"open": object()}), "not JSON serializable"),
        (Request(URL, lambda response: None), "is not an instance method"),
        (Request(URL, NO_CALLBACK), "is not an instance method"),
        (Request("file:///etc/passwd"), "the scheme 'file' is not in DQ_URL_SCHEMES"),
        (Request(URL, body=b"x" * 2000), "more than DQ_MAX_ENTRY_BYTES = 1,500"),
        (type("Nowhere", (Request,), {"__qualname__": "f.<locals>.Nowhere"})(URL), "can find by its name"),
    ],
)
def test_a_request_that_does_not_come_back_equal_is_not_stored(request_: Request, says: str) -> None:
    """A request that the serializer would change stays local, like others that cannot be stored."""
    own = codec(json, max_bytes=1500)
    own.encode(Request(URL))  # a request that comes back equal is stored
    with pytest.raises(CannotEncode, match=says):
        own.encode(request_)


def test_a_hook_of_the_spider_is_not_a_callback() -> None:
    """Scrapy's `to_dict` accepts any method of the spider, but decoding accepts only callbacks."""
    spider = BookSpider()
    with pytest.raises(CannotEncode, match="callback"):
        codec(json, spider).encode(Request(URL, spider.log))


GOOD = {"url": URL, "method": "GET", "headers": {}, "body": "", "callback": None}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (None, "expected dict"),
        ({}, "it has no url"),
        (GOOD | {"url": "file:///etc/passwd"}, "url: the scheme 'file'"),
        (GOOD | {"callback": "parse_gone"}, "callback: the spider 'books' has no callback 'parse_gone'"),
        (GOOD | {"_class": "os.system"}, "'os.system' is not an imported subclass of Request"),
        (GOOD | {"headers": {"A": 5}}, "headers: headers must map bytes to lists"),
        (GOOD | {"headers": {"A": ["b\r\nC: d"]}}, "headers: a header contains CR"),
        (GOOD | {"body": 5}, "body: expected bytes"),
        (
            GOOD | {"no_such": 1},
            "attribute 'no_such': neither its class nor this version of scrapy_dq has it",
        ),
    ],
)
def test_values_from_a_serializer_are_untrusted(values: Any, says: str) -> None:
    """The values must pass the same checks as entries of scrapy_dq's own format, so nothing is imported."""
    with pytest.raises(CannotDecode, match=says):
        codec(json).decode(stored(values))


def test_an_exception_of_loads_becomes_the_reason() -> None:
    def loads(data: bytes) -> Any:
        if b"localhost" in data:
            return json.loads(data)
        raise RecursionError("too deep")

    own = codec(serializer(as_json, loads))
    with pytest.raises(CannotDecode, match="RecursionError: too deep"):
        own.decode(own.encode(Request("http://localhost/")).replace(b"localhost", b"elsewhere"))
    with pytest.raises(CannotDecode, match="JSONDecodeError"):
        codec(json).decode(bytes((SERIALIZED,)) + b"{")
    with pytest.raises(CannotDecode):
        codec(json).decode(bytes((SERIALIZED,)))
    with pytest.raises(CannotDecode, match="more than DQ_MAX_ENTRY_BYTES"):
        codec(json, max_bytes=1024).decode(stored(GOOD | {"body": "x" * 1024}))


def test_missing_attributes_of_a_request_get_their_defaults() -> None:
    """JSON from another program may leave out attributes that have a default."""
    again = codec(json).decode(stored({"url": URL, "headers": {"A": "b"}, "meta": None}))
    assert (again.method, again.headers[b"A"], again.meta) == ("GET", b"b", {})


@pytest.mark.parametrize(
    ("dumps", "loads"),
    [
        (lambda value: 5, json.loads),
        (as_json, lambda data: 5),
        (as_json, lambda data: {}),
        (as_json, lambda data: 1 / 0),
    ],
)
def test_a_serializer_that_loses_requests_is_refused(dumps: Any, loads: Any) -> None:
    """The serializer is refused before the crawl begins, so that it loses no request."""
    with pytest.raises(BadSerializer, match="it does not restore a plain request"):
        Serializer(serializer(dumps, loads))


def made(**settings: Any) -> Codec:
    crawler = Crawler(BookSpider, Settings(settings))
    crawler.spider = BookSpider.from_crawler(crawler)
    return codec_of(config_of(crawler), crawler)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_serializer_is_refused_unless_it_is_trusted(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the setting and the reason. With DQ_TRUST_PICKLE, the crawl runs with one warning."""
    given = "pickle" if name == "pickle" else UNKNOWN[name]  # Scrapy cannot copy a module as a setting
    with pytest.raises(ConfigError, match=r"^SCHEDULER_SERIALIZER = .*run code.*DQ_TRUST_PICKLE = True"):
        made(SCHEDULER_SERIALIZER=given)
    with caplog.at_level(logging.WARNING):
        made(SCHEDULER_SERIALIZER=given, DQ_TRUST_PICKLE=True)
    assert len(caplog.records) == 1
    assert "DQ_TRUST_PICKLE is set" in caplog.text


def test_the_error_about_an_unusable_type_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"DQ_TYPES: 'no\.Such' cannot be imported"):
        made(DQ_TYPES=["no.Such"])


def test_a_serializer_can_be_a_module_or_an_object_by_its_path() -> None:
    """The setting may name a module, as in scrapy-redis, or an object in a module."""
    for given in ("json", OWN_JSON, "scrapy_dq.settings.setting.json"):
        assert made(SCHEDULER_SERIALIZER=given).encode(Request(URL))[0] == SERIALIZED
    assert made(SCHEDULER_SERIALIZER="").encode(Request(URL))[0] == FORMAT
    assert made(SCHEDULER_SERIALIZER=None, DQ_TRUST_PICKLE=True).encode(Request(URL))[0] == FORMAT


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("no.such.module", "No module named 'no'"),
        ("json.no_such", "module 'json' has no attribute 'no_such'"),
        ("", None),
        ("os", r"dumps\(\) and loads\(\) \(it has no dumps\(\)\)"),
        (5, r"it has no dumps\(\)"),
        (SimpleNamespace(dumps=len), r"it has no loads\(\)"),
    ],
)
def test_an_object_that_is_not_a_serializer_is_refused(given: Any, says: str | None) -> None:
    if says is None:
        assert made(SCHEDULER_SERIALIZER=given).serializer is None
        return
    with pytest.raises(ConfigError, match=rf"^SCHEDULER_SERIALIZER = .*{says}"):
        made(SCHEDULER_SERIALIZER=given)
