"""Requests may wait in a downloader middleware for another request to the same site, such as a login.

The waiting requests must not prevent the worker from sending this other request.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request

from scrapy_dq.scheduling import downloads
from scrapy_dq.scheduling.downloads import HeldDownloads
from scrapy_dq.scheduling.engine_hooks import EngineHooks
from support.given import Tree
from support.tree_spider import spider_of

# Each login is valid for 20 pages. The login request waits in Redis like the pages, with a higher priority.
LOGIN = spider_of("""
    def log_in(self, response):
        middleware = self.crawler.login_middleware
        middleware.left, middleware.login = 20, middleware.login.set_result(None)
        middleware.logged_in.append(response.url)
        self.record("login", "-")


class LoginMiddleware:
    def __init__(self, crawler):
        self.crawler = crawler
        self.left = 0
        self.login = None
        self.logged_in = []

    @classmethod
    def from_crawler(cls, crawler):
        crawler.login_middleware = cls(crawler)
        return crawler.login_middleware

    async def process_request(self, request, spider=None):
        if request.meta.get("login"):
            return None
        while not self.left:
            if self.login is None:
                self.login = asyncio.get_running_loop().create_future()
                url = self.crawler.spider.start_urls[0] + f"?login={len(self.logged_in)}"
                self.crawler.engine.crawl(
                    scrapy.Request(
                        url, self.crawler.spider.log_in, priority=1, dont_filter=True, meta={"login": True}
                    )
                )
            await asyncio.shield(self.login)
        self.left -= 1
        return None
""")


@pytest.mark.parametrize("slots", [1, 8])
def test_pages_that_wait_for_a_login_do_not_block_it(tree: Tree, slots: int) -> None:
    """The waiting pages are in the downloader, but do not count against their site's limit.

    So the login can be sent.
    """
    middlewares = {"tree_project.spiders.spider.LoginMiddleware": 1}
    site, project = tree(
        spider=LOGIN,
        settings={"DOWNLOADER_MIDDLEWARES": middlewares, "CONCURRENT_REQUESTS_PER_DOMAIN": slots},
        pages=60,
        fan_out=20,
    )
    project.run_to_end(timeout_s=60)
    assert project.count() == dict.fromkeys(site.paths, 1)
    assert project.count("login")["-"] == 3


@pytest.mark.parametrize("downloader", [object(), SimpleNamespace(active=set(), slots=None)])
def test_no_request_counts_as_held_up_in_an_unknown_downloader(downloader: object) -> None:
    """With DQ_PARTITION_BY = "none", Scrapy's downloader needs no attributes `active` and `slots`."""
    hooks = EngineHooks.__new__(EngineHooks)
    hooks._engine = SimpleNamespace(downloader=downloader)
    assert hooks.held_up() == set()


def test_a_site_at_its_limit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a waiting request is not chosen, because its site is at its limit, another request is chosen.

    The first request is tried again later.
    """
    hanging, waiting = Request("http://hanging/"), Request("http://waiting/")
    hooks: Any = SimpleNamespace(held_up=lambda: {hanging, waiting}, wake=lambda: None)
    monkeypatch.setattr(downloads, "HELD_UP_AFTER_S", 0.0)
    asked: list[Request] = []

    def held_up(request: Request) -> bool:
        asked.append(request)
        return request is waiting

    async def look() -> None:
        held = HeldDownloads(hooks, held_up)
        for _ in range(5):
            held.check()

    asyncio.run(look())
    assert asked.count(waiting) == 1
    assert asked.count(hanging) >= 3
