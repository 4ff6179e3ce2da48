"""A message names the method of a project's own dupefilter that is never called."""

from __future__ import annotations

import logging

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.request import RequestFingerprinter

from scrapy_dq import DupeFilter
from scrapy_dq.scheduling.dupefilter import dupefilter_of


class Own(DupeFilter):
    def request_seen(self, request: Request) -> bool:
        raise AssertionError("it was called")


class Telling(DupeFilter):
    def log(self, request: Request, spider: Spider) -> None: ...


@pytest.mark.parametrize(("cls", "told"), [(Own, True), (Telling, False), (DupeFilter, False)])
def test_a_method_that_a_subclass_overrides_without_effect_is_named(
    cls: type[DupeFilter], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The crawl's shared `seen` decides, so a message reports that request_seen() is not called."""
    crawler = Crawler(Spider, {"DUPEFILTER_CLASS": cls})
    crawler.request_fingerprinter = RequestFingerprinter(crawler)
    with caplog.at_level(logging.INFO):
        dupefilter = dupefilter_of(crawler)
    assert type(dupefilter) is cls
    request = Request("http://a.example/")
    assert dupefilter.fingerprint(request) == crawler.request_fingerprinter.fingerprint(request)
    assert ("Own: its request_seen() is not called" in caplog.text) is told
    assert bool(caplog.text) is told
