"""The start keys of a spider, from its attributes or the settings."""

from __future__ import annotations

import logging
import math
from typing import Any

from scrapy import Spider, signals
from scrapy.crawler import Crawler

from scrapy_dq.backend.connection import Connection
from scrapy_dq.codec import formats
from scrapy_dq.frontier.model import StartKeys
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.start_urls.spiders import RedisMixin

logger = logging.getLogger(__name__)


def start_keys_of(spider: Spider, config: Config) -> StartKeys | None:
    """Return the start keys of *spider* (None: it has no keys), and fill in its attributes that are None.

    Raises:
        ConfigError: an attribute of the spider, or a setting, cannot be used.
    """
    if not isinstance(spider, RedisMixin):
        return None
    given = config.start_urls_key if spider.redis_key is None else spider.redis_key
    names = [given] if isinstance(given, str) else given
    try:
        # scrapy-redis uses %(name)s here and %(spider)s elsewhere.
        filled = [name % {"name": spider.name, "spider": spider.name} for name in names]
    except (TypeError, ValueError, KeyError) as error:
        raise _wrong_key(
            given, f"a key's name, or several, with %(name)s for the spider's ({error})"
        ) from None
    if not filled or not all(isinstance(name, str) and name.strip() for name in filled):
        raise _wrong_key(given, "a name that is not empty")
    spider.redis_key = filled[0] if isinstance(given, str) else filled
    spider.redis_encoding = spider.redis_encoding or config.redis_encoding
    return StartKeys(config.start_kind, tuple(dict.fromkeys(filled)), bytes((formats.PAYLOAD,)))


def patience_s(spider: Spider, config: Config) -> float:
    """Return how many idle seconds a spider stays open for start payloads; inf: without limit.

    Raises:
        ConfigError: its `max_idle_time` cannot be used.
    """
    if not isinstance(spider, RedisMixin):
        return config.idle_before_close_s
    given: Any = config.max_idle_time_s if spider.max_idle_time is None else spider.max_idle_time
    try:
        longest = float(given)
        if not longest >= 0:
            raise ValueError
    except (TypeError, ValueError):
        raise ConfigError(
            f"max_idle_time of {type(spider).__name__} = {given!r}: expected seconds, 0 or more; 0 keeps the "
            f"spider open without a limit"
        ) from None
    spider.max_idle_time = longest
    return max(longest, config.idle_before_close_s) if longest else math.inf


def feed_spider(crawler: Crawler, start_keys: StartKeys, connection: Connection, *, embedded: bool) -> None:
    """Give a fed spider its Redis client, connect its `spider_idle`, and log its keys."""
    spider = crawler.spider
    assert isinstance(spider, RedisMixin)
    spider.server = connection.blocking()
    crawler.signals.connect(spider.spider_idle, signals.spider_idle)
    stay = f"closes after {spider.max_idle_time:g} s" if spider.max_idle_time else "stays open"
    logger.info("Fed by %s; %s without work", ", ".join(start_keys.keys), stay)
    if embedded:
        logger.warning(
            "These keys are in the embedded Redis (%s): programs that push to a Redis server do not use it. "
            "Set REDIS_URL to that server, for example redis://localhost:6379",
            connection.target,
        )


def _wrong_key(given: Any, expected: str) -> ConfigError:
    return ConfigError(f"redis_key (REDIS_START_URLS_KEY) = {given!r}: expected {expected}")
