"""An ordinary Scrapy spider: nothing in it knows how many workers there are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response, TextResponse
from scrapy.linkextractors import LinkExtractor

from bookshop.items import Book, Page


class BooksSpider(Spider):
    """Crawls the bookshop, or, with `-a start=URL`, every page of the host of that URL."""

    name = "books"

    # `start` is a parameter, because Scrapy would otherwise set an attribute that hides the method `start`.
    def __init__(self, *args: Any, start: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.elsewhere = start
        host = urlsplit(start or "").netloc
        self.links = LinkExtractor(allow=rf"^https?://{re.escape(host)}(?:[/?#]|$)")

    async def start(self) -> AsyncIterator[Request]:
        if self.elsewhere:
            yield Request(self.elsewhere, self.parse_page, dont_filter=True)
        else:
            yield Request(self.settings["BOOKSHOP_URL"], dont_filter=True)

    def parse(self, response: TextResponse) -> Iterator[Request]:
        """Follow the categories of the home page, or the products and next page of a listing."""
        yield from response.follow_all(css="ul.categories a, a.next")
        yield from response.follow_all(css="ol.products a", callback=self.parse_product)

    def parse_product(self, response: TextResponse) -> Iterator[Book | Request]:
        """Yield the book and follow the related ones."""

        def text(css: str) -> str:
            return response.css(f"{css}::text").get("")

        yield Book(
            upc=text("p.upc"),
            title=text("h1"),
            category=text("a.category"),
            price=float(text("p.price").lstrip("£")),
            stock=int(text("p.stock").rpartition(" ")[2]),
            description=text("p.description"),
            url=response.url,
        )
        yield from response.follow_all(css="ul.related a", callback=self.parse_product)

    def parse_page(self, response: Response) -> Iterator[Page | Request]:
        """Yield a page of any site, and follow its links within the host."""
        if isinstance(response, HtmlResponse):
            yield Page(url=response.url, title=response.css("title::text").get())
            for link in self.links.extract_links(response):
                yield Request(link.url, self.parse_page)
