"""`scrapy_dq.Scheduler`, in a module with the name that scrapy-redis uses."""

from scrapy_dq.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
