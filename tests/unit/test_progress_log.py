"""A worker's log lines about its run, its limits and its feeds."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exporters import BaseItemExporter
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import Settings

from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage
from scrapy_dq.frontier.answers import Joined
from scrapy_dq.frontier.model import Census, Identity, Limits, Status
from scrapy_dq.scheduling.progress_log import log_end, log_feeds, log_join
from scrapy_dq.settings import Config


@pytest.mark.parametrize(
    ("incomplete", "level", "says"),
    [
        (2, logging.ERROR, "but 2 start() did not complete"),
        (0, logging.WARNING, "has come back, or another worker has completed"),
    ],
)
def test_the_last_line_reports_whether_start_is_still_incomplete(
    incomplete: int, level: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker decided earlier to close. The line reports the state when the worker has left."""
    log_end("books", "start_incomplete", Census(incomplete=incomplete))
    (record,) = caplog.records
    assert (record.levelno, says in record.getMessage()) == (level, True)


@pytest.mark.parametrize(
    ("run_name", "ended_s", "says"),
    [
        ("", None, "run 4 has ended while this worker joined it: nothing to do"),
        ("nightly", None, "run 'nightly' is finished: nothing to do. Another DQ_RUN_NAME starts a new run"),
        ("", 7.0, "was finished 7 s ago by workers on several hosts"),
    ],
)
def test_a_worker_that_takes_no_part_logs_why(
    run_name: str, ended_s: float | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    joined = Joined(Status.FINISHED, "epoch", 4, True, Census(), "{}", ended_s=ended_s, run_name=run_name)
    config = Config("books", run_name=run_name)
    log_join(Crawler(Spider, Settings()), config, "here", joined, Identity("f", "s", "{}"))
    (record,) = caplog.records
    assert (record.levelno, says in record.getMessage()) == (logging.WARNING, True)


NARROW = Limits(0.5, 2, {}, 9, True)


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (None, NARROW, ""),
        (Limits(), Limits(), ""),
        (
            Limits(),
            NARROW,
            "now on: DQ_DOMAIN_DELAY = 0.5 (was 0.0); DQ_DOMAIN_CONCURRENCY = 2 (was 0); "
            "DQ_DOMAIN_BUDGET = 9/day (was 0). Give",
        ),
        (replace(NARROW, own={"0.example": (None, 3)}), NARROW, "now on: DQ_DOMAIN_LIMITS. Give"),
    ],
)
def test_a_worker_that_replaces_limits_warns_with_old_and_new_values(
    before: Limits | None, now: Limits, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Equal limits log nothing."""
    joined = Joined(Status.OK, "epoch", 4, True, Census(workers=2), "{}", before)
    crawl = Identity("f", "s", "{}", limits=now)
    log_join(Crawler(Spider, Settings()), Config("books"), "here", joined, crawl)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [says in line for line in warnings] == [True] * bool(says)


OURS = {"FEED_STORAGES": {"": UnbufferedFileFeedStorage, "file": UnbufferedFileFeedStorage}}
GZIP = "scrapy.extensions.postprocessing.GzipPlugin"


class WritesAtItsEnd(BaseItemExporter):
    """An exporter that writes only when it ends, like exporters for spreadsheets."""

    def export_item(self, item: Any) -> None: ...


@pytest.mark.parametrize(
    ("feed", "options", "more", "named"),
    [
        ("items.jsonl", {}, OURS, ""),
        ("items.jsonl", {"batch_item_count": 0}, OURS | {"FEED_EXPORT_BATCH_ITEM_COUNT": 5}, ""),
        ("items.jsonl", {}, {}, "items.jsonl"),
        ("items.jsonl", {"postprocessing": [GZIP]}, OURS, "items.jsonl"),
        ("%(batch_id)d.jsonl", {"batch_item_count": 5}, OURS, "%(batch_id)d.jsonl"),
        ("items.ods", {"format": "ods"}, OURS | {"FEED_EXPORTERS": {"ods": WritesAtItsEnd}}, "items.ods"),
        ("stdout:", {}, OURS, "stdout:"),
        ("ftp://user:s3cr3t@host/items.csv?x=s3cr3t", {}, OURS, "ftp://...@host/items.csv"),
    ],
)
def test_a_feed_that_would_lose_items_in_a_kill_is_named(
    feed: str, options: dict[str, Any], more: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Scrapy's own storages keep items in memory until a buffer is full, or until the spider closes."""
    crawler = Crawler(Spider, Settings(more | {"FEEDS": {feed: {"format": "jsonlines"} | options}}))
    crawler.spider = Spider("any")
    exporter = FeedExporter(crawler)
    exporter.open_spider(crawler.spider)
    crawler.extensions = Mock(middlewares=[exporter])
    log_feeds(crawler)
    said = [record.getMessage() for record in caplog.records if record.name.endswith(".progress_log")]
    assert [f": {named}. If" in line for line in said] == [True] * bool(named)
    assert "s3cr3t" not in caplog.text
