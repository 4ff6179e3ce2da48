"""The text of a link that CrawlSpider writes into the meta of its requests: a long one is cut."""

from __future__ import annotations

from scrapy import Request

from scrapy_dq.codec import copied

MAX_CHARACTERS = 1000
"""Of a longer text, this many are stored."""


def with_short_link_text(request: Request) -> Request:
    """Return *request* with no more than the beginning of a long link text; never modifies it.

    A page may have links within links: 120 of them around 900 kB of text carry that text 120 times.
    """
    meta = request.meta
    text = meta.get("link_text")
    # Source: scrapy/spiders/crawl.py::CrawlSpider._build_request
    if not isinstance(text, str) or len(text) <= MAX_CHARACTERS or type(meta.get("rule")) is not int:
        return request
    short = copied(request)
    short.meta["link_text"] = text[:MAX_CHARACTERS]
    return short
