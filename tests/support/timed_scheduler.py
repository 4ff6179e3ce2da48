"""A scheduler that records its longest calls. During each call, Scrapy's loop waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from scrapy.crawler import Crawler

from scrapy_dq import Scheduler
from support.project import Project
from support.tree_spider import Record

TIMED = "support.timed_scheduler.TimedScheduler"
METHODS = ("enqueue_request", "next_request", "has_pending_requests")


def _timed(name: str) -> Callable[..., Any]:
    original = getattr(Scheduler, name)

    @wraps(original)
    def method(self: TimedScheduler, *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(self, *args)
        finally:
            self.longest[name] = max(self.longest[name], time.perf_counter() - began)

    return method


class TimedScheduler(Scheduler):
    """Records `longest-<method>` in milliseconds for each of METHODS when it closes."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.longest = dict.fromkeys(METHODS, 0.0)
        self._record = Record(crawler)

    enqueue_request = _timed("enqueue_request")
    next_request = _timed("next_request")
    has_pending_requests = _timed("has_pending_requests")

    def close(self, reason: str) -> Any:
        """Record the longest calls, and close. Source: scrapy/core/scheduler.py"""
        for name, seconds in self.longest.items():
            self._record(f"longest-{name}", str(int(seconds * 1000)))
        return super().close(reason)


def longest_call_ms(project: Project, workers: int) -> int:
    """Return the longest call in milliseconds. Assert that each of *workers* has recorded all METHODS."""
    told = [int(e.path) for e in project.events() if e.event.startswith("longest-")]
    assert len(told) == workers * len(METHODS)
    return max(told)
