"""Requests in the form that a crawl stores."""

from __future__ import annotations

from typing import Any

from scrapy import Request, Spider

from scrapy_dq.codec import Codec


class LookSpider(Spider):
    """The spider of the waiting requests."""

    name = "look"

    def parse_page(self, response: Any) -> None: ...


def stored(url: str, **attributes: Any) -> bytes:
    """Return a stored request."""
    spider = LookSpider()
    return Codec(spider).encode(Request(url, spider.parse_page, **attributes))
