"""Clients of Redis for programs beside a crawl, by the name of this module in scrapy-redis."""

from scrapy_dq.backend.clients import get_redis, get_redis_from_settings
from scrapy_dq.backend.connection import connect_url

__all__ = ["connect_url", "get_redis", "get_redis_from_settings"]
