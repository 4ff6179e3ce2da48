"""Spiders for fault tests: all workers start together, or `start()` is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.http import Response

from support.fault_crawl import FaultCrawl
from support.tree_spider import GO, GatheredSpider, TreeSpider, spider_source
from support.worker import Worker

EXHAUSTED = "exhausted"
START_PAUSE_S = 0.02


class SlowStartSpider(GatheredSpider):
    """Yields every page of a site without links, one by one, and finally records `exhausted`."""

    async def start(self) -> AsyncIterator[Any]:
        """Wait, then yield `/p/0` to `/p/<PAGES - 1>`, beginning with the start URL."""
        async for root in super().start():
            for number in range(self.settings.getint("PAGES")):
                yield scrapy.Request(root.url.replace("/p/0", f"/p/{number}"), dont_filter=True)
                await asyncio.sleep(START_PAUSE_S)
        self.record(EXHAUSTED, "-")


class DelayedTreeSpider(TreeSpider):
    """Delays the request for every page of the tree until a second after the page's link is found."""

    def parse(self, response: Response) -> Iterator[Any]:
        """Delay the requests of TreeSpider."""
        for output in super().parse(response):
            if hasattr(output, "meta"):
                output.meta["dq_delay"] = 1.0
            yield output


GATHERED = spider_source(GatheredSpider)
SLOW_START = spider_source(SlowStartSpider)
DELAYED = spider_source(DelayedTreeSpider)


def start_together(
    crawl: FaultCrawl, count: int = 2, *, beside: Worker | None = None, **options: Any
) -> list[Worker]:
    """Start *count* workers of a spider of this module. When all have joined, let their start() begin.

    *beside*: a worker that was started earlier with other options. Its start() begins with the others, and it
    is the first worker in the result.
    """
    workers = [*filter(None, [beside]), *crawl.start(count, **options)]
    for worker in workers:
        worker.wait_for_log("] INFO: Crawl '")
    (crawl.project.folder / GO).touch()
    return workers
