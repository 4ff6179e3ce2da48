"""The frontier: all stored state of one crawl, and the workers that share it.

Knows Redis; knows nothing of Scrapy.
"""

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.overview import Overview, peek
from scrapy_dq.frontier.worker import Worker, WorkerOptions

__all__ = ["Frontier", "Overview", "Worker", "WorkerOptions", "peek"]
