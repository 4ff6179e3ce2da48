"""One-line installation: `ADDONS = {"scrapy_dq.Addon": 500}`."""

from __future__ import annotations

from scrapy.settings import BaseSettings

_FEED_STORAGE = "scrapy_dq.feeds.UnbufferedFileFeedStorage"


class Addon:
    """Sets SCHEDULER, DUPEFILTER_CLASS and the unbuffered feed storage, at add-on priority.

    What the project or the command line sets stays: it has a higher priority.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Scrapy's hook for add-ons."""
        settings.set("SCHEDULER", "scrapy_dq.Scheduler", "addon")
        settings.set("DUPEFILTER_CLASS", "scrapy_dq.DupeFilter", "addon")
        storages = settings["FEED_STORAGES"]
        for scheme in ("", "file"):
            if scheme not in storages:
                storages[scheme] = _FEED_STORAGE
