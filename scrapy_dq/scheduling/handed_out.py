"""Requests on their way from our `next_request` to the engine, if a class of the project stands between."""

from __future__ import annotations

import time
from collections.abc import Callable

from scrapy import Request

KEY = "dq_handed_out"
"""In the meta of a request, and of its copies, until the engine takes one of them."""
PATIENCE_S = 5.0
"""A class that has nothing for the engine, this long after it got a request, has dropped that request."""


class HandedOut:
    """Finds the copy of a request that the engine takes in its place, and requests that it never takes."""

    def __init__(self, moved: Callable[[Request, Request], None], skipped: Callable[[Request], None]) -> None:
        """
        Args:
            moved: called with a request and the copy that the engine takes.
            skipped: called with a request that the engine does not take.
        """
        self._moved = moved
        self._skipped = skipped
        self._waiting: dict[int, tuple[Request, float]] = {}
        """With the time when each was handed out."""
        self._newest = 0
        self.watches = False

    def watched(self, next_request: Callable[[], Request | None]) -> Callable[[], Request | None]:
        """Return *next_request*, as the engine is to call it."""
        self.watches = True

        def watched_next_request() -> Request | None:
            before = self._newest
            request = next_request()
            if request is None:
                self._give_up_old()
            else:
                self._take(request, before)
            return request

        return watched_next_request

    def add(self, request: Request) -> None:
        """Note that our `next_request` returns *request*."""
        if self.watches:
            self._newest += 1
            request.meta[KEY] = self._newest
            self._waiting[self._newest] = request, time.monotonic()

    def _take(self, taken: Request, before: int) -> None:
        number = taken.meta.pop(KEY, None)
        if number is None and self._newest == before + 1:
            # `replace(meta=...)`: it is the only one that this call has got.
            request, _ = self._waiting[self._newest]
            number = self._newest if request.url == taken.url else None
        if number in self._waiting:
            request, _ = self._waiting.pop(number)
            if request is not taken:
                self._moved(request, taken)

    def _give_up_old(self) -> None:
        before = time.monotonic() - PATIENCE_S
        for number, (request, since) in list(self._waiting.items()):
            if since > before:
                break
            del self._waiting[number]
            request.meta.pop(KEY, None)
            self._skipped(request)
