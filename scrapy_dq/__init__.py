"""scrapy_dq: a distributed, crash-safe scheduler and dupefilter for Scrapy, kept in Redis."""

from scrapy_dq.addon import Addon
from scrapy_dq.dupefilter import DupeFilter
from scrapy_dq.queue import Queue, ShutDown
from scrapy_dq.scheduler import Scheduler
from scrapy_dq.spiders import RedisCrawlSpider, RedisMixin, RedisSpider

__all__ = [
    "Addon",
    "DupeFilter",
    "Queue",
    "RedisCrawlSpider",
    "RedisMixin",
    "RedisSpider",
    "Scheduler",
    "ShutDown",
    "__version__",
]
__version__ = "0.1.0"
