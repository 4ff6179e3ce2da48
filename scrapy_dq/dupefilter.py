"""The dupefilter by its name in scrapy-redis: each of the two means `scrapy_dq.DupeFilter`."""

from scrapy.dupefilters import RFPDupeFilter

from scrapy_dq.scheduling.dupefilter import DupeFilter

__all__ = ["DupeFilter", "RFPDupeFilter"]
