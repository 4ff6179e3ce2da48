"""The scheduler under its name in scrapy-redis; the same as `scrapy_dq.Scheduler`."""

from scrapy_dq.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
