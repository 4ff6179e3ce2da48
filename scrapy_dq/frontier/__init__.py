"""The frontier: all stored state of one crawl, and the workers that share it.

Knows Redis; knows nothing of Scrapy.
"""

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.overview import Overview, peek


__all__ = ["Frontier", "Overview", "peek"]
