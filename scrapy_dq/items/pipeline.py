"""RedisPipeline: sends Scrapy's items to a list or a stream in Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.utils.misc import load_object
from scrapy.utils.serialize import ScrapyJSONEncoder

from scrapy_dq.backend.connection import Connection
from scrapy_dq.environment import data_dir, require_asyncio
from scrapy_dq.frontier.rights import literal
from scrapy_dq.items.replay_log import MARK_PREFIX
from scrapy_dq.items.writer import ItemWriter
from scrapy_dq.refusal import refuse
from scrapy_dq.scheduling.engine_hooks import is_closing
from scrapy_dq.settings import Config, ConfigError, fill_items_key
from scrapy_dq.signals import items_given_up
from scrapy_dq.stats import names as stats

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class RedisPipeline:
    """Stores each item in Redis before its request is acked.

    `process_item` returns once Redis has the item, and a request is done only after its pipelines have
    returned. So the items that a killed worker had not stored are scraped again. Each item is stored at least
    once; `ItemWriter` describes when it is stored twice.

    Subclasses may override `item_key` and `serialize`.
    """

    serialize: Callable[[Any], str | bytes]
    """Returns the stored text of an item."""
    key = ""
    """The setting REDIS_ITEMS_KEY."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Check the settings. Source: scrapy/utils/misc.py::build_from_crawler

        Raises:
            ConfigError: one ERROR line was logged. The crawl is not opened, so no new run begins, which would
                delete the failed requests of the last run.
        """
        self = cls(crawler)
        self._checked()
        return self

    def open_spider(self, spider: Spider | None = None) -> None:
        """Check the settings. The first item connects to Redis.

        Raises:
            ConfigError: one ERROR line was logged.
        """
        config = self._checked(require_asyncio)
        self.key = config.items_key
        if not hasattr(self, "serialize"):
            self.serialize = _serializer(config.items_serializer)
        self._writer = ItemWriter(
            Connection(config, data_dir(config.data_dir)),
            config.items_type,
            closing=lambda: is_closing(self.crawler),
            grace_s=config.shutdown_grace_s,
            horizon_s=config.rollback_horizon_s,
            given_up=self._given_up,
            counted=self._counted,
        )
        # A signal calls close(), because in close_spider() Scrapy before 2.14 allows no coroutine, and newer
        # versions allow no Deferred.
        self.crawler.signals.connect(self._writer.close, signals.spider_closed)

    def _checked(self, more: Callable[[], None] = lambda: None) -> Config:
        try:
            more()
            config = Config.for_items(self.crawler.settings)
            fill_items_key(config.items_key, "any")
            _serializer(config.items_serializer)
        except ConfigError as error:
            refuse(logger, self.crawler, "scrapy_dq.RedisPipeline cannot start", error)
            raise
        return config

    def item_key(self, item: Any, spider: Spider) -> str | bytes:
        """Return the key that *item* is stored under."""
        return self.key % {"spider": spider.name}

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        """Return *item* once it is stored.

        Raises:
            ItemNotStored, TypeError: the item is not stored, and will not be.
            Exception: the serializer may raise any error.
        """
        spider = spider or self.crawler.spider
        assert spider is not None
        key, stored = self.item_key(item, spider), self.serialize(item)
        if isinstance(stored, str):
            stored = stored.encode()
        if not isinstance(stored, (bytes, bytearray)):
            raise TypeError(f"REDIS_ITEMS_SERIALIZER returned a {type(stored).__name__}, not str or bytes")
        await self._writer.write(key, bytes(stored))
        return item

    def _counted(self, stored: int, failed: int) -> None:
        assert self.crawler.stats is not None
        for name, count in ((stats.ITEMS_STORED, stored), (stats.ITEMS_FAILED, failed)):
            if count:
                self.crawler.stats.inc_value(name, count)

    def _given_up(self) -> str:
        receivers = self.crawler.signals.send_catch_log(items_given_up)
        if receivers:
            return "Their requests are released, and run again in the next crawl"
        return "They are lost: Scrapy's own scheduler considers their requests done"


def key_patterns(spider: Spider) -> tuple[str, ...]:
    """Return patterns of the keys that RedisPipeline uses for a spider; empty if the spider has none."""
    pipelines = spider.settings.getwithbase("ITEM_PIPELINES")
    classes = (load_object(path) for path, number in pipelines.items() if number is not None)
    if not any(isinstance(each, type) and issubclass(each, RedisPipeline) for each in classes):
        return ()
    items = fill_items_key(Config.for_items(spider.settings).items_key, spider.name)
    return literal(items), f"{MARK_PREFIX}*"


def _serializer(named: Any) -> Callable[[Any], str | bytes]:
    if not named:
        return ScrapyJSONEncoder().encode
    try:
        found = load_object(named)
    except (ImportError, NameError, ValueError, TypeError) as error:
        raise ConfigError(f"REDIS_ITEMS_SERIALIZER = {named!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"REDIS_ITEMS_SERIALIZER = {named!r}: expected a function, or its dotted path")
    return found  # type: ignore[no-any-return]
