"""Some requests end before a download handler gets them. They reach no site, and count against no limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.given import Tree
from support.tree_spider import spider_of

ENDED_EARLY = spider_of(
    """
    async def start(self):
        for path in self.settings["PATHS"].split():
            request = scrapy.Request(self.start_urls[0] + path, self.leaf, dont_filter=True)
            request.priority = -("last" in path)
            request.meta["dq_local"] = self.settings.getbool("LOCAL")
            yield request

    def leaf(self, response):
        self.record("done", response.url.partition("?")[0].rpartition("/")[2])


class Parser(RobotParser):
    @classmethod
    def from_crawler(cls, crawler, robotstxt_body):
        return cls()

    def allowed(self, url, user_agent):
        return "/forbidden" not in url

class EndingMiddleware:
    def process_request(self, request, spider=None):
        if "/ignored" in request.url:
            raise IgnoreRequest("on purpose")
        if "/own" in request.url:
            return TextResponse(request.url, body=b"from the middleware", request=request)
""",
    before="from scrapy.robotstxt import RobotParser\n",
)
SETTINGS = {
    "ROBOTSTXT_OBEY": True,
    "ROBOTSTXT_PARSER": "tree_project.spiders.spider.Parser",
    "DOWNLOADER_MIDDLEWARES": {"tree_project.spiders.spider.EndingMiddleware": 200},
    "CONCURRENT_REQUESTS": 1,
}


@pytest.mark.parametrize("local", [False, True])
def test_requests_that_are_never_sent_do_not_wait_for_each_other(begin: Tree, local: bool) -> None:
    """The site's delay is an hour. Only the last request is sent, and the earlier ones must not delay it."""
    paths = " ".join(f"/{kind}?n={n}" for n in range(10) for kind in ("forbidden", "ignored", "own"))
    settings = {**SETTINGS, "DQ_DOMAIN_DELAY": 3600, "PATHS": paths + " /page?s=0&last=1", "LOCAL": local}
    site, project = begin(ENDED_EARLY, settings)
    worker = project.run_worker(timeout_s=30)
    assert worker.close_reason == "finished"
    assert site.hits() == {"/robots.txt": 1, "/page?s=0&last=1": 1}
    assert project.count("done") == {"own": 10, "page": 1}
    assert worker.stats["robotstxt/forbidden"] == 10


@pytest.mark.parametrize("limit", ["DQ_MAX_PAGES", "DQ_DOMAIN_BUDGET"])
def test_only_requests_that_are_sent_count_as_pages(begin: Tree, limit: str) -> None:
    """Two of three equal requests come from Scrapy's cache."""
    paths = "/forbidden /ignored /own " * 3 + "/cached?s=0 " * 3 + "/page?s=0 /page?s=0&last=1"
    settings: dict[str, Any] = {**SETTINGS, limit: 2, "PATHS": paths, "HTTPCACHE_ENABLED": True}
    site, project = begin(ENDED_EARLY, settings)
    worker = project.run_worker(settings={"HTTPCACHE_DIR": str(project.folder / "cache")})
    assert worker.close_reason == ("max_pages" if limit == "DQ_MAX_PAGES" else "domain_budget")
    assert sum((site.hits() - Counter({"/robots.txt": 1})).values()) == 2
    assert project.count("done") == {"own": 3, "cached": 3, "page": 1}
    more = project.run_worker(settings={limit: 3, "HTTPCACHE_DIR": str(project.folder / "cache")})
    assert more.close_reason == "finished"
    assert project.count("done")["page"] == 2
