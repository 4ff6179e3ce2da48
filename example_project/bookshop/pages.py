"""A record of the pages whose callback has run to its end, one file per process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response


class PageRecord:
    """Spider middleware: appends the URL of each processed page to a file in BOOKSHOP_PAGES.

    The line is written when the callback's output is exhausted, in one unbuffered append: a SIGKILL takes
    no line with it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PageRecord:
        folder = crawler.settings.get("BOOKSHOP_PAGES")
        if not folder:
            raise NotConfigured
        record = cls(Path(folder))
        crawler.signals.connect(record.spider_opened, signals.spider_opened)
        crawler.signals.connect(record.spider_closed, signals.spider_closed)
        return record

    def spider_opened(self, spider: Spider) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{spider.name}-{os.getpid()}.txt"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def spider_closed(self) -> None:
        if self._file is not None:
            os.close(self._file)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        async for output in result:
            yield output
        assert self._file is not None
        os.write(self._file, f"{response.url}\n".encode())
