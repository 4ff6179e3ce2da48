"""A worker of Crawlee for Python, with its queue in Redis, for `make compare-faults`.

The storage needs the command JSON.SET. Redis from redis.io's packages has it, and Valkey with valkey-json.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from support.project import Project


class CrawleeProject(Project):
    """A project whose workers are this module instead of `scrapy crawl`."""

    def command(self, *words: str) -> list[str]:
        """Return the command line of a worker."""
        return [sys.executable, "-m", __name__]


async def crawl(settings: Any) -> None:
    """Crawl with the project's *settings*. Print the lines with which Scrapy logs the start and the end."""
    from crawlee import ConcurrencySettings
    from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
    from crawlee.storage_clients import RedisStorageClient
    from crawlee.storages import RequestQueue

    record = os.open(settings.RECORD_PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    concurrent = settings.CONCURRENT_REQUESTS
    storage = RedisStorageClient(connection_string=settings.REDIS_URL)
    # A named queue is kept from one crawl to the next.
    queue = await RequestQueue.open(name=settings.SPIDER_NAME, storage_client=storage)
    crawler = ParselCrawler(
        request_manager=queue,
        storage_client=storage,
        concurrency_settings=ConcurrencySettings(
            min_concurrency=concurrent, desired_concurrency=concurrent, max_concurrency=concurrent
        ),
        # Scrapy also waits 180 s for a page.
        navigation_timeout=timedelta(seconds=180),
        request_handler_timeout=timedelta(seconds=180),
    )

    @crawler.router.default_handler
    async def parse(context: ParselCrawlingContext) -> None:
        url = urlsplit(context.request.url)
        path = f"{url.path}?{url.query}" if url.query else url.path
        await context.enqueue_links(selector="a")
        os.write(record, f"done {os.getpid()} {path}\n".encode())

    print("Spider opened", flush=True)
    await crawler.run(settings.START_URLS, purge_request_queue=False)
    print("Spider closed (finished)", flush=True)


if __name__ == "__main__":
    import tree_project.settings

    asyncio.run(crawl(tree_project.settings))
