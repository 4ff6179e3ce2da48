"""From any Python program: the interface of Python's own queue.Queue over a crawl, its promises included."""

from scrapy_dq.frontier.model import FrontierError, FrontierLost, FrontierRefused, FrontierUnavailable
from scrapy_dq.queue.calls import ShutDown
from scrapy_dq.queue.queue import Queue

__all__ = ["FrontierError", "FrontierLost", "FrontierRefused", "FrontierUnavailable", "Queue", "ShutDown"]
