"""Downloads that wait in a downloader middleware, for a page of their own site perhaps."""

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
"""Who waits for so long is held up."""


class HeldDownloads:
    """Calls *held_up* with requests that wait in a downloader middleware for long, one in a second.

    They are not at their site. If they took its room, what they wait for, such as a login, would find none.
    """

    def __init__(self, settlement: Settlement, held_up: Callable[[Request], None]) -> None:
        self._settlement = settlement
        self._held_up = held_up
        self._looked_at = 0.0
        self._waiting: WeakSet[Request] = WeakSet()
        self._told: WeakSet[Request] = WeakSet()

    def look(self) -> None:
        """Look, but not again within a second: nothing is to be had, though there is room for a request."""
        now = time.monotonic()
        if now - self._looked_at < LONG_S:
            return
        self._looked_at = now
        waiting = self._settlement.held_up().difference(self._told)
        held_up = next((request for request in waiting if request in self._waiting), None)
        if held_up is not None:
            self._told.add(held_up)
            self._held_up(held_up)
        self._waiting = WeakSet(waiting)
        if waiting:
            asyncio.get_running_loop().call_later(LONG_S, self._settlement.wake)
