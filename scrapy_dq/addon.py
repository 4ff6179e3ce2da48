"""One-line installation: `ADDONS = {"scrapy_dq.Addon": 500}`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapy_dq.settings import enabled, peers

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
_ITEM_STREAM = "scrapy_dq.items.stream.ItemStream"
_FEED_STORAGE = "scrapy_dq.crew.feeds.storage.UnbufferedFileFeedStorage"


class Addon:
    """Sets SCHEDULER and DUPEFILTER_CLASS at add-on priority. Local feeds get an unbuffered storage, unless
    FEED_STORAGES names another storage.

    With `DQ_ITEMS = "redis"`, it also adds an extension that sends items to Redis.

    Settings of the project and of the command line stay, because they have a higher priority. With
    `DQ_ENABLED = False`, the add-on sets nothing.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Scrapy's hook. Source: scrapy/utils/misc.py::build_from_crawler"""
        return cls(crawler)

    def update_settings(self, settings: BaseSettings) -> None:
        """Scrapy's hook for add-ons."""
        if not enabled(settings):
            logger.info(
                "DQ_ENABLED = False: scrapy_dq.Addon changes no settings, and scrapy_dq does not schedule "
                "requests"
            )
            # A URI in FEEDS may contain %(dq_worker)s, which needs a value also without scrapy_dq.
            self._crawler.signals.connect(self._name_worker, signals.spider_opened)
            return
        if peers.is_peer_class(settings.get("SCHEDULER")):
            logger.warning(
                "SCHEDULER = %s wins over scrapy_dq.Addon: this is a crawl of scrapy-redis. Remove that "
                "setting, or set SCHEDULER = 'scrapy_dq.Scheduler'",
                peers.name_of(settings["SCHEDULER"]),
            )
        else:
            self._crawler.signals.connect(self._check_scheduler, signals.spider_opened)
        settings.set("SCHEDULER", "scrapy_dq.Scheduler", "addon")
        settings.set("DUPEFILTER_CLASS", "scrapy_dq.DupeFilter", "addon")
        if settings.get("DQ_ITEMS") == "redis":
            # EXTENSIONS_BASE is used, because a spider's own EXTENSIONS replace the project's EXTENSIONS.
            settings["EXTENSIONS_BASE"].set(_ITEM_STREAM, 0, "default")
        storages = settings["FEED_STORAGES"]
        for scheme in ("", "file"):
            if scheme not in storages:
                storages[scheme] = _FEED_STORAGE

    def _check_scheduler(self) -> None:
        # The classes are loaded only here, because their modules may need the reactor, which Scrapy installs
        # after it has called the add-ons.
        from scrapy_dq.environment import is_one_off
        from scrapy_dq.scheduling.scheduler import Scheduler

        named = self._crawler.settings["SCHEDULER"]
        # Not issubclass(), because Scrapy counts every class with a scheduler's methods as a subclass.
        if Scheduler not in load_object(named).__mro__ and not is_one_off(self._crawler):
            logger.warning(
                "SCHEDULER = %s wins over scrapy_dq.Addon: requests are not in Redis, and each worker crawls "
                "all of them. Remove that setting, or set DQ_ENABLED = False if this is intended",
                peers.name_of(named),
            )

    def _name_worker(self, spider: Spider) -> None:
        spider.dq_worker = "local"  # type: ignore[attr-defined]
