"""The interface of Python's queue.Queue over a crawl, with the crawl's promises, for any Python program."""

from scrapy_dq.frontier.model import FrontierError, FrontierLost, FrontierRefused, FrontierUnavailable
from scrapy_dq.queue.calls import ShutDown
from scrapy_dq.queue.queue import Queue

__all__ = ["FrontierError", "FrontierLost", "FrontierRefused", "FrontierUnavailable", "Queue", "ShutDown"]
