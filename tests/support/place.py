"""A `Place` (a crawl and a client of its Redis) that uses a test's client."""

from __future__ import annotations

from typing import Any

from scrapy_dq.inspection.place import Place
from scrapy_dq.settings import Config


def place_of(client: Any, url: str, crawl: str = "-") -> Place:
    """Return the `Place` of a crawl on the Redis at *url*, with *client* as its only client."""
    config = Config.read({"DQ_CRAWL": crawl, "REDIS_URL": url}, {})
    return Place(client, "redis", config, lambda _: client, lambda: [client])
