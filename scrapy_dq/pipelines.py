"""`scrapy_dq.RedisPipeline`, in a module with the name that scrapy-redis uses."""

from scrapy_dq.items.pipeline import RedisPipeline

__all__ = ["RedisPipeline"]
