"""The frontier: all stored state of one crawl, and the workers that share it.

This package depends on Redis, but not on Scrapy.
"""

from scrapy_dq.frontier.admin.control import PartitionLimits, limit
from scrapy_dq.frontier.admin.entries import dead, failed, kept
from scrapy_dq.frontier.admin.overview import Overview, peek, shared_stats
from scrapy_dq.frontier.admin.retry import Retried, retry
from scrapy_dq.frontier.admin.seen import forget
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.records import Entry
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.worker import Worker

Dead = Failed = Entry

__all__ = [
    "Dead", "Entry", "Failed", "Frontier", "Overview", "PartitionLimits", "Retried", "Worker",
    "WorkerOptions", "dead", "failed", "forget", "kept", "limit", "peek", "retry", "shared_stats",
]  # fmt: skip
