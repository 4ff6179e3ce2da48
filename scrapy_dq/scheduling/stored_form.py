"""The form in which a request is stored.

It lacks data that applies only once or that each worker adds itself, and its long texts are shortened.
"""

from __future__ import annotations

import re

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Headers

from scrapy_dq.scheduling.due_times import NOT_STORED, as_stored
from scrapy_dq.scheduling.logins import HEADERS, META_KEYS, Logins

MAX_LINK_TEXT = 1000
"""Maximum number of characters of a link text that are stored."""
MAX_REFERER_BYTES = 2048
"""A longer Referer is stored as its origin (scheme and host)."""
_ALTERED = NOT_STORED | META_KEYS | {"redirect_urls", "link_text"}
"""A request with one of these keys in its meta may be stored in another form.

For headers, see `HEADERS` and `has_long_referer`.
"""
# Source: scrapy/downloadermiddlewares/redirect.py::BaseRedirectMiddleware._redirect
_REDIRECT_KEYS = ("redirect_urls", "redirect_reasons")
_origin_of = re.compile(rb"(https?://)(?:[^/?#]*@)?([^/?#@]{1,300})(?=[/?#])", re.IGNORECASE).match


class StoredForm:
    """Makes the form in which a worker's requests are stored."""

    def __init__(self, crawler: Crawler) -> None:
        self._logins = Logins(crawler)

    def of(self, request: Request, parent: Request | None, continues: bool) -> Request:
        """Return the stored form of *request*, which stays unchanged.

        Args:
            parent: the request whose callback yielded *request*, or which *request* retries or
                redirects.
            continues: whether *request* is a retry or redirect.
        """
        meta, headers = request.meta, request.headers
        # Most requests have nothing to leave out, and a separate test of each part takes time.
        if _ALTERED.isdisjoint(meta) and HEADERS.isdisjoint(headers) and not has_long_referer(headers):
            return request
        stored = as_stored(request)
        self._logins.leave_out(stored)
        if not continues:
            leave_out_redirects(stored, parent)
        shorten_link_text(stored)
        shorten_referer(stored)
        return stored


def shorten_link_text(request: Request) -> None:
    """Leave only the beginning of a long link text.

    A page may have links within links. If 120 nested links enclose a text of 900 kB, the text would be stored
    120 times.
    """
    meta = request.meta
    text = meta.get("link_text")
    # Source: scrapy/spiders/crawl.py::CrawlSpider._build_request
    if isinstance(text, str) and type(meta.get("rule")) is int:
        meta["link_text"] = text[:MAX_LINK_TEXT]


def leave_out_redirects(request: Request, parent: Request | None) -> None:
    """Leave out the redirects of *parent* that the meta of *request* only repeats.

    A spider may pass on `response.meta`. After 19 redirects to URLs of 16 kB (together 300 kB), a page with
    3,000 links would store these URLs 3,000 times: 900 MB.

    Args:
        parent: the request whose callback yielded *request*. Retries and redirects by middlewares do not come
            here. A retry that a callback makes with `get_retry_request` comes here, so a request for the same
            URL keeps its redirects.
    """
    urls = request.meta.get("redirect_urls")
    # Each redirect makes the list longer, so an equal list is a copy.
    if urls and parent is not None and request.url != parent.url and urls == parent.meta.get("redirect_urls"):
        for key in _REDIRECT_KEYS:
            request.meta.pop(key, None)


def has_long_referer(headers: Headers) -> bool:
    """Tell whether the Referer is too long to be stored with each link.

    A page may have a URL of many kB and tens of thousands of links, and each link has that URL as Referer.
    """
    referers: list[bytes] = dict.get(headers, b"Referer") or []
    return sum(map(len, referers)) > MAX_REFERER_BYTES


def shorten_referer(request: Request) -> None:
    """Replace a long Referer with its origin; remove it if no origin is found."""
    if has_long_referer(request.headers):
        origin = _origin_of(request.headers[b"Referer"] or b"")
        if origin:
            request.headers[b"Referer"] = origin[1] + origin[2] + b"/"
        else:
            del request.headers[b"Referer"]
