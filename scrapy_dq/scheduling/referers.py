"""The Referer of a stored request: a long one is cut, as browsers do."""

from __future__ import annotations

import re

from scrapy import Request

from scrapy_dq.codec import copied

MAX_BYTES = 2048
"""A longer Referer is stored as its origin."""
_origin_of = re.compile(rb"(https?://)(?:[^/?#]*@)?([^/?#@]{1,300})(?=[/?#])", re.IGNORECASE).match


def with_short_referer(request: Request) -> Request:
    """Return *request* with no more than the origin of a long Referer, or none; never modifies it.

    A page may have a URL of many kB and tens of thousands of links: each of these has that URL as Referer.
    """
    referers = dict.get(request.headers, b"Referer")
    if not referers or sum(map(len, referers)) <= MAX_BYTES:
        return request
    short = copied(request)
    origin = _origin_of(referers[-1])
    if origin:
        short.headers[b"Referer"] = origin[1] + origin[2] + b"/"
    else:
        del short.headers[b"Referer"]
    return short
