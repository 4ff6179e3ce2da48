"""Clients of Redis for programs beside a crawl, by the name of this module in scrapy-redis."""

from scrapy_dq.backend.clients import connect_url, get_redis, get_redis_from_settings

__all__ = ["connect_url", "get_redis", "get_redis_from_settings"]
