"""If an awaitable of the project is cancelled, Scrapy gets an error that it handles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class AwaitedCancelled(RuntimeError):
    """What start(), a callback or an item pipeline has awaited was cancelled by something else."""


@contextmanager
def cancellation_fails(running: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Raise what Scrapy handles as a failure of start(), of a callback or of a pipeline, if it is *running*.

    A CancelledError ends the task that processes the response instead, without a word: its request would
    stay in flight, or count as done without its items. Only if that task itself is cancelled, as at
    the end of the process, it is passed on; before Python 3.11 a task does not tell.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if getattr(asyncio.current_task(), "cancelling", int)() or not running():
            raise
        raise AwaitedCancelled("what it awaited was cancelled") from error


def uncancelled(original: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with cancellation_fails():
            return await original(*args, **kwargs)

    return call
