"""If an awaitable of the project is cancelled, Scrapy gets an error that it handles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class AwaitedCancelled(RuntimeError):
    """An awaitable of start(), a callback or an item pipeline was cancelled from outside."""


@contextmanager
def cancellation_fails(running: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Replace a CancelledError with an error that Scrapy handles like any error of the project's code.

    A CancelledError would silently end the task that processes the response. Its request would stay in
    flight, or count as done without its items. The CancelledError is passed on only if Scrapy is not
    *running*, or if the task itself is cancelled, as at the end of the process. Before Python 3.11, a task
    cannot tell whether it is cancelled itself, so only *running* counts.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if getattr(asyncio.current_task(), "cancelling", int)() or not running():
            raise
        raise AwaitedCancelled("its awaitable was cancelled") from error


def uncancelled(original: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with cancellation_fails():
            return await original(*args, **kwargs)

    return call
