"""Wakes a coroutine, at once or after a while."""

from __future__ import annotations

import asyncio


class Alarm:
    """For one waiting coroutine.

    Before Python 3.12 `asyncio.wait_for` makes a task for each wait, of which an exchange has several.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the wait that is under way; without effect if there is none."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, most_s: float) -> None:
        """Return at the next `ring`, at the latest after *most_s* seconds."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(most_s, self.ring)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
