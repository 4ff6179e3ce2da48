"""The dupefilter under both names of scrapy-redis. With either name, the scheduler uses our DupeFilter."""

from scrapy.dupefilters import RFPDupeFilter

from scrapy_dq.scheduling.dupefilter import DupeFilter

__all__ = ["DupeFilter", "RFPDupeFilter"]
