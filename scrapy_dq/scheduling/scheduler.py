"""Scrapy's scheduler interface -> calls of the worker. Decides nothing about stored state; never blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Sized

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import build_from_crawler
from twisted.internet.defer import Deferred

from scrapy_dq.codec import CannotDecode, CannotServe
from scrapy_dq.codec.shown import url_of
from scrapy_dq.frontier.model import Admission, Lease
from scrapy_dq.frontier.moves import Put
from scrapy_dq.hostnames import bound_punycode
from scrapy_dq.revisits.revisits import KEY as VISIT
from scrapy_dq.scheduling.admission import Admissions
from scrapy_dq.scheduling.declined import Declined
from scrapy_dq.scheduling.download_hooks import DownloadHooks
from scrapy_dq.scheduling.downloads import HeldDownloads
from scrapy_dq.scheduling.dupefilter import DupeFilter
from scrapy_dq.scheduling.engine_hooks import Outcome, is_one_off
from scrapy_dq.scheduling.fingerprints import quick_fingerprint
from scrapy_dq.scheduling.handed_out import HandedOut
from scrapy_dq.scheduling.in_progress import DONE, Ending, InProgress
from scrapy_dq.scheduling.intake import Intake, shown
from scrapy_dq.scheduling.session import Session
from scrapy_dq.settings import enabled
from scrapy_dq.signals import items_given_up
from scrapy_dq.start_urls.payloads import NoRequest, NotMadeHere, Payloads
from scrapy_dq.stats import names as stats
from scrapy_dq.stats.collector import Tally
from scrapy_dq.text import printable, prose_without_logins, without_login

logger = logging.getLogger(__name__)
EXPANDING_S = 0.01
"""How long one call of `next_request` may spend on making requests from start payloads."""


class Scheduler(BaseScheduler):
    """`SCHEDULER`: shares one crawl with every other worker of the same `DQ_CRAWL`.

    No method that the engine calls does network I/O; `open` and `close` return Deferreds.

    The `next_request` of a subclass may return a request's `copy()` or `replace()`. A request that it drops
    fails, as `scrapy dq failed` shows: override `enqueue_request` to drop requests.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BaseScheduler:  # type: ignore[override]
        """Return a scheduler.

        With `DQ_ENABLED = False`, and for `scrapy shell`, `fetch`, `view`, `parse` and `check`, it is
        Scrapy's own.
        """
        asked = enabled(crawler.settings)
        if is_one_off(crawler) or not asked:
            if not asked:
                logger.info("DQ_ENABLED = False: using Scrapy's own scheduler, in this process only")
            if crawler.spider is not None:
                crawler.spider.dq_worker = "local"  # type: ignore[attr-defined]
            return build_from_crawler(ScrapyScheduler, crawler)
        return cls(crawler)

    _session: Session
    _storing: Intake
    admissions: Admissions

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None
        bound_punycode()
        self._crawler = crawler
        self._count = Tally(crawler.stats.inc_value)
        self._opened = False
        self.work = InProgress()
        self._outgoing = DownloadHooks(crawler, self._sent_out)
        self._handed_out = HandedOut(self._moved, self._skipped)

    # Opening and closing.

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl; if that is not possible, log one ERROR line, and the Deferred fails."""
        return deferred_from_coro(self._open(spider))

    async def _open(self, spider: Spider) -> None:
        # Not in from_crawler: an exception there leaves the engine half-initialized, and hides its cause.
        self._session = session = Session.from_crawler(self._crawler)
        assert self._crawler.request_fingerprinter is not None
        # Before joining: a fingerprinter of the project may raise.
        fingerprint = quick_fingerprint(self._crawler.request_fingerprinter)
        self.admissions = Admissions(fingerprint, session.shares_seen)
        self._fed = Payloads(spider, session.codec)
        await session.open(self)
        if isinstance(session.dupefilter, DupeFilter):
            session.dupefilter.dq_count = self._count
        self._storing = Intake(self._crawler, session, self.admissions, self.work, self._count)
        self._declined = Declined(spider, session.config.crawl)
        self._held_up = HeldDownloads(session.settlement, self._wait)
        self._outgoing.install()
        self._engines = session.settlement.watch_next_request(
            Scheduler.next_request, self._handed_out.watched
        )
        self._crawler.signals.connect(self.release_unfinished, items_given_up)
        self._opened = True

    def close(self, reason: str) -> Deferred[None]:
        """Ack what is done, release what is not, and leave. Safe if `open` failed or did not finish."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        # Also what waits for local requests: these are lost with this process, and their parents run again.
        self.release_unfinished()
        try:
            if hasattr(self, "_session"):
                if self._opened:
                    self._declined.log_counts()
                await self._session.close(reason)
        finally:
            self._count.flush()  # the next that Scrapy does is to log its stats

    # The engine's calls.

    def has_pending_requests(self) -> bool:
        """Return whether anything in the whole crawl, on any worker, is not done yet."""
        if not self._opened:
            return False
        settlement = self._session.settlement
        if self._session.left_out:
            # Before the handlers of spider_idle add requests: no worker would crawl them.
            settlement.close_spider("finished")
            return True
        self._note_start()
        if len(self.work.local):
            return True
        listening = self._session.listening
        # With nothing left but to listen, Scrapy sends spider_idle; the answer is DontCloseSpider.
        return not listening.idle() if listening.on else self._session.worker.pending

    def enqueue_request(self, request: Request) -> bool:
        """Put *request* into the outbox or the local queue; False if it is a duplicate, or dropped."""
        try:
            return self._storing.store(request)
        except Exception:
            # An exception from here would hang the engine, and lose what the callback yields next.
            logger.exception("Unexpected error while storing %s: it stays in this worker", shown(request))
            self._storing.keep(request)
            return True

    def next_request(self) -> Request | None:
        """Return the next leased or local request; None if there is none at the moment."""
        # Not only when the engine is idle: if it dies before, its start() would count as interrupted.
        self._note_start()
        if self._session.paused or self._declined.leaving:
            return None
        local_first = len(self.work.local) and self._session.downloads.local_turn
        request = self._take_local() if local_first else None
        until = time.monotonic() + EXPANDING_S
        while request is None:
            lease = self._session.worker.take()
            if lease is None:
                request = self._take_local()
                if request is None:
                    return None
            elif Payloads.is_fed(lease.payload):
                self._make_requests(lease)
            else:
                request = self._decode(lease)
            if request is None and time.monotonic() >= until:
                self._session.settlement.wake()  # there may be more, but the event loop must have its turn
                return None
        self._count(stats.DEQUEUED, stats.SCRAPY_DEQUEUED)
        self._handed_out.add(request)
        return request

    def __len__(self) -> int:
        """Return the number of requests that wait in the whole crawl, as of the last exchange."""
        return len(self.dqs) + len(self.mqs)

    # Source: scrapy/utils/engine.py::get_engine_status, which est() of the telnet console prints
    @property
    def dqs(self) -> Sized:
        """As long as what waits in Redis, as of the last exchange: tools look for it under this name."""
        return range(self._session.worker.census.waiting if self._opened else 0)

    @property
    def mqs(self) -> Sized:
        """The requests that stay in this worker; the same."""
        return self.work.local

    # Serving and settling.

    def _note_start(self) -> None:
        """End the worker's seeding if all that start() has yielded is in the outbox, or done."""
        settlement = self._session.settlement
        if settlement.start_over and not self.work.local.parentless:
            self._session.worker.seeded(failed=settlement.start_failed)

    def _take_local(self) -> Request | None:
        taken = self.work.local.pop(self._session.downloads.choose)
        if taken is None:
            self._held_up.look()
            return None
        request, partition = taken
        self._session.settlement.forget_parent(request)
        if self._session.downloads.begin_local(request, partition):
            self._outgoing.watch(request)
        return request

    def _decode(self, lease: Lease) -> Request | None:
        try:
            request = self._session.codec.decode(lease.payload)
        except CannotServe as error:
            self._decline(lease, prose_without_logins(str(error)))
            return None
        except CannotDecode as error:
            reason = prose_without_logins(str(error))
            self._storing.warn_dead("A stored request", reason)
            self._session.worker.never_sent(lease.entry_id)
            self._session.worker.bury(lease.entry_id, reason)
            return None
        self._declined.served()
        if self._session.revisits is not None:
            self._session.revisits.begin(request, lease.entry_id, lease.payload)
        else:
            request.meta.pop(VISIT, None)  # the crawl had DQ_REVISIT
        self.work.begin(request, lease.entry_id, lease.message)
        timed = lease.send_at is not None
        self._session.downloads.begin(request, lease.partition, timed=timed)
        if timed:
            self._outgoing.watch(request)
        return request

    def _decline(self, lease: Lease, reason: str) -> None:
        """Return *lease* for other workers, and leave the crawl if this worker can serve none of it."""
        self._session.worker.never_sent(lease.entry_id)
        self._session.worker.decline(lease.entry_id, reason, self._fingerprint_of(lease.payload))
        url = without_login(url_of(lease.payload, self._session.config.max_entry_bytes))
        if self._declined.add(reason, printable(url, 200), was_declined=lease.was_declined):
            self._session.settlement.close_spider("cannot_serve")

    def _fingerprint_of(self, payload: bytes) -> bytes:
        """Return what `seen` stores of a request that cannot be decoded; empty: nothing that is known."""
        try:
            return self.admissions.fingerprint(self._session.codec.plain(payload)) or b""
        except Exception:  # a fingerprinter of the project may need what is missing
            return b""

    def _make_requests(self, lease: Lease) -> None:
        """Store the requests made from the start payload of *lease*, and end the lease."""
        try:
            self._storing.store_fed(self._fed.requests(lease.payload), lease.entry_id, lease.message)
        except NoRequest as error:
            self._storing.settled(lease.entry_id)
            if isinstance(error, NotMadeHere):
                self._decline(lease, str(error))
            else:
                self._storing.warn_dead(f"A start payload ({_excerpt(lease.payload)})", str(error))
                self._session.worker.bury(lease.entry_id, str(error))
        else:
            self._declined.served()
            self._settle(self.work.end(lease.entry_id, DONE))

    def _moved(self, request: Request, to: Request) -> None:
        """Called by HandedOut: a class of the project gives the engine a copy of *request*."""
        self.work.move(request, to)
        self._session.downloads.move(request, to)
        self._outgoing.move(request, to)

    def _skipped(self, request: Request) -> None:
        """Called by HandedOut: a class of the project has dropped *request*."""
        reason = f"{self._engines}.next_request() has not passed it to the engine"
        self._storing.warn(
            "", "%s fails: %s. To drop requests, override enqueue_request()", shown(request), reason
        )
        self._session.downloads.ended(request, sent=False)
        self._session.worker.never_sent(self.work.lease_of(request))
        self.settled(request, Outcome.FAILED, reason)

    def _sent_out(self, request: Request) -> None:
        self._session.downloads.sent(request)
        self._session.worker.sent(self.work.lease_of(request))

    def _wait(self, request: Request) -> bool:
        waits = self._session.downloads.held_up(request)
        if waits:
            self._session.worker.held_up(self.work.lease_of(request))
        return waits

    def downloaded(self, request: Request) -> None:
        """Called by Settlement: *request* has left the downloader."""
        worker, lease = self._session.worker, self.work.lease_of(request)
        sent = self._outgoing.reached(request)
        self._session.downloads.ended(request, sent=sent)
        # Its download handler may not have reported it.
        (worker.sent if sent else worker.never_sent)(lease)
        worker.downloaded(lease)

    def settled(self, request: Request, outcome: Outcome, reason: str) -> None:
        """Called by Settlement: *request* has left the engine."""
        self._session.downloads.ended(request)
        ending = DONE if outcome is Outcome.DONE else Ending(outcome, reason, request.url)
        if outcome is Outcome.FAILED and request in self.work.local:
            self._count(stats.FAILED)
        self._settle(self.work.left(request, ending))

    def _settle(self, leases: list[tuple[bytes, Ending]]) -> None:
        worker, revisits = self._session.worker, self._session.revisits
        for entry_id, (outcome, reason, url) in leases:
            self._storing.settled(entry_id)
            again = None
            if revisits is not None:
                released = outcome is Outcome.INTERRUPTED
                again = revisits.ended(entry_id, failed=outcome is Outcome.FAILED, released=released)
            if again is not None:
                worker.again(entry_id, *again)
            elif outcome is Outcome.DONE:
                worker.ack(entry_id)
            elif outcome is Outcome.FAILED:
                worker.fail(entry_id, reason, printable(url, 2000))
            else:
                worker.release(entry_id)

    # Calls of the session.

    def release_unfinished(self) -> None:
        """The grace period of a shutdown is over, or the worker leaves: release what is not settled."""
        for entry_id in self.work.take_unfinished():
            self._session.worker.release(entry_id)

    def put_dropped(self, put: Put) -> None:
        """*put* was a duplicate: the frontier has dropped it."""
        request = put.source
        if request is None:  # *put* comes from the spilled part of a long outbox
            try:
                request = self._session.codec.decode(put.payload)
            except CannotDecode:
                self._count(stats.DUPLICATES)
                return
        if put.admission is Admission.SEED:
            self._count(stats.SEEDS_KNOWN)
            logger.debug("Start request already admitted in this run: %s", shown(request))
        else:
            self._storing.count_duplicate(request)
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self._crawler.spider
        )


def _excerpt(payload: bytes) -> str:
    """Return the beginning of a start payload, for a log: it may be long, and may be no text."""
    return repr(payload[1:81])[1:] + ("…" if len(payload) > 81 else "")
