"""Requests in scrapy-redis's format, and the orders in which its queues serve them."""

from __future__ import annotations

import pickle
from typing import Any

from scrapy import Request

ORDERS = {
    "PriorityQueue": ("priority-lifo", "priority-fifo"),
    "FifoQueue": ("fifo",),
    "LifoQueue": ("lifo",),
}
HOST = "http://example.com"


def url(number: int) -> str:
    return f"{HOST}/{number}"


def pages(count: int, **more: Any) -> list[Request]:
    return [Request(url(n), **more) for n in range(count)]


def member(**changes: Any) -> bytes:
    """Return a pickled request in scrapy-redis's format, with *changes*."""
    values = Request(f"{HOST}/changed", meta={"depth": 1}).to_dict() | changes
    return pickle.dumps(values, protocol=-1)
