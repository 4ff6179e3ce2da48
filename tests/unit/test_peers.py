"""Messages at the start of a crawl about settings that only scrapy-redis uses."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from scrapy_dq.frontier.model import Order
from scrapy_dq.settings import peers

EVERYTHING = {
    "SCHEDULER_QUEUE_KEY": "%(spider)s:requests",
    "SCHEDULER_DUPEFILTER_KEY": "%(spider)s:dupefilter",
    "DUPEFILTER_KEY": "dupefilter:%(timestamp)s",
    "SCHEDULER_DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "REDIS_KEY_CHECK_INTERVAL": 10,
    "REDIS_START_URLS_BATCH_SIZE": 16,
    "STATS_KEY": "%(spider)s:stats",
    "REDIS_DECODE_RESPONSES": True,
    "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
    "DQ_ORDER": "lifo",
}
PARAMS = {"redis_cls": "redis.StrictRedis", "retry_on_timeout": True, "encoding": "utf-8", "db": 1}


def said(order: Order = Order.PRIORITY_LIFO, **settings: Any) -> list[tuple[int, str]]:
    return list(peers.advice(settings, order))


def test_settings_with_the_same_meaning_are_not_logged() -> None:
    """A setting that the project has not set is not logged either."""
    assert said() == []
    assert said(
        SCHEDULER_QUEUE_CLASS="scrapy_redis.queue.FifoQueue",
        SCHEDULER_PERSIST=True,
        DUPEFILTER_DEBUG=True,
        REDIS_URL="redis://a",
        REDIS_ENCODING="utf-8",
        REDIS_PARAMS={"password": "x", "encoding": "utf-8"},
        STATS_CLASS="scrapy.statscollectors.MemoryStatsCollector",
        SCHEDULER_QUEUE_KEY=None,
    ) == []  # fmt: skip


def test_one_line_names_all_unused_settings() -> None:
    """One INFO line names all of them, however many there are."""
    [(level, line)] = said(Order.LIFO, **EVERYTHING, REDIS_PARAMS=PARAMS)
    assert level == logging.INFO
    for name in (*peers.UNUSED, "SCHEDULER_QUEUE_CLASS", "redis_cls in REDIS_PARAMS", "retry_on_timeout"):
        assert name in line
    assert "encoding" not in line
    [(_, line)] = said(STATS_KEY="x")
    assert [name for name in EVERYTHING if name in line] == ["STATS_KEY"]


def test_an_unknown_queue_class_is_warned_about() -> None:
    """The warning names the order in use and the setting that changes it."""
    [(level, line)] = said(Order.PRIORITY_FIFO, SCHEDULER_QUEUE_CLASS="project.queues.MyQueue")
    assert level == logging.WARNING
    for part in ("'project.queues.MyQueue'", "'priority-fifo'", "DQ_ORDER"):
        assert part in line
    assert said(SCHEDULER_QUEUE_CLASS="project.MyQueue", DQ_ORDER="priority-lifo")[0][0] == logging.INFO


def test_stats_that_would_block_the_loop_are_warned_about() -> None:
    """scrapy-redis's collector calls Redis for each count. So does a subclass of it."""
    theirs = type("RedisStatsCollector", (), {"__module__": "scrapy_redis.stats"})
    for cls in ("scrapy_redis.stats.RedisStatsCollector", theirs, type("Mine", (theirs,), {})):
        [(level, line)] = said(STATS_CLASS=cls)
        assert level == logging.WARNING
        assert "scrapy_dq.SharedStats" in line


@pytest.mark.parametrize(
    ("cls", "theirs"),
    [
        ("scrapy_redis.dupefilter.RFPDupeFilter", True),
        ("scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter", False),
        ("scrapy_dq.DupeFilter", False),
        (dict, False),
        (None, False),
    ],
)
def test_a_class_of_scrapy_redis_is_recognised_by_its_name(cls: Any, theirs: bool) -> None:
    """The setting may hold the class or its path. The class need not be installed."""
    assert peers.is_peer_class(cls) is theirs
