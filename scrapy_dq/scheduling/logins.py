"""Leaves out logins and cookies that Scrapy's middlewares write into requests: each worker has its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.httpauth import HttpAuthMiddleware
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.url import url_is_from_any_domain
from w3lib.http import basic_auth_header

from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.text import CREW_SHOWS, printable

logger = logging.getLogger(__name__)
_FROM_ENVIRONMENT = "_scheme_proxy"
META_KEYS, HEADERS = frozenset({_FROM_ENVIRONMENT}), frozenset({b"Cookie", b"Authorization"})
"""A request without any of these has nothing that `Logins.leave_out` removes."""
# Source: scrapy/downloadermiddlewares/httpproxy.py::HttpProxyMiddleware._set_proxy_and_creds
_OF_PROXY = (_FROM_ENVIRONMENT, "proxy", "_auth_proxy")


class Logins:
    """Removes the login of HTTPAUTH_USER, a proxy that an environment variable names, and a worker's cookies.

    A retry or a redirect contains these, because it is a copy of a request that has passed the downloader
    middlewares. A proxy is removed together with its login.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings, spider = crawler.settings, crawler.spider
        login = (settings.get("HTTPAUTH_USER"), settings.get("HTTPAUTH_PASS"))
        self._domain = settings.get("HTTPAUTH_DOMAIN")
        own = (getattr(spider, "http_user", ""), getattr(spider, "http_pass", ""))
        if any(own):
            login, self._domain = own, getattr(spider, "http_auth_domain", None)
        self._header: bytes | None = None
        if any(login) and crawler.get_downloader_middleware(HttpAuthMiddleware) is not None:
            self._header = basic_auth_header(*(text or "" for text in login))
        cookies = crawler.get_downloader_middleware(CookiesMiddleware)
        # A subclass with another process_request may send a Cookie header that the project has written.
        self._writes_cookies = (
            cookies is not None and type(cookies).process_request is CookiesMiddleware.process_request
        )

    def leave_out(self, request: Request) -> None:
        """Remove the logins and cookies from *request* that the middlewares will write into it again."""
        headers, meta = request.headers, request.meta
        # Usually the Cookie header is a copy from another request, where CookiesMiddleware wrote it. The site
        # chooses its length, up to hundreds of kB.
        # Source: scrapy/downloadermiddlewares/cookies.py::CookiesMiddleware.process_request
        if self._writes_cookies and not meta.get("dont_merge_cookies"):
            headers.pop(b"Cookie", None)
        if self._is_own_site(request):
            del headers[b"Authorization"]
        if _FROM_ENVIRONMENT in meta:
            for key in _OF_PROXY:
                meta.pop(key, None)
            headers.pop(b"Proxy-Authorization", None)

    def _is_own_site(self, request: Request) -> bool:
        return (
            self._header is not None
            and request.headers.get(b"Authorization") == self._header
            and (not self._domain or url_is_from_any_domain(request.url, [self._domain]))
        )


_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data")


class LoneLogin:
    """Warns once if a stored request has logged in this worker, because other workers are not logged in.

    A cookie alone is no sign of a login: sites give cookies to every visitor, and each worker gets its own.
    """

    def __init__(self, crawler: Crawler, lease_of: Callable[[Request], bytes], worker: Worker) -> None:
        """*lease_of* returns b"" for a request that stays in this worker, or bypasses the scheduler."""
        self._lease_of = lease_of
        self._worker = worker
        self._host = ""
        """The site that this worker has logged in to."""
        self._warned = False
        if crawler.get_downloader_middleware(CookiesMiddleware) is not None:
            crawler.signals.connect(self.downloaded, signals.response_downloaded)

    def downloaded(self, response: Response, request: Request) -> None:
        """Look at a response. Called by Scrapy's signal `response_downloaded`, also for redirects."""
        if self._warned:
            return
        if not self._host:
            if not (b"Set-Cookie" in response.headers and _begins_a_session(request)):
                return
            if not self._lease_of(request):
                return
            self._host = urlparse_cached(request).hostname or ""
        if self._worker.census.workers > 1:  # another worker may join after the login
            self._warned = True
            logger.warning(
                "%s answered a login or a form with a cookie that only this worker has; other workers send "
                "later requests without this cookie. docs/logins.md shows what to do",
                printable(self._host), extra={CREW_SHOWS: True},
            )  # fmt: skip


def _begins_a_session(request: Request) -> bool:
    """Tell whether a cookie in the answer is due to *request*, and not a cookie that every visitor gets."""
    if request.meta.get("dont_merge_cookies"):
        return False
    if request.meta.get("cookiejar") is not None:
        return True
    kind = (request.headers.get(b"Content-Type") or b"").lower()
    return request.method not in ("GET", "HEAD") and kind.startswith(_FORMS)
