"""Spiders of the comparison. They have lambdas as callbacks, CloseSpider, or a page that kills workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.exceptions import CloseSpider
from scrapy.http import Response, TextResponse

from support.tree_spider import TreeSpider, page_path

FULL_PAGE = 100
"""The number of links of a page in whose callback ClosingSpider may close the spider."""


class LambdaSpider(TreeSpider):
    """Uses a lambda as the callback of one link in twenty."""

    def parse(self, response: Response) -> Iterator[Any]:
        """Follow the links, as TreeSpider does."""
        for result in super().parse(response):
            if isinstance(result, scrapy.Request) and int(result.url.rpartition("/")[2]) % 20 == 7:
                result = result.replace(callback=lambda response: self.parse(response))
            yield result


class ClosingSpider(TreeSpider):
    """Raises CloseSpider in the middle of the third full page of its first crawl."""

    full_pages = 0

    def parse(self, response: Response) -> Iterator[Any]:
        """Follow the links, as TreeSpider does. The file `closed-once` records that the spider was closed."""
        assert isinstance(response, TextResponse)
        marker = Path("closed-once")
        self.full_pages += len(response.css("a")) == FULL_PAGE
        close = self.full_pages == 3 and not marker.exists()
        for number, result in enumerate(super().parse(response)):
            if close and number == FULL_PAGE // 2:
                marker.touch()
                raise CloseSpider("enough")
            yield result


class PoisonSpider(TreeSpider):
    """On the root page, also requests a page whose callback kills the worker."""

    def parse(self, response: Response) -> Iterator[Any]:
        """Follow the links, as TreeSpider does. The bad page is crawled early because of its priority."""
        yield from super().parse(response)
        if page_path(response) == "/p/0":
            yield response.follow("/poison?s=0.7", self.die, priority=10)

    def die(self, response: Response) -> None:
        """End the process with SIGKILL, as the kernel does if memory is short."""
        os.kill(os.getpid(), signal.SIGKILL)
