"""The pipeline under its name in scrapy-redis; the same as `scrapy_dq.RedisPipeline`."""

from scrapy_dq.items.pipeline import RedisPipeline

__all__ = ["RedisPipeline"]
