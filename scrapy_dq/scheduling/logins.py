"""Logins and cookies that Scrapy's middlewares write into requests: each worker has its own."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.httpauth import HttpAuthMiddleware
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.url import url_is_from_any_domain
from w3lib.http import basic_auth_header

from scrapy_dq.codec import copied
from scrapy_dq.text import CREW_SHOWS, printable

logger = logging.getLogger(__name__)
_FROM_ENVIRONMENT = "_scheme_proxy"
META_KEYS, HEADERS = frozenset({_FROM_ENVIRONMENT}), frozenset({b"Cookie", b"Authorization"})
"""A request without any of these has nothing that `Logins.without` leaves out."""
# Source: scrapy/downloadermiddlewares/httpproxy.py::HttpProxyMiddleware._set_proxy_and_creds
_OF_PROXY = (_FROM_ENVIRONMENT, "proxy", "_auth_proxy")


class Logins:
    """The login of HTTPAUTH_USER, that of a proxy of the environment, and the cookies of a worker's jars.

    A retry or a redirect is a copy of a request that has been through the downloader middlewares.
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
        # A subclass with another process_request may send a header that it did not write.
        self._writes_cookies = (
            cookies is not None and type(cookies).process_request is CookiesMiddleware.process_request
        )

    def without(self, request: Request) -> Request:
        """Return *request* without what the middlewares will write into it again; never modifies it."""
        proxied = _FROM_ENVIRONMENT in request.meta
        has_cookies = self._has_cookies(request)
        if not (proxied or has_cookies or self._is_ours(request)):
            return request
        bare = copied(request)
        if has_cookies:
            del bare.headers[b"Cookie"]
        if self._is_ours(request):
            del bare.headers[b"Authorization"]
        if proxied:
            for key in _OF_PROXY:
                bare.meta.pop(key, None)
            bare.headers.pop(b"Proxy-Authorization", None)
        return bare

    def _is_ours(self, request: Request) -> bool:
        return (
            self._header is not None
            and request.headers.get(b"Authorization") == self._header
            and (not self._domain or url_is_from_any_domain(request.url, [self._domain]))
        )

    def _has_cookies(self, request: Request) -> bool:
        """Return whether *request* has a Cookie header that CookiesMiddleware will replace.

        Mostly it is a copy of one that it wrote into another request: each site chooses its length, up to
        hundreds of kB.
        """
        # Source: scrapy/downloadermiddlewares/cookies.py::CookiesMiddleware.process_request
        return (
            self._writes_cookies
            and bool(dict.get(request.headers, b"Cookie"))
            and not request.meta.get("dont_merge_cookies")
        )


_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data")
_names_a_login = re.compile(r"(?<![a-z])(?:log[-_]?in|sign[-_]?in|auth)(?![a-z])", re.IGNORECASE).search


class LoneLogin:
    """Warns once if a request that any worker may lease has logged this worker in: the others are not.

    A cookie alone is no sign of that: sites give cookies to every visitor, and each worker gets its own.
    """

    def __init__(
        self, crawler: Crawler, lease_of: Callable[[Request], bytes | None], workers: Callable[[], int]
    ) -> None:
        """
        Args:
            lease_of: returns None for a request that stays in this worker, or bypasses the scheduler.
            workers: returns how many workers the crawl has.
        """
        self._lease_of = lease_of
        self._workers = workers
        self._host = ""
        """The site that this worker has logged in to."""
        self._warned = False
        if crawler.get_downloader_middleware(CookiesMiddleware) is not None:
            crawler.signals.connect(self.downloaded, signals.response_downloaded)

    def downloaded(self, response: Response, request: Request) -> None:
        """Look at a response; the receiver of Scrapy's signal, which redirects also send."""
        if self._warned:
            return
        if not self._host:
            if not (b"Set-Cookie" in response.headers and _begins_a_session(request)):
                return
            if self._lease_of(request) is None:
                return
            self._host = urlparse_cached(request).hostname or ""
        if self._workers() > 1:  # another worker may join after the login
            self._warned = True
            logger.warning(
                "%s answered a login or a form with a cookie that only this worker has; other workers send "
                "what follows without it. docs/logins.md shows what to do",
                printable(self._host), extra={CREW_SHOWS: True},
            )  # fmt: skip


def _begins_a_session(request: Request) -> bool:
    """Tell whether a cookie in the answer is the result of *request*, and not one that every visitor gets."""
    if request.meta.get("dont_merge_cookies"):
        return False
    if request.meta.get("cookiejar") is not None:
        return True
    unsafe = request.method not in ("GET", "HEAD")
    if unsafe and (request.headers.get(b"Content-Type") or b"").lower().startswith(_FORMS):
        return True
    # A broad crawl also follows links to login pages.
    intended = unsafe or request.meta.get("is_start_request")
    return bool(intended and _names_a_login(urlparse_cached(request).path))
