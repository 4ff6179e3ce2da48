"""The spiders of `scrapy_dq` that Redis feeds, in a module with the name that scrapy-redis uses."""

from scrapy_dq.start_urls.spiders import RedisCrawlSpider, RedisMixin, RedisSpider

__all__ = ["RedisCrawlSpider", "RedisMixin", "RedisSpider"]
