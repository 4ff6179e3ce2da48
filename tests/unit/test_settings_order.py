"""DQ_ORDER, and the queue settings of Scrapy and scrapy-redis that choose an order."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy.settings import Settings
from scrapy.squeues import LifoMemoryQueue

from scrapy_dq.frontier.model import Order, StartQueue
from scrapy_dq.settings import Config, ignored_queue_settings
from support.read_settings import NAMES, read


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.LifoMemoryQueue"}, Order.PRIORITY_LIFO),
        ({"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}, Order.PRIORITY_FIFO),
        ({"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}, Order.PRIORITY_FIFO),
        ({"SCHEDULER_DISK_QUEUE": type("FifoQueue", (), {})}, Order.PRIORITY_FIFO),
        ({"SCHEDULER_MEMORY_QUEUE": "a.FifoMemoryQueue", "DQ_ORDER": "lifo"}, Order.LIFO),
    ],
)
def test_scrapys_recipe_for_breadth_first_order_is_understood(settings: dict[str, Any], order: Order) -> None:
    """FIFO queues mean `priority-fifo`, unless DQ_ORDER is set."""
    assert read(**settings).order is order


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, StartQueue.FIFO),
        ({"SCHEDULER_START_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}, StartQueue.FIFO),
        ({"SCHEDULER_START_MEMORY_QUEUE": LifoMemoryQueue}, StartQueue.LIFO),
        ({"SCHEDULER_START_MEMORY_QUEUE": None}, StartQueue.SHARED),
        ({"SCHEDULER_START_DISK_QUEUE": None}, StartQueue.FIFO),
        ({"SCHEDULER_START_DISK_QUEUE": None, "JOBDIR": "job"}, StartQueue.SHARED),
    ],
)
def test_scrapys_setting_decides_the_place_of_start_requests(
    settings: dict[str, Any], found: StartQueue
) -> None:
    """The setting of the disk queue counts only with a JOBDIR, because Scrapy needs one to use that queue."""
    assert read(**settings).start_queue is found
    project = Settings(settings)
    assert Config.read(project, NAMES).start_queue is found


@pytest.mark.parametrize(
    ("settings", "order", "named"),
    [
        ({"SCHEDULER_MEMORY_QUEUE": LifoMemoryQueue}, Order.PRIORITY_LIFO, []),
        ({"SCHEDULER_MEMORY_QUEUE": LifoMemoryQueue}, Order.FIFO, ["SCHEDULER_MEMORY_QUEUE"]),
        ({"SCHEDULER_DISK_QUEUE": "a.MyQueue"}, Order.PRIORITY_LIFO, ["SCHEDULER_DISK_QUEUE"]),
        ({"SCHEDULER_START_MEMORY_QUEUE": LifoMemoryQueue}, Order.PRIORITY_FIFO, []),
        ({"SCHEDULER_START_MEMORY_QUEUE": LifoMemoryQueue}, Order.LIFO, ["SCHEDULER_START_MEMORY_QUEUE"]),
        ({"SCHEDULER_START_MEMORY_QUEUE": "a.My"}, Order.PRIORITY_LIFO, ["SCHEDULER_START_MEMORY_QUEUE"]),
        ({"SCHEDULER_START_MEMORY_QUEUE": None}, Order.LIFO, []),
    ],
)
def test_queues_that_contradict_the_order_have_no_effect(
    settings: dict[str, Any], order: Order, named: list[str]
) -> None:
    assert ignored_queue_settings(settings, order) == named


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("PriorityQueue", Order.PRIORITY_LIFO),
        ("SpiderPriorityQueue", Order.PRIORITY_LIFO),
        ("FifoQueue", Order.FIFO),
        ("SpiderQueue", Order.FIFO),
        ("LifoQueue", Order.LIFO),
        ("SpiderStack", Order.LIFO),
    ],
)
def test_the_queue_class_of_scrapy_redis_chooses_the_order(name: str, order: Order) -> None:
    """Only the last part of the name counts, so changed import paths do no harm. DQ_ORDER has precedence."""
    for cls in (f"scrapy_redis.queue.{name}", f"scrapy_dq.queue.{name}", type(name, (), {})):
        assert read(SCHEDULER_QUEUE_CLASS=cls).order is order
        assert read(SCHEDULER_QUEUE_CLASS=cls, DQ_ORDER="priority-fifo").order is Order.PRIORITY_FIFO
        fifo = {"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}
        assert read(SCHEDULER_QUEUE_CLASS=cls, **fifo).order is order


@pytest.mark.parametrize("cls", ["project.MyQueue", "", None, 5, object()])
def test_another_queue_class_does_not_change_the_order(cls: Any) -> None:
    """scrapy_dq does not know the order of another class."""
    assert read(SCHEDULER_QUEUE_CLASS=cls).order is Order.PRIORITY_LIFO
