"""Third-party plugins behave the same with two workers of scrapy_dq and with Scrapy's own scheduler."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import scrapy
from scrapy import Request, Spider

from scrapy_dq.codec import Codec
from support.project import PLAIN, Project
from support.redis_server import RedisServer
from support.tree_site import TreeSite

pytestmark = pytest.mark.plugins
SPIDER = """
import scrapy
from support.tree_spider import TreeSpider, page_path
from tree_project.settings import SPIDER_NAME
"""


@dataclass(frozen=True)
class Plugin:
    """How a project uses a plugin."""

    package: str
    settings: dict[str, Any]
    spider: str = "class ProjectSpider(TreeSpider):\n    name = SPIDER_NAME"
    says: list[str] = field(default_factory=list)
    """Stats that the plugin must write, with either scheduler."""
    runs: int = 1
    """Number of runs. A plugin that remembers earlier runs shows this in the second run."""
    workers: int = 2
    """Number of scrapy_dq's workers. It is 1 if the plugin has a file that two processes cannot share."""
    before: tuple[int, int] = (99, 0)
    """The plugin works only with Scrapy before this version, whichever scheduler is used."""


PLUGINS = [
    Plugin(
        "scrapy-poet",
        {"ADDONS": {"scrapy_poet.Addon": 300}},
        """
        from web_poet import WebPage, field

        class TreePage(WebPage):
            @field
            def path(self):
                return str(self.url).split("/", 3)[3]

        class ProjectSpider(TreeSpider):
            name = SPIDER_NAME

            def parse(self, response, page: TreePage):
                yield from super().parse(response)
                self.crawler.stats.inc_value("pages made", bool(page.path))
        """,
        ["pages made"],
    ),
    Plugin(
        "spidermon",
        {
            "SPIDERMON_ENABLED": True,
            "EXTENSIONS": {"spidermon.contrib.scrapy.extensions.Spidermon": 500},
            "SPIDERMON_SPIDER_CLOSE_MONITORS": ["tree_project.spiders.spider.Monitors"],
            "SPIDERMON_MIN_ITEMS": 1,
        },
        """
        from spidermon.contrib.scrapy.monitors import FinishReasonMonitor, ItemCountMonitor
        from spidermon.core.suites import MonitorSuite

        class Monitors(MonitorSuite):
            monitors = [ItemCountMonitor, FinishReasonMonitor]

        class ProjectSpider(TreeSpider):
            name = SPIDER_NAME
        """,
    ),
    Plugin(
        "scrapy-deltafetch",
        {"DELTAFETCH_ENABLED": True, "SPIDER_MIDDLEWARES": {"scrapy_deltafetch.DeltaFetch": 100}},
        says=["deltafetch/skipped"],
        runs=2,
        workers=1,
        before=(2, 14),
    ),
    Plugin(
        "scrapy-user-agents",
        {
            "DOWNLOADER_MIDDLEWARES": {
                "scrapy.downloadermiddlewares.useragent.UserAgentMiddleware": None,
                "scrapy_user_agents.middlewares.RandomUserAgentMiddleware": 400,
            },
        },
    ),
    Plugin(
        "scrapy-impersonate",
        {
            "DOWNLOAD_HANDLERS": {
                "http": "scrapy_impersonate.ImpersonateDownloadHandler",
                "https": "scrapy_impersonate.ImpersonateDownloadHandler",
            },
            "USER_AGENT": None,
        },
        """
        class ProjectSpider(TreeSpider):
            name = SPIDER_NAME

            def parse(self, response):
                for result in super().parse(response):
                    if isinstance(result, scrapy.Request):
                        result.meta["impersonate"] = "chrome"
                    yield result
        """,
    ),
    Plugin(
        "scrapy-spider-metadata",
        {},
        """
        from pydantic import BaseModel
        from scrapy_spider_metadata import Args

        class Params(BaseModel):
            depth: int = 3

        class ProjectSpider(Args[Params], TreeSpider):
            name = SPIDER_NAME

            def parse(self, response):
                assert self.args.depth == 3
                yield from super().parse(response)
        """,
    ),
]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """Yield the URL of one server for all tests."""
    with RedisServer(appendonly=True) as server:
        yield server.url


@pytest.fixture(scope="module")
def site() -> Iterator[TreeSite]:
    """Yield a tree of 60 pages."""
    with TreeSite(pages=60) as site:
        yield site


@dataclass(frozen=True)
class Outcome:
    """The results of all runs of a project."""

    pages: Counter[str]
    items: Counter[str]
    says: set[str]
    reasons: set[str | None]
    stats: Counter[str]


@pytest.fixture
def crawled(tmp_path: Path, site: TreeSite, redis_url: str) -> Iterator[Callable[..., Outcome]]:
    """Yield a function that crawls a project with a plugin, in all its runs, and returns the outcome."""
    with ExitStack() as stack:

        def crawl(plugin: Plugin, name: str, workers: int, **settings: Any) -> Outcome:
            project = Project(
                tmp_path / name, [site.start_url], redis_url=redis_url, spider=SPIDER + dedent(plugin.spider),
                settings=plugin.settings | settings,
            )  # fmt: skip
            stack.callback(project.close)
            for _ in range(plugin.runs):
                project.start_workers(workers)
                reasons = set(project.wait())
            stats: Counter[str] = Counter()
            for worker in project.workers:
                stats.update({name: n for name, n in worker.stats.items() if isinstance(n, int)})
            says = {name for name in plugin.says if stats[name]}
            return Outcome(project.count("done"), project.count("item"), says, reasons, stats)

        yield crawl


@pytest.mark.parametrize("plugin", PLUGINS, ids=[plugin.package for plugin in PLUGINS])
def test_a_plugin_works_as_with_the_scheduler_of_scrapy(
    plugin: Plugin, crawled: Callable[..., Outcome], record_property: Callable[[str, object], None]
) -> None:
    """Pages, items and stats are equal. No request is local, and none fails."""
    version = importlib.metadata.version(plugin.package)
    if scrapy.version_info[:2] >= plugin.before:
        pytest.skip(f"{plugin.package} {version} does not work with Scrapy {scrapy.__version__}")
    scrapys = crawled(plugin, "scrapys", 1, **PLAIN)
    ours = crawled(plugin, "ours", plugin.workers)
    record_property("figures", f"{plugin.package} {version}: {ours.pages.total()} pages")
    assert scrapys.pages
    assert (ours.pages, ours.items) == (scrapys.pages, scrapys.items)
    assert scrapys.says == ours.says == set(plugin.says)
    assert ours.reasons == {"finished"}
    assert not ours.stats["dq/enqueued/local"]
    assert not ours.stats["dq/failed"] + ours.stats["log_count/ERROR"]


@pytest.mark.parametrize(
    ("package", "source"),
    [
        (
            "scrapy-playwright",
            "from scrapy_playwright.page import PageMethod\nrequest = Request(URL, meta={"
            "'playwright': True, 'playwright_page_methods': [PageMethod('wait_for_selector', 'div')]})",
        ),
        (
            "scrapy-splash",
            "from scrapy_splash import SplashRequest\n"
            "request = SplashRequest(URL, args={'wait': 0.5, 'lua_source': 'return 1'}, magic_response=True)",
        ),
        ("scrapy-zyte-api", "request = Request(URL, meta={'zyte_api': {'browserHtml': True, 'tags': []}})"),
    ],
    ids=["scrapy-playwright", "scrapy-splash", "scrapy-zyte-api"],
)
def test_the_requests_of_a_plugin_are_stored_whole(package: str, source: str) -> None:
    """The plugins need a browser or a service, so the test only stores and restores their requests."""
    if package == "scrapy-splash" and scrapy.version_info[:2] >= (2, 14):
        pytest.skip(f"it cannot be imported with Scrapy {scrapy.__version__}")
    importlib.metadata.version(package)
    made: dict[str, Any] = {"Request": Request, "URL": "http://localhost/"}
    exec(source, made)
    request = made["request"]
    codec = Codec(Spider("any"))
    again = codec.decode(codec.encode(request))
    assert type(again) is type(request)
    assert repr(again.meta) == repr(request.meta)
    assert again.to_dict().keys() == request.to_dict().keys()
