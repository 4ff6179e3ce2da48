"""Encoding and decoding of callbacks: only methods of the spider or of its objects are accepted."""

from __future__ import annotations

import json
import logging
from functools import partial
from logging import LoggerAdapter
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from scrapy_dq.codec import CannotDecode, CannotEncode, Codec, Serializer
from support.codec_requests import SHARED, SPIDER, URL, BookSpider, entry


@pytest.fixture
def spider() -> BookSpider:
    return BookSpider()


@pytest.fixture
def codec(spider: BookSpider) -> Codec:
    return Codec(spider)


def test_an_attribute_that_hides_a_method_is_ignored(spider: BookSpider, codec: Codec) -> None:
    """Encoding and decoding both find the method in the class, not in the spider object."""
    request = Request(URL, callback=spider.parse_book)
    payload = codec.encode(request)
    spider.parse_book = print  # type: ignore[method-assign, assignment]
    assert codec.decode(payload).callback == request.callback
    assert codec.encode(request) == payload


class Page:
    """An object with callbacks, in an attribute of a spider."""

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
    """Scrapy's JOBDIR stores callbacks in the same way. Another worker calls the attribute of its spider."""
    here, there = PagesSpider(), PagesSpider()
    payload = Codec(here, serializer=serializer).encode(Request(URL, getattr(here, name), errback=here.fail))
    again = Codec(there, serializer=serializer).decode(payload)
    assert (again.callback, again.errback) == (getattr(there, name), there.fail)


def test_a_method_that_the_spider_gets_later_is_stored_by_the_attributes_name() -> None:
    """`start()` may create the object after the codec was made."""
    spider = PagesSpider()
    codec = Codec(spider)
    spider.late = Page().parse  # type: ignore[attr-defined]
    payload = codec.encode(Request(URL, spider.late))  # type: ignore[attr-defined]
    assert codec.decode(payload).callback == spider.late  # type: ignore[attr-defined]
    spider.late = Page().parse  # type: ignore[attr-defined]
    assert codec.decode(payload).callback == spider.late  # type: ignore[attr-defined]


@pytest.mark.parametrize("serializer", [None, Serializer(json)])
def test_a_method_that_no_attribute_of_the_spider_reaches_is_refused(serializer: Serializer | None) -> None:
    """Examples are a method of an unknown object, a hook, and a method of a library's class."""
    spider = PagesSpider()
    codec = Codec(spider, serializer=serializer)
    hidden, hook = spider.parse_book, spider.closed
    for callback in (Page().parse, hidden, hook, spider.stop):
        with pytest.raises(CannotEncode, match="callback"):
            codec.encode(Request(URL, callback))


@pytest.mark.parametrize("name", ["stop", "closed", "again", "crawler", "assigned", "helper"])
def test_an_entry_calls_no_other_attribute_of_the_spider(name: str) -> None:
    """A library's method may do more than parse a page, so only the project's methods are called."""
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
def test_a_callback_that_cannot_be_found_by_name_is_refused(refused: Any, kind: str) -> None:
    """Every stored callback must be decodable. The error names the attribute and the callback."""
    with pytest.raises(CannotEncode, match=f"^{kind}: .* is not a method of the spider 'books'"):
        SHARED.encode(Request(URL, **{kind: refused}))
