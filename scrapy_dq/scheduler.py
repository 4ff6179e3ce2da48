"""The scheduler by the name that it has in scrapy-redis; the same as `scrapy_dq.Scheduler`."""

from scrapy_dq.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
