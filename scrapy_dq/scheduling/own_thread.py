"""Makes calls that may never return; the end of the process does not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def within(timeout_s: float, call: Callable[[], T], name: str) -> T:
    """Run *call*, which must not raise, in another thread, and return its result.

    Raises:
        asyncio.TimeoutError: after *timeout_s*; *call* continues.
    """
    done: Future[T] = Future()

    def work() -> None:
        result = call()
        with suppress(InvalidStateError):  # the caller no longer waits
            done.set_result(result)

    # This is not a thread of the loop's executor, because a process waits for such threads before it ends.
    # The call may never return, for example if its server sends a byte from time to time.
    threading.Thread(target=work, name=f"scrapy-dq {name}", daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(done), timeout_s)
