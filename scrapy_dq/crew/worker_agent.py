"""The worker's side of a crew: stops the worker if its parent dies, sends reports, and journals items."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_dq.crew import pipes
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.feeds.journal import Journal
from scrapy_dq.crew.feeds.storage import UnbufferedFileFeedStorage, use_storage
from scrapy_dq.crew.pipes import Handshake
from scrapy_dq.factory import codec_of, config_of
from scrapy_dq.signals import crawl_joined, crawl_opening, leases_ended
from scrapy_dq.stats import names as stats
from scrapy_dq.text import CREW_SHOWS, printable, prose_without_logins

logger = logging.getLogger(__name__)
REPORT_EVERY_S = 0.5
MAX_ERRORS_PER_S = 5
LONGEST_ERROR = 300
THRESHOLDS = (10_000, 20, 50)
"""The garbage collector's thresholds. With the defaults, collections take an eighth of a crawl's time, and
find little, because a crawl makes few cycles."""
AFTER_GRACE_S = 3.0
"""Seconds from the end of the grace period to a second SIGTERM, and from there to SIGKILL."""


class WorkerAgent:
    """The Scrapy extension of a crew's worker; `__main__.py` adds it."""

    def __init__(self, crawler: Crawler, handshake: Handshake) -> None:
        os.set_blocking(handshake.reports, False)
        self._handshake = handshake
        self._crawler = crawler
        self._timer: asyncio.TimerHandle | None = None
        self._joined: dict[str, Any] = {"epoch": "", "run": 0, "new": False, "over": False}
        self._outage: Callable[[], str] = str
        self._reason = ""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> WorkerAgent:
        """Scrapy's hook.

        Raises:
            NotConfigured: this process is in no crew, or its earlier crawl has taken the handshake.
        """
        handshake = Handshake.take()
        if handshake is None:
            raise NotConfigured
        agent = cls(crawler, handshake)
        crawler.signals.connect(agent.enter, crawl_opening)
        crawler.signals.connect(agent.joined, crawl_joined)
        return agent

    def enter(self, grace_s: float, tune_gc: bool) -> None:
        """Start to watch the parent and to send reports. Call it on the event loop."""
        self._grace_s = grace_s
        self._relay = Relay(self._handshake.reports)
        logging.getLogger().addHandler(self._relay)
        self._crawler.signals.connect(self._closed, signals.spider_closed)
        # Scrapy stores feeds after it has closed the spider, so the last report waits for the engine's end.
        self._crawler.signals.connect(self._send, signals.engine_stopped)
        threading.Thread(target=self._watch_parent, name="crew lifeline", daemon=True).start()
        self._report()
        if tune_gc:
            gc.set_threshold(*THRESHOLDS)

    def joined(
        self, epoch: str, run: int, new: bool, over: bool, outage: Callable[[], str],
        entry_of: Callable[[Response | None], bytes],
    ) -> None:  # fmt: skip
        """Report which run this worker has joined, whether it is new, and whether it was already finished."""
        self._joined = {"epoch": epoch, "run": run, "new": new, "over": over}
        self._outage = outage
        exporter = self._crawler.get_extension(FeedExporter)
        if exporter is not None:
            use_storage(exporter, UnbufferedFileFeedStorage)
            if self._handshake.journals and not over:
                self._keep_items(exporter, entry_of)
        self._send()

    def _keep_items(self, exporter: FeedExporter, entry_of: Callable[[Response | None], bytes]) -> None:
        """Write items to a journal instead of the feeds that are exported from it."""
        crawler, handshake = self._crawler, self._handshake
        run = Run(self._joined["epoch"], self._joined["run"])
        for uri in handshake.feeds:
            del exporter.feeds[uri]  # Source: scrapy/extensions/feedexport.py::FeedExporter.open_spider
        codec = codec_of(config_of(crawler), crawler)
        journal = Journal(Path(handshake.journals), run, handshake.number, codec)

        def keep(item: Any, response: Response | None, spider: Spider) -> None:
            try:
                journal.add(entry_of(response), item)
            except (OSError, CrewError) as error:
                crawler.stats.inc_value(stats.FEED_WRITES_FAILED)
                logger.error("An item cannot be written to the journal of this worker: %s", error)
                # After this signal, the item's request fails, and a retry scrapes the item again.
                failure = Failure(error)  # type: ignore[no-untyped-call]
                crawler.signals.send_catch_log(
                    signals.item_error, item=item, response=response, spider=spider, failure=failure
                )

        # Scrapy waits for this handler before the request is done.
        crawler.signals.connect(keep, signals.item_scraped, weak=False)
        crawler.signals.connect(journal.ended, leases_ended, weak=False)
        crawler.signals.connect(journal.close, signals.engine_stopped, weak=False)

    def _report(self) -> None:
        self._send()
        self._timer = asyncio.get_running_loop().call_later(REPORT_EVERY_S, self._report)

    def _send(self) -> None:
        assert self._crawler.stats is not None
        count = self._crawler.stats.get_value
        counts = {
            "pages": max(0, count("response_received_count", 0) - count("robotstxt/response_count", 0)),
            "items": count("item_scraped_count", 0),
            "done": count(stats.ACKED, 0),  # requests whose ack Redis has confirmed
            "failed": count(stats.FAILED, 0),  # requests
            "errors": count("log_count/ERROR", 0) + count("log_count/CRITICAL", 0),
            "unwritten": count(stats.FEED_WRITES_FAILED, 0),  # items in no feed and no journal
            "unstored": self._unstored(),  # feeds
        }
        report = {"counts": counts, "outage": _first_line(self._outage()), "reason": self._reason}
        pipes.send(self._handshake.reports, report | self._joined)

    def _unstored(self) -> int:
        """Return how many feeds, or batches of a feed, could not be stored at their end."""
        assert self._crawler.stats is not None
        # Source: scrapy/extensions/feedexport.py::FeedExporter._close_slot
        failed = "feedexport/failed_count/"
        return sum(n for name, n in self._crawler.stats.get_stats().items() if name.startswith(failed))

    def _closed(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._reason = printable(reason, 100)
        self._send()

    def _watch_parent(self) -> None:
        # A killed parent cannot stop its workers, but the kernel closes the parent's end of the pipe.
        with suppress(OSError):
            while os.read(self._handshake.lifeline, 1):
                pass
        logger.warning("`scrapy dq crawl`, which started this worker, is gone: stopping")
        for wait_s in (self._grace_s + AFTER_GRACE_S, AFTER_GRACE_S):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(wait_s)
        os.kill(os.getpid(), signal.SIGKILL)


class Relay(logging.Handler):
    """Sends the parent the first line of each error, with the exception; at most 5 per second.

    It also sends the warnings that concern the whole crew.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        self._descriptor = descriptor
        self._since = 0.0
        self._sent = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            if getattr(record, CREW_SHOWS, False):
                pipes.send(self._descriptor, {"warning": _first_line(record.getMessage())})
            return
        now = time.monotonic()
        if now >= self._since + 1:
            self._since, self._sent = now, 0
        self._sent += 1
        if self._sent > MAX_ERRORS_PER_S:
            return
        with suppress(Exception):
            line = _first_line(record.getMessage())
            if record.exc_info and record.exc_info[1] is not None:
                line = f"{line}: {_first_line(_named(record.exc_info[1]))}"
            pipes.send(self._descriptor, {"error": line})


def _first_line(text: str) -> str:
    first = prose_without_logins(text.strip().partition("\n")[0], limit=LONGEST_ERROR)
    return printable(first, LONGEST_ERROR) + "..." * (len(first) > LONGEST_ERROR)


def _named(error: BaseException) -> str:
    """Return an exception in the form of a traceback's last line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
