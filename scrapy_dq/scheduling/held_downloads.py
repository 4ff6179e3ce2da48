"""Downloads that wait in a downloader middleware, perhaps for another page of the same site."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_dq.scheduling.engine_hooks import Settlement

LONG_S = 1.0
"""A request that waits for longer is held up."""


class HeldDownloads:
    """Calls *held_up* with requests that wait in a downloader middleware for long; per second, one is taken.

    They use no connection to their site. If they counted against its concurrency limit, the request that they
    wait for, such as a login, could not be sent.
    """

    def __init__(self, settlement: Settlement, held_up: Callable[[Request], bool]) -> None:
        """
        Args:
            held_up: returns False for a request that it does not take now.
        """
        self._settlement = settlement
        self._held_up = held_up
        self._looked_at = 0.0
        self._waiting: WeakSet[Request] = WeakSet()
        self._reported: WeakSet[Request] = WeakSet()

    def look(self) -> None:
        """Look for such requests, at most once per second; called if there is room, but nothing leased."""
        now = time.monotonic()
        if now - self._looked_at < LONG_S:
            return
        self._looked_at = now
        waiting = self._settlement.held_up().difference(self._reported)
        for_long = (request for request in waiting if request in self._waiting)
        held_up = next(filter(self._held_up, for_long), None)
        if held_up is not None:
            self._reported.add(held_up)
        self._waiting = WeakSet(waiting)
        if waiting:
            asyncio.get_running_loop().call_later(LONG_S, self._settlement.wake)
