"""Which redirects are not stored again with each link of the page that they led to."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.statscollectors import DummyStatsCollector

from scrapy_dq.scheduling.stored_form import without_redirects_of

URL = "http://a.com/"
OF_PARENT = {"redirect_urls": [URL, URL + "1"], "redirect_reasons": [301, 302], "redirect_times": 2}


@pytest.mark.parametrize("copied", [OF_PARENT, {**OF_PARENT, "redirect_urls": [URL, URL + "1"]}])
def test_redirects_of_the_parent_are_left_out(copied: dict[str, Any]) -> None:
    """The request itself, which may be in progress, is unchanged."""
    request = Request(URL + "link", meta={**copied, "x": 1})
    parent = Request(URL, meta=dict(OF_PARENT))
    assert without_redirects_of(request, parent).meta == {"redirect_times": 2, "x": 1}
    assert request.meta == {**copied, "x": 1}


@pytest.mark.parametrize(
    ("meta", "parent"),
    [
        ({}, Request(URL, meta=dict(OF_PARENT))),
        (OF_PARENT, None),
        (OF_PARENT, Request(URL)),
        ({"redirect_urls": [URL, URL + "1", URL + "2"]}, Request(URL, meta=dict(OF_PARENT))),
        ({"redirect_urls": []}, Request(URL, meta={"redirect_urls": []})),
    ],
)
def test_others_stay(meta: dict[str, Any], parent: Request | None) -> None:
    request = Request(URL + "link", meta=dict(meta))
    assert without_redirects_of(request, parent) is request


def test_those_of_a_retry_stay() -> None:
    """A callback that is not content with its page yields its own request again."""
    parent = Request(URL + "3", meta=dict(OF_PARENT))
    crawler = Crawler(Spider)
    crawler.stats = DummyStatsCollector(crawler)
    spider = Spider.from_crawler(crawler, "any")
    retry = get_retry_request(parent, spider=spider, reason="empty page")
    assert retry is not None
    assert without_redirects_of(retry, parent) is retry
