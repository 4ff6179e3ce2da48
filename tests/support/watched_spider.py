"""A spider that records forbidden actions of entries, and a middleware that blocks other sites."""

from __future__ import annotations

import sys
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from support.tree_spider import TreeSpider

CANARY = "canary"
"""A part of the names of all modules and files that no worker may use."""
ALIVE = "canary-that-the-spider-itself-opens"

# The last two hosts are allowed because Scrapy's CookiesMiddleware may fetch the list of public suffixes.
EXPECTED_HOSTS = ("127.0.0.1", "localhost", "publicsuffix.org", "raw.githubusercontent.com")
# For each audit event: a function that returns whether its arguments show that an entry caused it.
WATCHED = {
    "import": lambda args: CANARY in str(args[0]),
    "open": lambda args: CANARY in str(args[0]),
    "exec": lambda args: CANARY in str(args[0]),
    "os.system": lambda args: True,
    "subprocess.Popen": lambda args: True,
    "pickle.find_class": lambda args: True,
    "socket.getaddrinfo": lambda args: args[0] not in EXPECTED_HOSTS,
    "socket.connect": lambda args: isinstance(args[1], tuple) and args[1][0] != "127.0.0.1",
}


class WatchedSpider(TreeSpider):
    """Records `audit` for each event of WATCHED. It first causes an event to show that the watch works."""

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> WatchedSpider:
        """Begin to watch. An audit hook stays until the process ends."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        assert isinstance(spider, WatchedSpider)

        def watch(event: str, details: tuple[Any, ...]) -> None:
            suspicious = WATCHED.get(event)
            if suspicious and suspicious(details):
                spider.record("audit", f"{event}:{details[:2]!a:.200}")

        sys.addaudithook(watch)
        with open(ALIVE, "w"):
            return spider

    def parse(self, response: Response, **kwargs: Any) -> Any:
        """Accept any cb_kwargs of an entry."""
        return super().parse(response)


class LocalSiteOnly:
    """A downloader middleware that answers requests to other sites with 404.

    It comes before CookiesMiddleware, which may fetch the list of public suffixes for an unknown host.
    """

    def __init__(self, site: str) -> None:
        self._site = site

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LocalSiteOnly:
        """Make the middleware. Source: scrapy/middleware.py"""
        return cls(crawler.settings["START_URLS"][0].removesuffix("p/0"))

    def process_request(self, request: Request, spider: Any = None) -> Response | None:
        """Let requests to the site and for files pass, unless they use a proxy."""
        # No request for a file should reach this method. If one does, the spider's audit records it.
        if request.url.startswith((self._site, "file:")) and not request.meta.get("proxy"):
            return None
        return Response(request.url, status=404)


SETTINGS = {"DOWNLOADER_MIDDLEWARES": {f"{__name__}.LocalSiteOnly": 1}, "RETRY_ENABLED": False}
