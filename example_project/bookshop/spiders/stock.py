"""A crawl that never ends. If the stock of a book changes often, the crawl visits the book often."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

from scrapy import Request, Spider
from scrapy.http import TextResponse


class StockSpider(Spider):
    """Crawls the bookshop, which should run with `--changing`; end the crawl with Ctrl-C."""

    name = "stock"
    custom_settings: ClassVar[dict[str, Any]] = {
        "DQ_REVISIT": "adaptive:2s..2m, field=stock",  # for a real shop: "adaptive:1h..30d, field=stock"
    }

    async def start(self) -> AsyncIterator[Request]:
        # The home page and the lists of products seldom change.
        yield Request(self.settings["BOOKSHOP_URL"], dont_filter=True, meta={"dq_revisit": "fixed:1m"})

    def parse(self, response: TextResponse) -> Iterator[Request]:
        """Follow five categories of the home page, or the products of a list."""
        meta = {"dq_revisit": "fixed:1m"}
        yield from response.follow_all(css="ul.categories li:nth-child(-n+5) a, a.next", meta=meta)
        yield from response.follow_all(css="ol.products a", callback=self.parse_product)

    def parse_product(self, response: TextResponse) -> Iterator[dict[str, Any]]:
        """Yield the stock. A page that has not changed since the last visit does not get here."""
        stock = response.css("p.stock::text").get("").rpartition(" ")[2]
        yield {"title": response.css("h1::text").get(), "stock": int(stock), "url": response.url}
