"""Stored requests as people and programs see them: plain values without logins. No code runs."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from msgpack import ExtType
from scrapy import Request, Spider

from scrapy_dq.codec import Codec
from scrapy_dq.codec.formats import ITEM, PAYLOAD, REQUEST, SERIALIZED
from scrapy_dq.codec.shown import shown
from support.stored_requests import stored


def entry_of(meta: Any) -> bytes:
    return bytes((REQUEST,)) + msgpack.packb({1: "http://x/", 8: meta})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


SHOWN: dict[str, tuple[Callable[[], Any], Any]] = {
    "instance": (
        lambda: ExtType(5, msgpack.packb(["no.such:Class", {"a": 1}])),
        {"class": "no.such:Class", "state": {"a": 1}},
    ),
    "instances in a set": (
        lambda: ExtType(3, msgpack.packb([ExtType(5, msgpack.packb(["m:C", {"a": [1]}]))])),
        [{"class": "m:C", "state": {"a": [1]}}],
    ),
    "bytes": (lambda: b"\xff", {"base64": "/w=="}),
    "text in bytes": (lambda: b"text", "text"),
    "odd keys": (lambda: {1: 2, b"\xff": 3}, {"1": 2, "{'base64': '/w=='}": 3}),
    "infinite": (lambda: float("inf"), "inf"),
    "tuple": (lambda: ExtType(2, msgpack.packb([1, 2])), [1, 2]),
    "surrogate": (lambda: "a", "a"),
    "wide": (lambda: ExtType(1, b"\x7f" * 1_500), "an integer of 11,999 bits"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_values_that_json_lacks_are_shown_as_text(name: str) -> None:
    """An instance is shown with the name of its class. The class itself is not looked up."""
    make, expected = SHOWN[name]
    assert shown(entry_of({"x": make()}), 10_000)["meta"] == {"x": expected}


def test_no_login_is_shown() -> None:
    """Scrapy's middlewares write logins into headers and meta, and a retry is stored with them."""
    logins = {"Authorization": "Basic s3cret", "Proxy-Authorization": "s3cret", "Cookie": "id=s3cret"}
    proxy = "http://me:s3cret@proxy:8080"
    meta = {"http_pass": "s3cret", "ftp_password": "s3cret", "proxy": proxy, "_auth_proxy": proxy, "other": 1}
    headers = {**logins, "X-Other": "seen"}
    found = shown(stored("http://x/", headers=headers, cookies={"id": "s3cret"}, meta=meta), 10_000)
    assert "s3cret" not in str(found)
    assert found["headers"]["X-Other"] == ["seen"]
    assert found["meta"] | {"other": 1, "proxy": "http://...@proxy:8080"} == found["meta"]


PROXIES = {
    "user:s3cret@10.0.0.1:3128": "...@10.0.0.1:3128",
    "http://user:s3cret@s3cret@h": "http://...@h",
    "http://user:s3cret/s3cret@h": "http://...@h",
    "SOCKS5://s3cret\n@h": "SOCKS5://...@h",
    "http://h:3128": "http://h:3128",
}


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("name", ["proxy", "_auth_proxy"])
def test_no_login_of_a_proxy_is_shown(name: str, proxy: str) -> None:
    """The proxy may have no scheme, and the password may be unescaped."""
    assert shown(entry_of({name: proxy}), 10_000)["meta"] == {name: PROXIES[proxy]}


def test_no_login_in_nested_values_is_shown() -> None:
    """A login may be in a browser's context, in a header, or in a URL. A path may have an @."""
    browser = {
        "proxy": {"server": "http://u:s3cret@h", "username": "u", "password": "s3cret"},
        "http_credentials": {"password": "s3cret"},
        "extra_http_headers": {"authorization": "s3cret"},
    }
    meta = {"playwright_context_kwargs": browser, "redirect_urls": ["http://u:s3cret@h/", "http://h/@seen"]}
    url = "https://u:s3cret@h/p?q=@seen"
    request = {
        "headers": {"Cookie2": "s3cret", "Set-Cookie": "s3cret", "Referer": url},
        "meta": meta,
        "cb_kwargs": {"cookies": {"id": "s3cret"}},
    }
    found = shown(stored(url, **request), 10_000)
    assert "s3cret" not in str(found)
    assert found["url"] == "https://...@h/p?q=@seen"
    assert found["meta"]["redirect_urls"] == ["http://...@h/", "http://h/@seen"]
    fed = shown(bytes((PAYLOAD,)) + url.encode(), 10_000)
    assert fed == {"kind": "fed", "payload": found["url"]}
    item = shown(bytes((ITEM,)) + msgpack.packb({"password": "mine"}), 10_000)
    assert item["item"] == {"password": "mine"}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        b"\x01\xc1",
        b"\x01\x90",
        entry_of(nested(500)),
        entry_of(ExtType(5, b"\x01")),
        entry_of("x" * 10_000),
    ],
    ids=["empty", "nothing", "no msgpack", "no map", "deep", "no instance", "large"],
)
def test_an_unreadable_entry_is_shown_without_an_exception(payload: bytes) -> None:
    """An entry that cannot be read is shown as unreadable, with its size."""
    found = shown(payload, 10_000)
    assert found["kind"] == "unreadable"
    assert found["bytes"] == len(payload)


def test_other_values_are_shown_as_python_writes_them() -> None:
    stored = Codec(Spider("s")).encode(Request("http://x/", meta={"x": Decimal("1.50")}))
    assert shown(stored, 1000)["meta"] == {"x": "1.50"}


def test_an_entry_of_a_serializer_is_not_read() -> None:
    """An entry of a serializer may be a pickle, so its contents are not read."""
    assert shown(bytes((SERIALIZED,)) + b"cos\nsystem\n", 1000) == {"kind": "serialized", "bytes": 11}
