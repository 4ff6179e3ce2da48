"""Scrapy's queue settings and the settings of scrapy-redis: their meaning here, and log lines about them.

Nothing of scrapy-redis is imported. The last part of a class's name identifies the class.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from scrapy_dq.frontier.model import Order, StartQueue

QUEUE_CLASS = "SCHEDULER_QUEUE_CLASS"
_ORDERS = {
    "PriorityQueue": Order.PRIORITY_LIFO,
    "SpiderPriorityQueue": Order.PRIORITY_LIFO,
    "FifoQueue": Order.FIFO,
    "SpiderQueue": Order.FIFO,
    "LifoQueue": Order.LIFO,
    "SpiderStack": Order.LIFO,
}
UNUSED = (
    "SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY", "DUPEFILTER_KEY", "SCHEDULER_DUPEFILTER_CLASS",
    "REDIS_KEY_CHECK_INTERVAL", "REDIS_START_URLS_BATCH_SIZE", "STATS_KEY", "REDIS_DECODE_RESPONSES",
)  # fmt: skip
"""Settings of scrapy-redis that have no effect on a crawl."""
UNUSED_PARAMS = (
    "redis_cls", "retry", "retry_on_error", "retry_on_timeout", "connection_pool", "decode_responses"
)  # fmt: skip
"""Arguments in REDIS_PARAMS that the clients of workers and commands do not use."""
_QUEUES = ("SCHEDULER_DISK_QUEUE", "SCHEDULER_MEMORY_QUEUE")


def name_of(cls: Any) -> str:
    """Return the dotted path of a class that is given as a path or as the class itself."""
    if isinstance(cls, type):
        return f"{cls.__module__}.{cls.__qualname__}"
    return str(cls)


def is_peer_class(cls: Any) -> bool:
    """Tell whether *cls*, a dotted path or a class, belongs to scrapy-redis or derives from such a class."""
    lineage = cls.__mro__ if isinstance(cls, type) else (cls,)
    return any(name_of(ancestor).startswith("scrapy_redis.") for ancestor in lineage)


def order_of_queue(settings: Mapping[str, Any]) -> Order | None:
    """Return the order that SCHEDULER_QUEUE_CLASS stands for, or None if it is not set or unknown."""
    cls = settings.get(QUEUE_CLASS)
    return _ORDERS.get(name_of(cls).rpartition(".")[2]) if cls else None


def advice(settings: Mapping[str, Any], order: Order) -> Iterator[tuple[int, str]]:
    """Yield the log lines for a crawl that begins with these settings, each with its level.

    Args:
        order: the crawl's order.
    """
    given = settings.get("DQ_ORDER") is not None
    queue = settings.get(QUEUE_CLASS)
    if queue and not given and order_of_queue(settings) is None:
        text = f"{QUEUE_CLASS} = {name_of(queue)!r} is not a queue of scrapy-redis: the order is "
        yield logging.WARNING, f"{text}{order.value!r}. Set DQ_ORDER for another order"
    if is_peer_class(settings.get("STATS_CLASS")):
        text = (
            f"STATS_CLASS = {name_of(settings['STATS_CLASS'])} blocks the event loop with a command to Redis"
        )
        yield logging.WARNING, f"{text} for each count. Set STATS_CLASS = 'scrapy_dq.SharedStats'"
    unused = [name for name in UNUSED if settings.get(name) is not None]
    unused += [QUEUE_CLASS] if queue and given else []
    params = settings.get("REDIS_PARAMS")
    if isinstance(params, Mapping):
        unused += [f"{name} in REDIS_PARAMS" for name in UNUSED_PARAMS if name in params]
    if unused:
        text = f"These settings of scrapy-redis have no effect: {', '.join(unused)}"
        yield logging.INFO, f"{text} (docs/from-scrapy-redis.md)"


def breadth_first_queues(settings: Mapping[str, Any]) -> list[str]:
    """Return the queue settings that request breadth-first order by the recipe in Scrapy's documentation.

    Return an empty list if DQ_ORDER or SCHEDULER_QUEUE_CLASS decides about the order.
    """
    if settings.get("DQ_ORDER") is not None or order_of_queue(settings):
        return []
    return [name for name in _QUEUES if "Fifo" in _name(settings.get(name))]


def start_queue_setting(settings: Mapping[str, Any]) -> str:
    """Return the name of the setting for the queue of start requests; Scrapy has one for each storage."""
    return f"SCHEDULER_START_{'DISK' if settings.get('JOBDIR') else 'MEMORY'}_QUEUE"


def start_queue(settings: Mapping[str, Any]) -> StartQueue:
    """Return the queue of start requests according to Scrapy's setting."""
    name = start_queue_setting(settings)
    queue = settings.get(name)
    if not queue:
        return StartQueue.SHARED if name in settings else StartQueue.FIFO
    return StartQueue.LIFO if "Lifo" in _name(queue) else StartQueue.FIFO


def ignored_queue_settings(settings: Mapping[str, Any], order: Order) -> list[str]:
    """Return Scrapy's queue settings whose class does not match *order*, or is unknown."""
    meant = dict.fromkeys(_QUEUES, "Fifo" if order is Order.PRIORITY_FIFO else "Lifo")
    meant[start_queue_setting(settings)] = "ifo"  # Fifo or Lifo
    return [
        name
        for name, kind in meant.items()
        if settings.get(name) and not (order.by_priority and kind in _name(settings.get(name)))
    ]


def _name(queue: Any) -> str:
    # All of Scrapy's own queue classes have the same name, but derive from classes with different names.
    return " ".join(cls.__name__ for cls in queue.__mro__) if isinstance(queue, type) else str(queue)
