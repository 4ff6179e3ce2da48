"""The spider of the whole crawls. It also records the CPU time of its process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.http import Response, TextResponse


class CatalogueSpider(scrapy.Spider):
    """Follows every link and does nothing else, so that the scheduler's share is as large as possible."""

    async def start(self) -> AsyncIterator[Any]:
        """Yield filtered start requests. Otherwise, the first link to a start page would crawl it again."""
        self._began = time.process_time()
        for url in self.settings.getlist("START_URLS"):
            yield scrapy.Request(url)

    def parse(self, response: Response) -> Iterator[Any]:
        """Follow every link."""
        assert isinstance(response, TextResponse)
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, self.parse)

    def closed(self, reason: str) -> None:
        """Record the CPU time of all threads since the start. Source: scrapy/spiders/__init__.py"""
        note = {"reason": reason, "cpu_s": time.process_time() - self._began}
        Path(self.settings["NOTES"], f"{os.getpid()}.json").write_text(json.dumps(note))
