"""The dupefilter under its names in scrapy-redis. The scheduler takes both for `scrapy_dq.DupeFilter`."""

from scrapy.dupefilters import RFPDupeFilter

from scrapy_dq.scheduling.dupefilter import DupeFilter

__all__ = ["DupeFilter", "RFPDupeFilter"]
