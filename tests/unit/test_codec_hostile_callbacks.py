"""Untrusted names of callbacks lead only to callbacks of the spider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_dq import RedisCrawlSpider
from scrapy_dq.codec import Codec
from support.packed_entries import CALLBACK, URL, pack, reason
from unit.test_codec_hostile import BookSpider, touched


@pytest.fixture
def codec() -> Iterator[Codec]:
    """Yield a codec, and check afterwards that no trap of test_codec_hostile.py was touched."""
    touched.clear()
    yield Codec(BookSpider())
    assert not touched


@pytest.mark.parametrize(
    "name",
    [
        "__init__",
        "from_crawler",
        "start",
        "closed",
        "logger",
        "trap",
        "cached_trap",
        "class_trap",
        "partial_trap",
        "static",
        "assigned",
        "Inner",
        "name",
        "no_such_method",
        "\ud800",
        b"parse_book",
        None,
        ["parse_book"],
    ],
)
def test_a_callback_name_resolves_only_to_a_callback(name: Any, codec: Codec) -> None:
    """Special methods, hooks of Scrapy, properties, other attributes and classes are not callbacks."""
    for key in (CALLBACK, CALLBACK + 1):
        why = reason(pack({1: URL, key: name}), codec)
        assert "the spider 'books' has no callback" in why


class FedSpider(RedisCrawlSpider):
    name = "fed"

    def parse_book(self, response: Any) -> Any: ...
    def parse_start_url(self, response: Any, **kwargs: Any) -> Any: ...
    def make_request_from_data(self, data: bytes) -> Any: ...
    def spider_idle(self) -> None: ...
    def process_results(self, response: Any, results: Any) -> Any: ...
    def _requests_to_follow(self, *args: Any) -> Any: ...


@pytest.mark.parametrize(
    "name",
    [
        "make_request_from_data",
        "spider_idle",
        "process_results",
        "_requests_to_follow",
        "warn_if_not_fed",
        "setup_redis",
    ],
)
def test_a_method_of_a_base_class_is_not_a_callback(name: str) -> None:
    """Methods of Scrapy's and scrapy_dq's spiders are not callbacks, even if a project overrides them.

    They expect other arguments than a callback.
    """
    codec = Codec(FedSpider())
    for own in ("parse_book", "parse_start_url", "parse"):
        assert codec.decode(pack({1: URL, CALLBACK: own})).callback
    assert "has no callback" in reason(pack({1: URL, CALLBACK: name}), codec)


def test_a_method_from_the_standard_library_is_not_a_callback() -> None:
    """A mixin such as threading.Thread has such methods. A mixin of another package may define callbacks."""

    class Encoding(BookSpider, json.JSONEncoder):
        pass

    codec = Codec(Encoding())
    assert codec.decode(pack({1: URL, CALLBACK: "parse_book"})).callback
    for name in ("encode", "default", "iterencode"):
        assert "has no callback" in reason(pack({1: URL, CALLBACK: name}), codec)
