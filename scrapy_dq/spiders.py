"""Spiders that Redis feeds, under their names in scrapy-redis; the same as in `scrapy_dq`."""

from scrapy_dq.start_urls.spiders import RedisCrawlSpider, RedisMixin, RedisSpider

__all__ = ["RedisCrawlSpider", "RedisMixin", "RedisSpider"]
