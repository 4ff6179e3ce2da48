"""Turns calls of Scrapy into calls of the worker. Decides nothing about stored state; never blocks."""

from __future__ import annotations

import logging
from collections.abc import Sized

from scrapy import Request, Spider
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import build_from_crawler
from twisted.internet.defer import Deferred

from scrapy_dq.environment import is_one_off
from scrapy_dq.hostnames import bound_punycode
from scrapy_dq.scheduling.ends import Ends
from scrapy_dq.scheduling.serving import Serving
from scrapy_dq.scheduling.session import Session
from scrapy_dq.scheduling.storing import Storing
from scrapy_dq.settings import enabled
from scrapy_dq.signals import items_given_up
from scrapy_dq.text import shown

logger = logging.getLogger(__name__)


class Scheduler(BaseScheduler):
    """`SCHEDULER`: shares one crawl among all workers with the same `DQ_CRAWL`.

    No method that the engine calls does network I/O; `open` and `close` return Deferreds.

    The `next_request` of a subclass may return a request's `copy()` or `replace()`. A request that
    this method drops counts as failed, and `scrapy dq failed` shows it. To drop requests, override
    `enqueue_request`.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BaseScheduler:  # type: ignore[override]
        """Return a scheduler.

        With `DQ_ENABLED = False`, and for `scrapy shell`, `fetch`, `view`, `parse` and `check`, this is
        Scrapy's own scheduler.
        """
        is_enabled = enabled(crawler.settings)
        if is_one_off(crawler) or not is_enabled:
            if not is_enabled:
                logger.info("DQ_ENABLED = False: using Scrapy's own scheduler, in this process only")
            if crawler.spider is not None:
                crawler.spider.dq_worker = "local"  # type: ignore[attr-defined]
            return build_from_crawler(ScrapyScheduler, crawler)
        return cls(crawler)

    _opened = _seeded = False
    _session: Session

    def __init__(self, crawler: Crawler) -> None:
        bound_punycode()
        self._crawler = crawler

    # Opening and closing.

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl; if this is not possible, log one ERROR line and let the Deferred fail."""
        return deferred_from_coro(self._open())

    async def _open(self) -> None:
        # The session is not made in from_crawler, because an exception there would leave the engine
        # half-initialized, which would hide the cause of the exception.
        self._session = session = Session.from_crawler(self._crawler)
        self._ends = Ends(session)
        await session.open(self._ends)
        self._storing = Storing(session)
        self._serving = Serving(session, self._ends)
        self._ends.begin(Scheduler.next_request)
        self._crawler.signals.connect(self._ends.release_unfinished, items_given_up)
        self._opened = True

    def close(self, reason: str) -> Deferred[None]:
        """Ack the finished leases, release the others, and leave. Safe if `open` failed or did not finish."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        if not hasattr(self, "_session"):
            return
        # This also releases leases that wait for local requests, because this process loses these requests.
        self._ends.release_unfinished()
        try:
            if self._opened:
                self._serving.declined.log_counts()
            await self._session.close(reason)
        finally:
            self._session.count.flush()  # next, Scrapy logs its stats

    # The engine's calls.

    def has_pending_requests(self) -> bool:
        """Return whether anything in the whole crawl, on any worker, is not done yet."""
        if not self._opened:
            return False
        hooks = self._session.hooks
        if self._session.left_out:
            # Close before the handlers of spider_idle add requests, because no worker would crawl them.
            hooks.close_spider("finished")
            return True
        self._note_start()
        if len(self._session.in_progress.local):
            return True
        listening = self._session.listening
        # If the worker only listens, Scrapy sends spider_idle, and the session raises DontCloseSpider.
        return not listening.idle() if listening.on else self._session.worker.pending

    def enqueue_request(self, request: Request) -> bool:
        """Put *request* into the outbox or the local queue. Return False if it is a duplicate, or dropped."""
        try:
            return self._storing.store(request)
        except Exception:
            # An exception from here would hang the engine, and lose the callback's next requests.
            logger.exception("Unexpected error while storing %s: it stays in this worker", shown(request))
            self._storing.keep(request)
            return True

    def next_request(self) -> Request | None:
        """Return the next leased or local request; None: no request can run now."""
        if not self._seeded:
            # Do not wait until the engine is idle. If this worker died before that, its complete start()
            # would count as interrupted.
            self._note_start()
        request = self._serving.next()
        if request is not None and self._ends.handed_out.watches:
            self._ends.handed_out.add(request)
        return request

    def _note_start(self) -> None:
        """End the worker's seeding if all that start() has yielded is in the outbox, or done."""
        hooks = self._session.hooks
        if hooks.start_over and not self._session.in_progress.local.parentless:
            self._session.worker.seeded(failed=hooks.start_failed)
            self._seeded = True

    def __len__(self) -> int:
        """Return the number of requests that wait in the whole crawl, as of the last exchange."""
        return len(self.dqs) + len(self.mqs)

    # Source: scrapy/utils/engine.py::get_engine_status, which est() of the telnet console prints
    @property
    def dqs(self) -> Sized:
        """An object with the length of the backlog at the last exchange; tools look for this name."""
        return range(self._session.worker.census.waiting if self._opened else 0)

    @property
    def mqs(self) -> Sized:
        """The requests that stay in this worker; tools look for this name."""
        return self._session.in_progress.local if self._opened else ()
