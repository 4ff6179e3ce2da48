"""The dupefilter under its names in scrapy-redis. The scheduler uses `scrapy_dq.DupeFilter` for both."""

from scrapy.dupefilters import RFPDupeFilter

from scrapy_dq.scheduling.dupefilter import DupeFilter

__all__ = ["DupeFilter", "RFPDupeFilter"]
