"""Scrapy's scheduler contract -> worker calls. Decides nothing about stored state; never waits."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import build_from_crawler

from scrapy_dq.codec import CannotDecode
from scrapy_dq.frontier.model import Admission, Lease, Put
from scrapy_dq.scheduling.admission import Admissions
from scrapy_dq.scheduling.download_hooks import DownloadHooks
from scrapy_dq.scheduling.dupefilter import DupeFilter
from scrapy_dq.scheduling.engine_hooks import Outcome, is_one_off
from scrapy_dq.scheduling.fingerprints import quick_fingerprint
from scrapy_dq.scheduling.held_downloads import HeldDownloads
from scrapy_dq.scheduling.in_progress import Ending, InProgress
from scrapy_dq.scheduling.intake import Intake
from scrapy_dq.scheduling.session import Session
from scrapy_dq.settings import enabled
from scrapy_dq.signals import items_given_up
from scrapy_dq.start_urls.hosts import OtherHost, StartHosts
from scrapy_dq.start_urls.payloads import NoRequest, Payloads
from scrapy_dq.stats import names as stats
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

logger = logging.getLogger(__name__)
EXPANDING_S = 0.01
"""How long one call may make requests of what was fed."""


class Scheduler(BaseScheduler):
    """`SCHEDULER`: shares one crawl with every other worker of the same `DQ_CRAWL`.

    No method that the engine calls does network I/O; `open` and `close` return Deferreds.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BaseScheduler:  # type: ignore[override]
        """Return a scheduler; for `scrapy shell`, `fetch`, `view`, `parse` and `check` it is Scrapy's own.

        So it is with `DQ_ENABLED = False`.
        """
        asked = enabled(crawler.settings)
        if is_one_off(crawler) or not asked:
            if not asked:
                logger.info("DQ_ENABLED = False: Scrapy's own scheduler crawls, in this process alone")
            if crawler.spider is not None:
                crawler.spider.dq_worker = "local"  # type: ignore[attr-defined]
            scheduler = build_from_crawler(ScrapyScheduler, crawler)
            if isinstance(scheduler.df, DupeFilter):
                scheduler.df.alone = False
            return scheduler
        return cls(crawler)

    _session: Session
    _storing: Intake

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None
        self._crawler = crawler
        self._count = crawler.stats.inc_value
        self._opened = False
        self._work = InProgress(self._settle)
        self._outgoing = DownloadHooks(crawler, self._sent_out)

    # Opening and closing.

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl; the Deferred fails, after one ERROR line, if that is not possible."""
        return deferred_from_coro(self._open(spider))

    async def _open(self, spider: Spider) -> None:
        # Not in from_crawler: an exception there leaves the engine half-made, and hides its cause.
        self._session = session = Session.from_crawler(self._crawler)
        config = session.config
        assert self._crawler.request_fingerprinter is not None
        # Before it joins: a fingerprinter of the project's may raise.
        fingerprint = quick_fingerprint(self._crawler.request_fingerprinter)
        admissions = Admissions(fingerprint, config.seed_once, config.local_seen, session.shares_seen)
        self._start_hosts = StartHosts(config.start_hosts)
        self._fed = Payloads(spider, session.codec, self._start_hosts)
        await session.open(self)
        self._storing = Intake(
            self._crawler, config, session.dupefilter, admissions, session.codec, session.slots,
            self._start_hosts, session.worker, session.settlement, self._work, adopted=session.adopted,
        )  # fmt: skip
        self._held_up = HeldDownloads(session.settlement, self._wait)
        self._crawler.signals.connect(self.release_unfinished, items_given_up)
        self._opened = True

    def close(self, reason: str) -> Deferred[None]:
        """Hand in what is done, give back what is not, and leave. Safe on a half-opened scheduler."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        for entry_id in self._work.take_waiting():
            # Local children die with this process: their parents must run again.
            self._session.worker.release(entry_id)
        if hasattr(self, "_session"):
            await self._session.close(reason)

    # The engine's calls.

    def has_pending_requests(self) -> bool:
        """Tell whether anything of the whole crawl, on any worker, is not done yet."""
        if not self._opened:
            return False
        settlement = self._session.settlement
        if self._session.left_out:
            # Before spider_idle asks for more: nobody would get it.
            settlement.close_spider("finished")
            return True
        if settlement.start_over and not self._work.local.parentless:
            # This ends the worker's seeding: what start() yielded is known to others, or done.
            self._session.worker.seeded(failed=settlement.start_failed)
        if len(self._work.local):
            return True
        listening = self._session.listening
        # With nothing to do but to listen, Scrapy sends spider_idle, and is told to stay open.
        return not listening.idle() if listening.on else self._session.worker.pending

    def enqueue_request(self, request: Request) -> bool:
        """Take *request* into the outbox, or keep it local; False if it is known to be a duplicate."""
        try:
            return self._storing.store(request)
        except Exception:
            # An exception from here would hang the engine and lose what the callback yields next.
            logger.exception("Unexpected error while storing %s: it stays in this worker", request)
            self._storing.push_local(request, self._work.all_leases())
            return True

    def next_request(self) -> Request | None:
        """Return the next leased or local request; None if there is none at the moment."""
        if self._session.paused:
            return None
        request = self._work.local.pop()
        until = time.monotonic() + EXPANDING_S
        while request is None:
            if time.monotonic() >= until:
                self._session.settlement.wake()  # there may be more, but Scrapy has other things to do, too
                return None
            lease = self._session.worker.take()
            if lease is None:
                self._held_up.look()
                return None
            if Payloads.is_fed(lease.payload):
                self._expand(lease)
            else:
                request = self._decode(lease)
        self._count(stats.DEQUEUED)
        self._count(stats.SCRAPY_DEQUEUED)
        return request

    def __len__(self) -> int:
        """Return how much waits in the whole crawl, as of the last exchange."""
        return self._session.worker.census.waiting + len(self._work.local) if self._opened else 0

    # Serving and settling.

    def _decode(self, lease: Lease) -> Request | None:
        try:
            request = self._session.codec.decode(lease.payload)
            self._start_hosts.check_served(request)
        except (CannotDecode, OtherHost) as error:
            logger.warning("A stored request cannot be served and becomes a dead letter: %s", error)
            self._session.worker.bury(lease.entry_id, str(error))
            return None
        self._work.begin(request, lease.entry_id)
        if lease.send_at is not None:
            self._outgoing.watch(request)
        return request

    def _expand(self, lease: Lease) -> None:
        """Put the requests that were fed with *lease*, which ends with that."""
        try:
            requests = self._fed.requests(lease.payload)
        except NoRequest as error:
            self._storing.warn_dead(f"What was fed ({_excerpt(lease.payload)})", str(error))
            self._session.worker.bury(lease.entry_id, str(error))
            return
        self._storing.store_fed(requests, lease.entry_id)
        self._work.end(lease.entry_id, Ending(Outcome.DONE, "", ""))

    def _sent_out(self, request: Request) -> None:
        entry_id = self._work.lease_of(request)
        if entry_id is not None:
            self._session.worker.sent(entry_id)

    def _wait(self, request: Request) -> None:
        entry_id = self._work.lease_of(request)
        if entry_id is not None:
            self._session.worker.held_up(entry_id)

    def downloaded(self, request: Request) -> None:
        """Settlement's call: *request* has left the downloader."""
        entry_id = self._work.lease_of(request)
        if entry_id is not None:
            # Its download handler may have given no sign before; and if it never went out, nobody was asked.
            self._session.worker.sent(entry_id)
            self._session.worker.downloaded(entry_id)

    def settled(self, request: Request, outcome: Outcome, reason: str) -> None:
        """Settlement's call: *request* has left the engine."""
        local = self._work.left(request, Ending(outcome, reason, request.url))
        if local and outcome is Outcome.FAILED:
            self._count(stats.FAILED)

    def _settle(self, entry_id: bytes, ending: Ending) -> None:
        self._storing.admissions.settled(entry_id)
        worker = self._session.worker
        if ending.outcome is Outcome.DONE:
            worker.ack(entry_id)
        elif ending.outcome is Outcome.FAILED:
            worker.fail(entry_id, ending.reason, printable(ending.url, 2000))
        else:
            worker.release(entry_id)

    # What the session asks for.

    def release_unfinished(self) -> None:
        """The grace of a shutdown is over: give back every lease that is still at work."""
        for entry_id in self._work.take_unfinished():
            self._session.worker.release(entry_id)

    def forget_sent(self) -> None:
        """Some of what this worker has sent was never stored: let the frontier decide what is known."""
        self._storing.admissions.forget_sent()

    def put_dropped(self, put: Put) -> None:
        """The frontier knew *put* already."""
        request = put.source
        if request is None:  # it waited in a long outbox
            try:
                request = self._session.codec.decode(put.payload)
            except CannotDecode:
                self._count(stats.DUPLICATES)
                return
        if put.admission is Admission.SEED:
            self._count(stats.SEEDS_KNOWN)
            logger.debug("Start request admitted already in this run: %s", request)
        else:
            self._storing.count_duplicate(request)
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self._crawler.spider
        )


def _excerpt(payload: bytes) -> str:
    """Return the beginning of what was fed, for a log: a stranger's bytes, which may be long."""
    return repr(payload[1:81])[1:] + ("…" if len(payload) > 81 else "")
