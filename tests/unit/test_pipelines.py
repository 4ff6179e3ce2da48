"""RedisPipeline: faults that are reported before a crawl begins, and methods that a project may override."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_dq import RedisPipeline
from scrapy_dq.items.pipeline import items_given_up
from scrapy_dq.settings import ConfigError

REDIS = {"REDIS_URL": "redis://127.0.0.1:9"}


def crawler(**settings: Any) -> Crawler:
    found = Crawler(Spider, REDIS | settings)
    found.spider = Spider("books")
    return found


def opened(pipeline: RedisPipeline) -> RedisPipeline:
    async def opening() -> None:
        pipeline.open_spider()

    asyncio.run(opening())
    return pipeline


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"REDIS_ITEMS_KEY": "%(name)s:items"}, "there is no 'name' here"),
        ({"REDIS_ITEMS_SERIALIZER": "no.such.function"}, "cannot be imported"),
        ({"REDIS_ITEMS_SERIALIZER": "json"}, "REDIS_ITEMS_SERIALIZER = 'json'"),
        ({"REDIS_ITEMS_SERIALIZER": "scrapy.__version__"}, "expected a function"),
        ({"DQ_ITEMS_TYPE": "set"}, "DQ_ITEMS_TYPE = 'set'"),
        ({"DQ_SHUTDOWN_GRACE": -1}, "DQ_SHUTDOWN_GRACE = -1"),
        ({"REDIS_PORT": "many"}, "REDIS_PORT (not shown here)"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    settings: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One ERROR line and a ConfigError name the setting, before the crawl is opened."""
    with pytest.raises(ConfigError) as refusal:
        RedisPipeline.from_crawler(crawler(**settings))
    [record] = [record for record in caplog.records if record.name == "scrapy_dq.items.pipeline"]
    assert record.levelno == logging.ERROR
    assert str(refusal.value) in record.getMessage()
    assert says in str(refusal.value)


def test_the_pipeline_does_not_check_settings_of_the_crawl() -> None:
    """Under Scrapy's own scheduler these settings have no effect; our scheduler checks them itself."""
    opened(RedisPipeline.from_crawler(crawler(DQ_CRAWL="%(no such name)s", DQ_ORDER="random", DQ_TYPO=1)))


def test_the_pipeline_needs_asyncio() -> None:
    """Another reactor is refused, and the error names the setting."""
    with pytest.raises(ConfigError, match="TWISTED_REACTOR"):
        RedisPipeline.from_crawler(crawler()).open_spider()


def test_a_serializer_can_be_a_function_a_path_or_a_method() -> None:
    """The default is Scrapy's JSON encoder."""
    item = {"name": "a"}
    assert opened(RedisPipeline(crawler())).serialize(item) == '{"name": "a"}'
    for serializer in (json.dumps, "json.dumps"):
        pipeline = opened(RedisPipeline(crawler(REDIS_ITEMS_SERIALIZER=serializer)))
        assert pipeline.serialize is json.dumps

    class Own(RedisPipeline):
        def serialize(self, item: Any) -> bytes:
            return b"own"

    assert opened(Own(crawler(REDIS_ITEMS_SERIALIZER="json.dumps"))).serialize(item) == b"own"


def test_the_default_key_contains_the_name_of_the_spider() -> None:
    """The default key is `SPIDER:items`, as in scrapy-redis."""
    for spider in (Spider("books"), Spider("toys")):
        assert opened(RedisPipeline(crawler())).item_key({}, spider) == f"{spider.name}:items"
    assert opened(RedisPipeline(crawler(REDIS_ITEMS_KEY="all"))).item_key({}, Spider("a")) == "all"


@pytest.mark.parametrize(("heard", "says"), [(False, "They are lost: Scrapy's own"), (True, "run again")])
def test_the_pipeline_reports_the_fate_of_items_that_it_gives_up(heard: bool, says: str) -> None:
    """With our scheduler, the requests of these items run again."""
    made = crawler()
    hear = SimpleNamespace(given_up=lambda: None)
    if heard:
        made.signals.connect(hear.given_up, items_given_up)
    assert says in opened(RedisPipeline(made))._given_up()
