"""Makes stored requests smaller: cuts long link texts and Referers, and leaves out copied redirects."""

from __future__ import annotations

import re

from scrapy import Request

from scrapy_dq.codec import copied

MAX_LINK_TEXT = 1000
"""Of a longer text, this many are stored."""


def with_short_link_text(request: Request) -> Request:
    """Return *request* with no more than the beginning of a long link text; never modifies it.

    A page may have links within links: 120 of them around 900 kB of text carry that text 120 times.
    """
    meta = request.meta
    text = meta.get("link_text")
    # Source: scrapy/spiders/crawl.py::CrawlSpider._build_request
    if not isinstance(text, str) or len(text) <= MAX_LINK_TEXT or type(meta.get("rule")) is not int:
        return request
    short = copied(request)
    short.meta["link_text"] = text[:MAX_LINK_TEXT]
    return short


# Source: scrapy/downloadermiddlewares/redirect.py::BaseRedirectMiddleware._redirect
_REDIRECT_KEYS = ("redirect_urls", "redirect_reasons")


def without_redirects_of(request: Request, parent: Request | None) -> Request:
    """Return *request* without the redirects of *parent* that its meta only repeats; never modifies it.

    A spider may pass on `response.meta`. 19 redirects to URLs of 16 kB and a page of 3,000 links, 300 kB in
    all, would become 900 MB.

    Args:
        parent: the request whose callback has yielded *request*; not one that this is a retry or redirect of.
            A request for the same URL counts as its retry, as `get_retry_request` makes one in a callback.
    """
    urls = request.meta.get("redirect_urls")
    # A redirect writes a longer list: an equal one is a copy.
    if not urls or parent is None or request.url == parent.url or urls != parent.meta.get("redirect_urls"):
        return request
    bare = copied(request)
    for key in _REDIRECT_KEYS:
        bare.meta.pop(key, None)
    return bare


MAX_REFERER_BYTES = 2048
"""A longer Referer is stored as its origin."""
_origin_of = re.compile(rb"(https?://)(?:[^/?#]*@)?([^/?#@]{1,300})(?=[/?#])", re.IGNORECASE).match


def with_short_referer(request: Request) -> Request:
    """Return *request* with no more than the origin of a long Referer, or none; never modifies it.

    A page may have a URL of many kB and tens of thousands of links: each of these has that URL as Referer.
    """
    referers = dict.get(request.headers, b"Referer")
    if not referers or sum(map(len, referers)) <= MAX_REFERER_BYTES:
        return request
    short = copied(request)
    origin = _origin_of(referers[-1])
    if origin:
        short.headers[b"Referer"] = origin[1] + origin[2] + b"/"
    else:
        del short.headers[b"Referer"]
    return short
