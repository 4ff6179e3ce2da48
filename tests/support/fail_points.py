"""A fail point: at the n-th call of a chosen method of the package, a worker kills itself with SIGKILL."""

from __future__ import annotations

import os
import signal
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from scrapy.crawler import Crawler

from scrapy_dq import Scheduler
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.worker import reclaim
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling.session import Session
from support.tree_spider import ItemRecord

EXTENSIONS = {"EXTENSIONS": {"support.fail_points.FailPoint": 0}}
"""Settings for a project whose workers may have a fail point."""
FEW_LEASES = 2
"""A worker with a fail point takes this number of leases per step of a reclaim, so it needs several steps."""
_ENVIRON = "FAIL_POINT"


class Place(NamedTuple):
    """The place before a call of *method*, or after its return."""

    cls: type
    method: str
    after: bool = False


PLACES = {
    "before the exchange is sent": Place(Frontier, "exchange"),
    # Redis has applied the exchange, but the worker has not seen the answer.
    "after the exchange": Place(Frontier, "exchange", after=True),
    # Leases are in the buffer, but the engine has taken none of them.
    "after the lease": Place(Session, "leases_arrived"),
    # The callback, or start(), has yielded a request and is not finished.
    "inside the callback": Place(Scheduler, "enqueue_request"),
    "in the middle of start()": Place(Scheduler, "enqueue_request"),
    "inside a pipeline": Place(ItemRecord, "process_item"),
    "between fence and drain": Place(Frontier, "drain"),
    "between two steps of the drain": Place(Frontier, "drain", after=True),
    "as the close begins": Place(Worker, "stop"),
    "before the leave": Place(Frontier, "leave"),
    "after the leave": Place(Frontier, "leave", after=True),
}


def fail_at(place: str, on_pass: int = 1) -> dict[str, str]:
    """Return the environment variable with which a worker dies at *place* in call number *on_pass*."""
    assert place in PLACES
    return {_ENVIRON: f"{on_pass} {place}"}


class FailPoint:
    """An extension that adds the fail point to its process, if the environment names one."""

    def __init__(self) -> None:
        on_pass, _, place = os.environ.get(_ENVIRON, "").partition(" ")
        if place:
            reclaim.DRAIN_LIMIT = FEW_LEASES
            _wrap(PLACES[place], int(on_pass))

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> FailPoint:
        """Make the extension before the spider opens. Source: scrapy/middleware.py"""
        return cls()


def _wrap(place: Place, on_pass: int) -> None:
    original = getattr(place.cls, place.method)
    passes = 0

    def passed(after: bool) -> None:
        nonlocal passes
        passes += after is place.after
        if passes == on_pass:
            os.kill(os.getpid(), signal.SIGKILL)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        passed(after=False)
        result = original(*args, **kwargs)
        passed(after=True)
        return result

    @wraps(original)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        passed(after=False)
        result = await original(*args, **kwargs)
        passed(after=True)
        return result

    setattr(place.cls, place.method, call_async if iscoroutinefunction(original) else call)
