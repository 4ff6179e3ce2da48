"""Redis clients for programs beside a crawl. scrapy-redis has a module of the same name."""

from scrapy_dq.backend.clients import connect_url, get_redis, get_redis_from_settings

__all__ = ["connect_url", "get_redis", "get_redis_from_settings"]
