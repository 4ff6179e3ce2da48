"""Which texts of links are cut before a request is stored."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request

from scrapy_dq.scheduling.stored_form import MAX_LINK_TEXT, with_short_link_text

URL = "http://a.com/"
LONG = "x" * (MAX_LINK_TEXT + 1)


def test_of_a_long_text_the_beginning_stays() -> None:
    """The request itself, which may be in progress, is unchanged."""
    meta = {"rule": 0, "link_text": "ä" + LONG, "x": 1}
    request = Request(URL, meta=dict(meta))
    short = with_short_link_text(request)
    assert short.meta == meta | {"link_text": "ä" + "x" * (MAX_LINK_TEXT - 1)}
    assert request.meta == meta


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"rule": 0, "link_text": LONG[1:]},
        {"link_text": LONG},
        {"rule": "mine", "link_text": LONG},
        {"rule": None, "link_text": LONG},
        {"rule": 0, "link_text": [LONG]},
        {"rule": 0, "link_text": LONG.encode()},
    ],
)
def test_what_is_no_long_text_of_a_crawl_spider_stays(meta: dict[str, Any]) -> None:
    request = Request(URL, meta=meta)
    assert with_short_link_text(request) is request
