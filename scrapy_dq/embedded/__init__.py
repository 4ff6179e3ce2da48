"""The embedded Redis: one redis-server in one directory, shared by all workers of a project on a machine."""

from scrapy_dq.embedded.binary import EmbeddedError
from scrapy_dq.embedded.server import EmbeddedRedis

__all__ = ["EmbeddedError", "EmbeddedRedis"]
