"""Logins that a stored request leaves out, because each worker's middlewares write them again."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import FormRequest, Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.httpauth import HttpAuthMiddleware
from scrapy.downloadermiddlewares.httpproxy import HttpProxyMiddleware
from scrapy.http import Response

from scrapy_dq.scheduling.logins import Logins, LoneLogin

SETTINGS = {"HTTPAUTH_USER": "me", "HTTPAUTH_PASS": "s3cret", "HTTPAUTH_DOMAIN": "example.com"}
HERE, ELSEWHERE = "http://www.example.com/", "http://example.org/"


class OwnSpider(Spider):
    name = "own"


class LoggedIn(Spider):
    name = "own"
    http_user, http_pass, http_auth_domain = "me", "s3cret", "example.com"


class OwnCookies(CookiesMiddleware):
    def process_request(self, request: Request, *spider: Spider) -> None:
        """Leave the request unchanged."""


BOTH = (HttpAuthMiddleware, HttpProxyMiddleware)
ALL = (*BOTH, CookiesMiddleware)


def crawler_of(cls: type[Spider], settings: dict[str, Any], enabled: tuple[Any, ...] = BOTH) -> Crawler:
    crawler = Crawler(cls, settings)
    crawler.spider = cls()
    manager = SimpleNamespace(middlewares=[each.from_crawler(crawler) for each in enabled])
    crawler.engine = SimpleNamespace(downloader=SimpleNamespace(middleware=manager))  # type: ignore[assignment]
    crawler.signals.send_catch_log(signals.spider_opened, spider=crawler.spider)
    return crawler


def sent(crawler: Crawler, request: Request) -> Request:
    """Return a copy of *request* after Scrapy's middlewares have changed it, like the copy for a retry."""
    for cls in ALL:
        middleware = crawler.get_downloader_middleware(cls)
        if middleware is not None:
            result = middleware.process_request(request, **_spider_of(middleware.process_request, crawler))
            assert result is None
    return request.copy()


def stored(logins: Logins, request: Request) -> Request:
    """Return a copy of *request* without logins."""
    copy = request.copy()
    logins.leave_out(copy)
    return copy


def _spider_of(method: Any, crawler: Crawler) -> dict[str, Any]:
    parameter = inspect.signature(method).parameters.get("spider")
    required = parameter is not None and parameter.default is inspect.Parameter.empty
    return {"spider": crawler.spider} if required else {}


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize(("cls", "settings"), [(LoggedIn, {}), (OwnSpider, SETTINGS)])
def test_the_login_of_the_project_is_not_stored(cls: type[Spider], settings: dict[str, Any]) -> None:
    """The worker that fetches the retry adds the login again. A login that the request brought is stored."""
    crawler = crawler_of(cls, settings)
    logins, request = Logins(crawler), sent(crawler, Request(HERE, headers={"X": "y"}))
    if b"Authorization" not in request.headers:
        pytest.skip("this Scrapy has no such settings")
    bare = stored(logins, request)
    assert b"Authorization" not in bare.headers
    assert bare.headers[b"X"] == b"y"
    assert b"Authorization" in request.headers
    assert sent(crawler, bare).headers == request.headers
    for kept in (
        Request(HERE, headers={"Authorization": "Bearer own"}),
        Request(ELSEWHERE, headers=request.headers),
        Request(HERE),
    ):
        assert stored(logins, kept).headers == kept.headers


def test_without_the_middleware_a_header_is_stored() -> None:
    request = sent(crawler_of(OwnSpider, SETTINGS), Request(HERE))
    bare = crawler_of(OwnSpider, SETTINGS, enabled=())
    assert stored(Logins(bare), request).headers == request.headers


def test_a_proxy_of_the_environment_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that the spider chose is stored, with the login that Scrapy has moved out of its URL."""
    monkeypatch.setenv("http_proxy", "http://me:s3cret@proxy:8080")
    crawler = crawler_of(OwnSpider, {})
    logins = Logins(crawler)
    request = sent(crawler, Request(HERE, meta={"x": 1}))
    assert request.meta["proxy"] == "http://proxy:8080"
    bare = stored(logins, request)
    assert bare.meta == {"x": 1}
    assert not bare.headers
    assert sent(crawler, bare).headers == request.headers
    chosen = sent(crawler, Request(HERE, meta={"proxy": "http://you:other@own:1"}))
    assert b"Proxy-Authorization" in chosen.headers
    assert stored(logins, chosen).headers == chosen.headers


def test_the_cookies_of_a_worker_are_not_stored() -> None:
    """A retry or redirect is stored without cookies. The worker that sends it adds its own cookies."""
    crawler = crawler_of(OwnSpider, {}, enabled=ALL)
    parent = Request(HERE, headers={"X": "y"}, cookies={"session": "s" * 900_000})
    retry = sent(crawler, parent)
    assert len(retry.headers[b"Cookie"] or b"") > 900_000
    bare = stored(Logins(crawler), retry)
    assert b"Cookie" not in bare.headers
    assert bare.headers[b"X"] == b"y"
    assert b"Cookie" in retry.headers
    assert sent(crawler, bare.replace(cookies={})).headers == parent.headers


def test_a_cookie_header_that_the_middleware_replaces_is_not_stored() -> None:
    """A Cookie header, copied or set by the spider, is left out, unless dont_merge_cookies keeps it."""
    crawler = crawler_of(OwnSpider, {}, enabled=ALL)
    logins = Logins(crawler)
    retry = sent(crawler, Request(HERE, cookies={"a": "b"}))
    own, unmerged = {"Cookie": "c=d"}, {"dont_merge_cookies": True}
    kept = sent(crawler, Request(HERE, headers=own, meta=unmerged))
    assert kept.headers[b"Cookie"] == b"c=d"
    for request in kept, retry.replace(meta=unmerged):
        assert stored(logins, request).headers == request.headers
    for request in retry, retry.replace(url=ELSEWHERE), Request(HERE, headers=own), kept.replace(meta={}):
        bare = stored(logins, request)
        assert b"Cookie" not in bare.headers
        assert sent(crawler, bare).headers == sent(crawler, request.copy()).headers


@pytest.mark.parametrize("enabled", [(), (OwnCookies,)])
def test_a_cookie_header_stays_if_scrapys_middleware_does_not_write_it(enabled: tuple[Any, ...]) -> None:
    request = Request(HERE, headers={"Cookie": "c=d"})
    assert stored(Logins(crawler_of(OwnSpider, {}, enabled=enabled)), request).headers


FORM = FormRequest(HERE + "enter", formdata={"user": "me"})


@pytest.mark.parametrize(
    ("request_", "warned"),
    [
        (FORM, True),
        (FORM.replace(method="GET"), False),
        (FORM.replace(meta={"dont_merge_cookies": True}), False),
        (Request(HERE, meta={"cookiejar": 0}), True),
        (Request(HERE + "api/search", method="POST", body=b"{}"), False),
        (Request(HERE + "login"), False),
    ],
)
def test_a_login_that_others_do_not_have_is_reported(
    request_: Request, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Cookies that a site gives to every visitor do not count as a login."""
    watch = lone_login(workers=2)
    for _ in range(2):
        watch.downloaded(Response(request_.url), request_)
        assert caplog.text == ""
    for _ in range(2):
        watch.downloaded(Response(request_.url, headers={"Set-Cookie": "id=1"}), request_)
    assert len(caplog.records) == warned
    assert ("www.example.com answered a login" in caplog.text) == ("docs/logins.md" in caplog.text) == warned


def test_a_login_is_reported_when_a_second_worker_joins(caplog: pytest.LogCaptureFixture) -> None:
    watch = lone_login(workers=1)
    watch.downloaded(Response(HERE, headers={"Set-Cookie": "id=1"}), FORM)
    assert caplog.text == ""
    watch._worker.census.workers = 2
    watch.downloaded(Response(ELSEWHERE), Request(ELSEWHERE))
    assert "www.example.com answered" in caplog.text


def test_a_login_of_each_worker_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A login that is `dq_local`, or that bypasses the scheduler, is sent by each worker, so not reported.

    A worker without cookies reports no logins at all.
    """
    lone_login(workers=2, leased=False).downloaded(Response(HERE, headers={"Set-Cookie": "id=1"}), FORM)
    crawler = crawler_of(OwnSpider, {}, BOTH)
    watch = LoneLogin(crawler, lambda request: b"id", worker_of(2))
    crawler.signals.send_catch_log(
        signals.response_downloaded, response=Response(HERE, headers={"Set-Cookie": "id=1"}), request=FORM
    )
    assert (caplog.text, watch._host) == ("", "")


def worker_of(workers: int) -> Any:
    return SimpleNamespace(census=SimpleNamespace(workers=workers))


def lone_login(workers: int, leased: bool = True) -> LoneLogin:
    lease = b"id" if leased else b""
    return LoneLogin(crawler_of(OwnSpider, {}, ALL), lambda request: lease, worker_of(workers))
