"""The identity of a worker in the crawl that it joins."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.utils.request import RequestFingerprinter

from scrapy_dq.factory import identity_of
from scrapy_dq.frontier.model import Identity
from scrapy_dq.settings import Config


class Opening(Crawler):
    def crawl(self, *args: Any, **kwargs: Any) -> Any:
        yield


def identity(**kwargs: object) -> Identity:
    """Return the identity of a worker whose `crawl()` got these arguments."""
    crawler = Opening(Spider)
    crawler.spider = Spider("any")
    crawler.request_fingerprinter = RequestFingerprinter(crawler)
    crawling = crawler.crawl(**kwargs)
    next(crawling)
    return identity_of(Config.read({}, {"spider": "any"}), crawler)


@pytest.mark.parametrize(("rows", "own"), [(iter([1]), True), ([1], False)], ids=["iterator", "list"])
def test_a_start_whose_arguments_have_no_distinct_repr_belongs_to_its_worker(rows: object, own: bool) -> None:
    """No later start() counts as a repeat of this start(), not even after a restart of the same worker."""
    said = identity(rows=rows)
    assert said.starts.startswith("*") is own
    assert (said.restart_window_s == 0) is own
