"""scrapy_dq: a distributed, crash-safe scheduler and dupefilter for Scrapy, kept in Redis."""

from scrapy_dq.addon import Addon
from scrapy_dq.clients import get_redis, get_redis_from_settings
from scrapy_dq.dupefilter import DupeFilter
from scrapy_dq.pipelines import RedisPipeline
from scrapy_dq.queue import Queue, ShutDown
from scrapy_dq.scheduler import Scheduler
from scrapy_dq.shared_stats import SharedStats
from scrapy_dq.spiders import RedisCrawlSpider, RedisMixin, RedisSpider

__all__ = [
    "Addon", "DupeFilter", "Queue", "RedisCrawlSpider", "RedisMixin", "RedisPipeline", "RedisSpider",
    "Scheduler", "SharedStats", "ShutDown", "__version__", "get_redis", "get_redis_from_settings",
]  # fmt: skip
__version__ = "0.1.0"
