"""Follows requests from our `next_request` to the engine, if the project's scheduler overrides the method."""

from __future__ import annotations

import time
from collections.abc import Callable

from scrapy import Request

PATIENCE_S = 5.0
"""Seconds. If the project's `next_request` returns None this long after it received a request that it has not
passed on, it counts as having dropped the request."""


class HandedOut:
    """Finds out which copies the engine takes instead of requests, and which requests it never takes."""

    def __init__(self, moved: Callable[[Request, Request], None], skipped: Callable[[Request], None]) -> None:
        """
        Args:
            moved: called with a request and the copy that the engine takes.
            skipped: called with a request that the engine does not take.
        """
        self._moved = moved
        self._skipped = skipped
        self._waiting: dict[Request, float] = {}
        """Requests that the engine has not taken, each with the time when it was handed out."""
        self._newest: Request | None = None
        """The last request that was handed out in the current call."""
        self.watches = False

    def watched(self, next_request: Callable[[], Request | None]) -> Callable[[], Request | None]:
        """Return a wrapper of *next_request*, the project's method, for the engine to call."""
        self.watches = True

        def watched_next_request() -> Request | None:
            self._newest = None
            request = next_request()
            if request is None:
                self._give_up_old()
            elif self._waiting.pop(request, None) is None:
                self._take_copy(request)
            return request

        return watched_next_request

    def add(self, request: Request) -> None:
        """Record that our `next_request` returns *request*."""
        self._newest = request
        self._waiting[request] = time.monotonic()

    def _take_copy(self, taken: Request) -> None:
        same_page = (request for request in self._waiting if request.url == taken.url)
        request = next(same_page, self._newest)
        if request is not None:
            del self._waiting[request]
            self._moved(request, taken)

    def _give_up_old(self) -> None:
        before = time.monotonic() - PATIENCE_S
        for request in [request for request, since in self._waiting.items() if since <= before]:
            del self._waiting[request]
            self._skipped(request)
