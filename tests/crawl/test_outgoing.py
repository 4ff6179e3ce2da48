"""A domain's delay passes between two arrivals at the site, with any connection or download handler.

Each test fails if a new version of Scrapy or Twisted lacks a function that download_hooks.py uses.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from support.certificates import Authority
from support.domain_site import DomainSite
from support.given import MakeProject
from support.odd_site import OddSite
from support.project import Project
from support.redis_server import RedisServer
from support.tree_spider import spider_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.2.1 is an address on Linux only")

StartSite = Callable[..., OddSite]
TICK_S = 0.002
"""The allowed difference between the clocks that measure a delay and an arrival."""

# This handler does not report when it sends a request. It waits before it sends every other request.
SILENT = spider_of(
    """

class Silent:
    lazy = False
    numbers = count()

    async def download_request(self, request):
        if next(self.numbers) % 2 == 0:
            await asyncio.sleep(0.5)
        with await asyncio.to_thread(urlopen, request.url) as answer:
            return HtmlResponse(request.url, body=answer.read(), request=request)

    async def close(self):
        pass

if scrapy.version_info < (2, 14):
    class Silent(Silent):
        def download_request(self, request, spider):
            return deferred_from_coro(super().download_request(request))
""",
    before="from urllib.request import urlopen\nfrom scrapy.utils.defer import deferred_from_coro\n",
)


@pytest.fixture
def start_odd() -> Iterator[StartSite]:
    """Yield a function that starts an OddSite, and stops it after the test."""
    with ExitStack() as sites:
        yield lambda *args, **options: sites.enter_context(OddSite(*args, **options))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return Authority(tmp_path_factory.mktemp("tls")).context()


def crawl(project: Project, workers: int) -> None:
    project.start_workers(workers)
    assert project.wait(90) == ["finished"] * workers


@pytest.mark.parametrize("proxy", [False, True], ids=["straight", "through a proxy"])
def test_a_slow_connection_does_not_shorten_the_delay(
    proxy: bool,
    redis_server: RedisServer,
    make_project: MakeProject,
    start_odd: StartSite,
    certificate: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One request arrives half a second late. The next request still keeps the full delay."""
    site = start_odd(6, tls=certificate, slow_s=0.5)
    if proxy:
        monkeypatch.setenv("https_proxy", f"http://{site.address}")
    settings = {"DQ_DOMAIN_DELAY": 1.0, "HTTPPROXY_ENABLED": proxy}
    project = make_project([site.start_url], redis_url=redis_server.url, settings=settings)

    crawl(project, 2)

    assert sorted(seen.path for seen in site.log) == [f"/p/{n}" for n in range(6)]
    assert min(site.gaps) >= 1.0 - TICK_S


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_slow_answer_does_not_delay_the_next_request(
    tls: bool,
    redis_server: RedisServer,
    make_project: MakeProject,
    start_odd: StartSite,
    certificate: ssl.SSLContext,
) -> None:
    """Each new connection reports when its request is sent, so the worker need not wait for the answer."""
    site = start_odd(6, tls=certificate if tls else None, latency_s=2.0)
    settings = {"DQ_DOMAIN_DELAY": 0.1}
    project = make_project([site.start_url], redis_url=redis_server.url, settings=settings)

    crawl(project, 1)

    assert len(site.log) == 6
    assert max(seen.at_once for seen in site.log) >= 3
    assert min(site.gaps) >= 0.1 - TICK_S


def test_reused_connections_keep_the_delay_and_the_rate(
    redis_server: RedisServer, make_project: MakeProject
) -> None:
    """Connections are used for several requests. A slow answer does not delay the next request."""
    with DomainSite(count=1, pages=20, latency_s=1.0) as site:
        settings = {"DQ_DOMAIN_DELAY": 0.1, "CONCURRENT_REQUESTS_PER_DOMAIN": 4}
        project = make_project(site.start_urls, redis_url=redis_server.url, settings=settings)
        crawl(project, 1)
        log = site.log()
    assert max(asked.at_once for asked in log) >= 3
    assert min(b.at_s - a.at_s for a, b in pairwise(log)) >= 0.1 - TICK_S


def test_a_broken_connection_is_not_retried_at_once(
    redis_server: RedisServer, make_project: MakeProject, start_odd: StartSite
) -> None:
    """Twisted would repeat the request without a lease. Scrapy's RetryMiddleware keeps the delay."""
    site = start_odd(5, breaks=True)
    settings = {"DQ_DOMAIN_DELAY": 0.5, "RETRY_TIMES": 10}
    project = make_project([site.start_url], redis_url=redis_server.url, settings=settings)

    crawl(project, 1)

    assert site.broken
    assert {seen.path for seen in site.log} == {f"/p/{n}" for n in range(5)}
    assert min(site.gaps) >= 0.5 - TICK_S


def test_with_a_silent_download_handler_the_delay_counts_from_the_answer(
    redis_server: RedisServer, make_project: MakeProject, start_odd: StartSite
) -> None:
    """The worker does not learn when a request is sent, except that this was before its answer came."""
    site = start_odd(6)
    settings: dict[str, Any] = {
        "DQ_DOMAIN_DELAY": 1.0,
        "DOWNLOAD_HANDLERS": {"http": "tree_project.spiders.spider.Silent"},
    }
    project = make_project([site.start_url], redis_url=redis_server.url, settings=settings, spider=SILENT)

    crawl(project, 1)

    assert len(site.log) == 6
    assert min(site.gaps) >= 1.0 - TICK_S
