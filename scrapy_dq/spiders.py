"""Spiders that are fed through Redis, by their names in scrapy-redis; the same as those of `scrapy_dq`."""

from scrapy_dq.start_urls.spiders import RedisCrawlSpider, RedisMixin, RedisSpider

__all__ = ["RedisCrawlSpider", "RedisMixin", "RedisSpider"]
