"""scrapy_dq: a distributed, crash-safe scheduler and dupefilter for Scrapy, kept in Redis."""

from scrapy_dq.addon import Addon
from scrapy_dq.dupefilter import DupeFilter
from scrapy_dq.scheduler import Scheduler

__all__ = ["Addon", "DupeFilter", "Scheduler", "__version__"]
__version__ = "0.1.0"
