"""What is seen of a crawl, as server-sent events: each new look, and why there is none."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from scrapy_dq.web.guard import Receive, Scope, Send
from scrapy_dq.web.looks import Looks, Seen, Subject

MOST_LISTENERS = 100
KEEP_ALIVE_S = 10.0
"""A comment is sent so often if nothing else is: it finds out that a browser is gone."""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # for nginx in front of it
]


def envelope(seen: Seen) -> str:
    """Return what was seen as JSON in one line, with its age."""
    age_s = "null" if not seen.body else f"{time.monotonic() - seen.at:.3f}"
    error = json.dumps(seen.error)
    found = "true" if seen.found else "false"
    return f'{{"age_s": {age_s}, "error": {error}, "found": {found}, "look": {seen.body or "null"}}}'


class Feeds:
    """Counts the listeners, of whom there is a bounded number."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self.listeners = 0

    def full(self) -> bool:
        return self.listeners >= MOST_LISTENERS

    def of(self, subject: Subject) -> Any:
        """Return an ASGI app that sends what is seen of *subject*, until browser or server end it."""

        async def feed(scope: Scope, receive: Receive, send: Send) -> None:
            self.listeners += 1
            gone = asyncio.ensure_future(_gone(receive))
            try:
                await self._send(subject, gone, send)
            finally:
                self.listeners -= 1
                gone.cancel()

        return feed

    async def _send(self, subject: Subject, gone: asyncio.Future[None], send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        number = 0
        while not (self._looks.closed or gone.done()):
            news = asyncio.ensure_future(self._looks.newer(subject, number, KEEP_ALIVE_S))
            either: list[asyncio.Future[Any]] = [news, gone]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    break
                seen = news.result()
            finally:
                news.cancel()
            text = f"data: {envelope(seen)}\n\n" if seen.number != number else ":\n\n"
            number = seen.number
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        with suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    message: MutableMapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
