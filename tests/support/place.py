"""The place of a crawl, read by a test's client."""

from __future__ import annotations

from typing import Any

from scrapy_dq.inspection.place import Place
from scrapy_dq.settings import Config


def place_of(client: Any, url: str, crawl: str = "-") -> Place:
    """Return a crawl's place on one Redis, at *url*."""
    config = Config.read({"DQ_CRAWL": crawl, "REDIS_URL": url}, {})
    return Place(client, "redis", config, lambda _: client, lambda: [client])
