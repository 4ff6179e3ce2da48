"""One style of I/O: each step is a coroutine, and a blocking client runs it to its end at once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar

T = TypeVar("T")


async def reply_of(called: Any) -> Any:
    """Return what a method of a client has returned: `redis` returns it, `redis.asyncio` has it awaited."""
    return await called if isawaitable(called) else called


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that uses a blocking client: it waits for Redis, but for no loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for an event loop, so its client is no blocking one")


def blocking(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Return a function that does at once what the coroutines of *function* do."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> T:
        return at_once(function(*args, **options))

    return call


def blocking_class(cls: type) -> type:
    """Return a class like *cls* whose own coroutine methods are blocking."""
    methods = {name: blocking(each) for name, each in vars(cls).items() if iscoroutinefunction(each)}
    return type(cls.__name__, (cls,), methods)
