"""Spiders that are fed through Redis while they run."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.spiders import CrawlSpider

from scrapy_dq.start_urls.payloads import request_from_data

if TYPE_CHECKING:
    from typing_extensions import Self


class RedisMixin:
    """Feeds a spider from plain Redis keys, to which any program pushes URLs or JSON.

    All workers of the crawl take payloads from the same keys, as fast as they crawl. A payload is in flight
    until its requests are stored, so the death of a worker loses none. The spider stays open for more, until
    it has been idle for `max_idle_time`.

    When the spider opens, attributes that are None are filled in from the settings.
    """

    redis_key: str | Iterable[str] | None = None
    """The key, or several in order of priority; `%(name)s` stands for the spider's name. None:
    REDIS_START_URLS_KEY."""
    redis_encoding: str | None = None
    """The encoding of payloads; None: REDIS_ENCODING."""
    max_idle_time: float | None = None
    """Seconds without anything to do, on any worker, after which the spider closes; 0: never; None:
    MAX_IDLE_TIME_BEFORE_CLOSE."""
    redis_batch_size: int | None = None
    """Has no effect, because workers take payloads as fast as they crawl them."""
    server: Any = None
    """A blocking Redis client, once the spider is open. Each call stops this whole worker for a round trip to
    Redis: use it rarely."""

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Scrapy calls this to make a spider."""
        spider = super().from_crawler(crawler, *args, **kwargs)  # type: ignore[misc]
        crawler.signals.connect(spider.warn_if_not_fed, signals.spider_opened)
        return spider  # type: ignore[no-any-return]

    def warn_if_not_fed(self, spider: Spider) -> None:
        """Warn if the scheduler is not scrapy_dq's, because no other scheduler feeds the spider."""
        if self.server is None:
            spider.logger.warning(
                "%s is fed by scrapy_dq.Scheduler, but this crawl has another scheduler (SCHEDULER, "
                "DQ_ENABLED): it gets no start requests",
                type(spider).__name__,
            )

    async def start(self) -> AsyncIterator[Any]:
        """Yield the requests of the project's own `start_requests()`, if any; `start_urls` are ignored."""
        own = getattr(type(self), "start_requests", None)
        if own is not None and own is not getattr(Spider, "start_requests", None):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                requests = own(self)
            for request in requests:
                yield request

    def spider_idle(self) -> None:
        """Do nothing. Scrapy calls this method while there is nothing to do, and you may override it.

        Whatever this method does, the spider stays open.
        """

    def make_request_from_data(self, data: bytes) -> Request | Iterable[Request] | None:
        """Return the request, or requests, that a payload describes; override it for your own formats.

        By default, a payload is a URL, or JSON of an object with "url", optionally "method" and "meta", and
        all other members as form data. The request is not filtered as a duplicate. If this method raises or
        returns no request, the payload becomes a dead letter, and the crawl continues.
        """
        return request_from_data(data, self.redis_encoding or "utf-8")


class RedisSpider(RedisMixin, Spider):
    """A Spider that is fed through Redis."""


class RedisCrawlSpider(RedisMixin, CrawlSpider):
    """A CrawlSpider that is fed through Redis."""
