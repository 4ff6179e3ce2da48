"""Lets the same coroutines use a client of `redis.asyncio` or of `redis`.

With a client of `redis`, which is blocking, a coroutine needs no event loop, and runs to its end at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar

T = TypeVar("T")


async def reply_of(called: Any) -> Any:
    """Return a client's reply: methods of `redis` return a reply, methods of `redis.asyncio` an awaitable."""
    return await called if isawaitable(called) else called


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that uses a blocking client, and so never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine waits for an event loop, so its client is not a blocking one")


def blocking(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Return a blocking version of *function*, whose coroutines have to use a blocking client."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> T:
        return at_once(function(*args, **options))

    return call


def blocking_class(cls: type) -> type:
    """Return a class like *cls* whose own coroutine methods are blocking."""
    methods = {name: blocking(each) for name, each in vars(cls).items() if iscoroutinefunction(each)}
    return type(cls.__name__, (cls,), methods)
