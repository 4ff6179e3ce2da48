"""What Scrapy's queue settings mean here: a crawl has orders instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scrapy_dq.frontier.model import Order, StartQueue
from scrapy_dq.settings.peers import order_of_queue

_QUEUES = ("SCHEDULER_DISK_QUEUE", "SCHEDULER_MEMORY_QUEUE")
_BY_PRIORITY = (Order.PRIORITY_LIFO, Order.PRIORITY_FIFO)


def breadth_first_queues(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that request breadth-first order by Scrapy's recipe, if they decide it here."""
    if settings.get("DQ_ORDER") is not None or order_of_queue(settings):
        return []
    return [name for name in _QUEUES if "Fifo" in _name(settings.get(name))]


def start_queue_setting(settings: Mapping[str, Any]) -> str:
    """Return which of Scrapy's two settings of start queues Scrapy would use."""
    return f"SCHEDULER_START_{'DISK' if settings.get('JOBDIR') else 'MEMORY'}_QUEUE"


def start_queue(settings: Mapping[str, Any]) -> StartQueue:
    """Return where start requests are queued according to Scrapy's setting."""
    name = start_queue_setting(settings)
    queue = settings.get(name)
    if not queue:
        return StartQueue.SHARED if name in settings else StartQueue.FIFO
    return StartQueue.LIFO if "Lifo" in _name(queue) else StartQueue.FIFO


def queues_in_vain(settings: Mapping[str, Any], order: Order) -> list[str]:
    """Return Scrapy's queue settings whose class does not match *order*, or is unknown."""
    meant = dict.fromkeys(_QUEUES, "Fifo" if order is Order.PRIORITY_FIFO else "Lifo")
    meant[start_queue_setting(settings)] = "ifo"  # Fifo or Lifo
    return [
        name
        for name, kind in meant.items()
        if settings.get(name) and not (order in _BY_PRIORITY and kind in _name(settings.get(name)))
    ]


def _name(queue: Any) -> str:
    # Scrapy's own queue classes all have the same name, and derive from classes with distinct names.
    return " ".join(cls.__name__ for cls in queue.__mro__) if isinstance(queue, type) else str(queue)
