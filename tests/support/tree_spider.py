"""The spider of the tests' projects, and its record of events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import Crawler
from scrapy.http import Response, TextResponse

HEAD = """\
import asyncio
import gc
import json
import logging
import math
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

import scrapy
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider, DropItem, IgnoreRequest
from scrapy.http import HtmlResponse, TextResponse

from support.tree_spider import GatheredSpider, Record, TreeSpider, page_path
from tree_project.settings import *
"""
"""The first lines of a module with a test's own spider: its imports."""

GO = "go"


class Record:
    """Appends lines `event pid path` to the file RECORD_PATH. A kill -9 loses no written line.

    Many processes share the file. One write() per line with O_APPEND neither mixes nor overwrites lines.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._fd = os.open(crawler.settings["RECORD_PATH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, event: str, path: str) -> None:
        """Write one line. *event* must contain no space, and *path* no newline."""
        os.write(self._fd, f"{event} {os.getpid()} {path}\n".encode())


class TreeSpider(scrapy.Spider):
    """Follows all links of a tree site from START_URLS, and records `start` and `done` for each page.

    A test's own spider derives from this class and may override anything.
    """

    record: Record
    RECEIVERS: dict[str, Any] = {}  # noqa: RUF012 - a test's own spider replaces it
    """For each name of a method: the signal that the method receives."""

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> TreeSpider:
        """Take the start URLs and the record from the settings, and connect the receivers."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.start_urls = crawler.settings.getlist("START_URLS")
        spider.record = Record(crawler)
        for name, signal in cls.RECEIVERS.items():
            crawler.signals.connect(getattr(spider, name), signal)
        return spider

    async def start(self) -> AsyncIterator[Any]:
        """Yield the start requests as Scrapy does, with dont_filter=True."""
        for url in self.start_urls:
            yield scrapy.Request(url, dont_filter=True)

    def parse(self, response: Response) -> Iterator[Any]:
        """Record the page, follow its links and yield one item."""
        path = page_path(response)
        self.record("start", path)
        if isinstance(response, TextResponse):
            yield from response.follow_all(css="a", callback=self.parse)
        yield {"path": path}
        self.record("done", path)

    def leaf(self, response: Response) -> Any:
        """Record the page, but follow no links. Spiders of tests use this callback."""
        self.record("done", page_path(response))


class GatheredSpider(TreeSpider):
    """Waits in start() until the file `go` exists, so that all workers can take part in the crawl."""

    async def start(self) -> AsyncIterator[Any]:
        """Wait, then yield the start requests."""
        await self.until_told()
        async for output in self.seeds():
            yield output

    async def until_told(self) -> None:
        """Wait for the file `go`."""
        while not os.path.exists(GO):  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.01)

    async def seeds(self) -> AsyncIterator[Any]:
        """Yield the start requests of TreeSpider."""
        async for request in super().start():
            yield request


class ItemRecord:
    """The item pipeline of the tests' projects, which records `item` for each item."""

    def __init__(self, crawler: Crawler) -> None:
        self._record = Record(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> ItemRecord:
        """Make the pipeline. Source: scrapy/middleware.py"""
        return cls(crawler)

    def process_item(self, item: Any, spider: Any = None) -> Any:
        """Record an item of a page. Scrapy 2.13 passes the spider, but later versions may not."""
        self._record("item", item["path"])
        return item


def page_path(response: Response) -> str:
    """Return the page's path and query, as the site counts them."""
    url = urlsplit(response.url)
    return f"{url.path}?{url.query}" if url.query else url.path


def spider_of(body: str, bases: str = "TreeSpider", before: str = "") -> str:
    """Return the source of a project's spider module with a TreeSpider.

    Args:
        body: the body of the class. Lines without indentation at its end belong to the module.
        before: code before the class, in addition to HEAD.
    """
    return f"{HEAD}{before}\n\nclass ProjectSpider({bases}):\n    name = SPIDER_NAME\n{body}"


FED = spider_of("", "RedisSpider, TreeSpider", "from scrapy_dq import RedisSpider\n")
"""The source of a TreeSpider that reads start keys."""


def spider_source(cls: type[TreeSpider]) -> str:
    """Return the source of a project's spider module whose spider is *cls*, an importable class."""
    return (
        f"from {cls.__module__} import {cls.__name__}\n"
        f"from tree_project.settings import SPIDER_NAME\n\n\n"
        f"class ProjectSpider({cls.__name__}):\n    name = SPIDER_NAME\n"
    )
