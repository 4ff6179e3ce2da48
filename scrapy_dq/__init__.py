"""scrapy_dq: a distributed, crash-safe scheduler and dupefilter for Scrapy, kept in Redis."""

from scrapy_dq.addon import Addon
from scrapy_dq.backend.clients import get_redis, get_redis_from_settings
from scrapy_dq.items.pipeline import RedisPipeline
from scrapy_dq.queue import Queue, ShutDown
from scrapy_dq.revisits.policy import RevisitPolicy
from scrapy_dq.scheduling.dupefilter import DupeFilter
from scrapy_dq.scheduling.scheduler import Scheduler
from scrapy_dq.start_urls.spiders import RedisCrawlSpider, RedisMixin, RedisSpider
from scrapy_dq.stats.collector import SharedStats

__all__ = [
    "Addon", "DupeFilter", "Queue", "RedisCrawlSpider", "RedisMixin", "RedisPipeline", "RedisSpider",
    "RevisitPolicy", "Scheduler", "SharedStats", "ShutDown", "__version__", "get_redis",
    "get_redis_from_settings",
]  # fmt: skip
__version__ = "0.2.0"
