"""The settings of scrapy_dq: all are read and checked in one place."""

from scrapy_dq.settings.config import SETTINGS, Config, enabled, fill_items_key
from scrapy_dq.settings.peers import breadth_first_queues, ignored_queue_settings
from scrapy_dq.settings.setting import Backoff, ConfigError, Setting

__all__ = [
    "SETTINGS", "Backoff", "Config", "ConfigError", "Setting", "breadth_first_queues", "enabled",
    "fill_items_key", "ignored_queue_settings",
]  # fmt: skip
