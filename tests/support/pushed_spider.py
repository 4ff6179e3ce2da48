"""A spider for pushed requests, in a module that a spider loader finds."""

from __future__ import annotations

from typing import Any

from scrapy import Spider


class PushedSpider(Spider):
    """The spider of the crawl into which a test pushes."""

    name = "pushed"

    def parse(self, response: Any, **kwargs: Any) -> Any: ...

    def parse_page(self, response: Any, **kwargs: Any) -> Any: ...
