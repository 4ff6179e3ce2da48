"""Calls one scheduler as Scrapy's engine and a spider do, without downloading anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from scrapy import Request, Spider
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object

PAGE = 13
"""Number of requests that a page yields before the event loop continues."""
AT_ONCE = 16
"""Number of requests that the engine takes before the event loop continues."""
DEADLINE_S = 120


class Idle(BaseScheduler):
    """The scheduler that the engine asks during a measurement. It has no requests, but records each call."""

    asked: asyncio.Event
    over = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Idle:
        """Build the scheduler. Source: scrapy/core/scheduler.py"""
        cls.asked = asyncio.Event()
        return cls()

    def has_pending_requests(self) -> bool:
        """Keep the engine running until the measurement ends."""
        return not self.over

    def enqueue_request(self, request: Request) -> bool:
        """Refuse the request."""
        return False

    def next_request(self) -> Request | None:
        """Return None. The engine calls this when the measured scheduler has woken it."""
        self.asked.set()
        return None


class Driver:
    """Calls one scheduler. The engine calls `Idle` instead."""

    def __init__(self, crawler: Crawler, scheduler: str) -> None:
        self._crawler = crawler
        self._scheduler: Any = build_from_crawler(load_object(scheduler), crawler)
        self._ours = scheduler.startswith("scrapy_dq")

    async def open(self, spider: Spider) -> None:
        """Open the scheduler, and wait until it is open."""
        await _finished(self._scheduler.open(spider))
        if self._ours:
            # The engine asks `Idle`, which looks like a scheduler class of the project. With such a class,
            # our scheduler keeps each request until the engine takes it, but here the engine takes none.
            # Also, no download handler gets a request here. So let each request count as sent.
            self._scheduler._ends.handed_out.watches = False
            self._scheduler._ends.outgoing._reached = None

    async def close(self) -> None:
        """Close the scheduler as at a shutdown, so that another process may continue the crawl."""
        await _finished(self._scheduler.close("shutdown"))

    def put_page(self, requests: Iterable[Request], new: bool) -> None:
        """Enqueue all requests, while the event loop waits."""
        enqueue = self._scheduler.enqueue_request
        for each in requests:
            if enqueue(each) is not new:
                raise RuntimeError(f"a request was {'known' if new else 'new'}")

    async def put(self, requests: Iterable[Request], new: bool) -> None:
        """Enqueue all requests, one page at a time."""
        source = iter(requests)
        while page := list(islice(source, PAGE)):
            self.put_page(page, new)
            await asyncio.sleep(0)

    async def take(self, count: int) -> None:
        """Take *count* requests. Each request is done immediately."""
        take, settle = self._scheduler.next_request, self._settled()
        while count:
            for _ in range(min(AT_ONCE, count)):
                taken = take()
                if taken is None:
                    # The engine also waits until the scheduler wakes it.
                    Idle.asked.clear()
                    await asyncio.wait_for(Idle.asked.wait(), DEADLINE_S)
                    break
                settle(taken)
                count -= 1
            else:
                await asyncio.sleep(0)

    def _settled(self) -> Callable[[Request], None]:
        if not self._ours:
            return lambda request: None
        downloaded = self._scheduler._ends.downloaded
        at_work = self._crawler.engine._slot.inprogress  # type: ignore[union-attr]

        def settle(request: Request) -> None:
            # The engine does this for each request.
            at_work.add(request)
            downloaded(request)
            at_work.remove(request)

        return settle

    async def all_told(self) -> None:
        """Wait until Redis has all puts and settlements of this process."""
        if self._ours:
            outbox = self._scheduler._session.worker.parts[0].protocol.outbox
            await self._until(lambda: not len(outbox))

    async def buffered(self, count: int) -> None:
        """Wait until *count* leases are in the buffer."""
        await self._until(lambda: self._scheduler._session.worker.parts[0].leases.buffered >= count)

    async def _until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError("the scheduler makes no progress")
            await asyncio.sleep(0.001)


async def _finished(answer: Any) -> None:
    """Wait for the result of `open` or `close`, which is None or a Deferred."""
    if answer is not None:
        await maybe_deferred_to_future(answer)
