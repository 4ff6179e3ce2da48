"""Turns leases into requests for the engine: decodes stored requests, and makes requests from payloads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from scrapy import Request

from scrapy_dq.codec import CannotDecode, CannotServe
from scrapy_dq.codec.shown import url_of
from scrapy_dq.frontier.model import Lease
from scrapy_dq.revisits.revisits import KEY as VISIT
from scrapy_dq.scheduling.declined import Declined
from scrapy_dq.scheduling.downloads import HeldDownloads
from scrapy_dq.scheduling.ends import Ends
from scrapy_dq.scheduling.in_progress import Feeding
from scrapy_dq.scheduling.session import Session
from scrapy_dq.start_urls.payloads import FED, NoRequest, NotMadeHere, Payloads
from scrapy_dq.stats import names as stats
from scrapy_dq.text import printable, prose_without_logins, without_login

EXPANDING_S = 0.01
"""Seconds that one `next_request` may spend on start payloads, and on requests that cannot be served."""
_URL_IN_JSON = re.compile(rb'"url"\s*:\s*"([^"]*)"')


class Serving:
    """Chooses the next request for the engine. No method blocks."""

    def __init__(self, session: Session, ends: Ends) -> None:
        """*session* has joined the crawl."""
        spider = session.crawler.spider
        assert spider is not None
        self._session = session
        self._codec = session.codec
        self._count = session.count
        self._worker = session.worker
        self._downloads = session.downloads
        self._hooks = session.hooks
        self._in_progress = session.in_progress
        self._ends = ends
        self._payloads = Payloads(spider, self._codec)
        self.declined = Declined(spider, session.config.crawl)
        self._held_up = HeldDownloads(session.hooks, ends.held_up)

    def next(self) -> Request | None:
        """Return the next leased or local request; None if none can run now."""
        if self._session.paused or self.declined.leaving:
            return None
        local_first = len(self._in_progress.local) and self._downloads.local_turn
        request = self._take_local() if local_first else None
        until = 0.0
        while request is None:
            lease = self._worker.take()
            if lease is None:
                request = self._take_local()
                if request is None:
                    return None
            elif lease.payload[:1] in FED:
                until = until or time.monotonic() + EXPANDING_S
                self._make_requests(lease)
            else:
                request = self._decode(lease)
            if request is None:
                now = time.monotonic()
                until = until or now + EXPANDING_S
                if now >= until:
                    self._hooks.wake()  # more leases may be here, but the event loop must have its turn
                    return None
        self._count(stats.DEQUEUED, stats.SCRAPY_DEQUEUED)
        return request

    def _take_local(self) -> Request | None:
        taken = self._in_progress.local.pop(self._downloads.choose)
        if taken is None:
            self._held_up.check()
            return None
        request, partition = taken
        self._hooks.forget_parent(request)
        if self._downloads.begin_local(request, partition):
            self._ends.outgoing.watch(request)
        return request

    def _decode(self, lease: Lease) -> Request | None:
        try:
            request = self._codec.decode(lease.payload)
        except CannotServe as error:
            self._decline(lease, prose_without_logins(str(error)))
            return None
        except CannotDecode as error:
            reason = prose_without_logins(str(error))
            self._session.warnings.warn_dead("A stored request", reason)
            self._worker.never_sent(lease.entry_id)
            self._worker.bury(lease.entry_id, reason)
            return None
        self.declined.in_a_row = 0
        if self._session.revisits is not None:
            self._session.revisits.begin(request, lease.entry_id, lease.payload)
        else:
            request.meta.pop(VISIT, None)  # stored while the crawl had DQ_REVISIT
        self._in_progress.begin(request, lease.entry_id, lease.message)
        timed = lease.send_at is not None
        self._downloads.begin(request, lease.partition, timed=timed)
        if timed:
            self._ends.outgoing.watch(request)
        return request

    def _decline(self, lease: Lease, reason: str) -> None:
        """Return *lease* for other workers, and leave the crawl if `Declined` decides so."""
        self._worker.never_sent(lease.entry_id)
        self._worker.decline(lease.entry_id, reason, self._fingerprint_of(lease.payload))
        url = without_login(url_of(lease.payload, self._session.config.max_entry_bytes))
        if self.declined.add(reason, printable(url, 200), was_declined=lease.was_declined):
            self._hooks.close_spider("cannot_serve")

    def _fingerprint_of(self, payload: bytes) -> bytes:
        """Return the fingerprint of a request that cannot be served, as `seen` stores it; empty: unknown."""
        try:
            return self._session.admissions.fingerprint(self._codec.plain(payload)) or b""
        except Exception:  # a fingerprinter of the project may need the missing parts
            return b""

    # Start payloads.

    def _make_requests(self, lease: Lease) -> None:
        """Store the requests made from the start payload of *lease*, and end the lease."""
        if lease.message:
            self._in_progress.messages[lease.entry_id] = lease.message
        try:
            self._feed(self._payloads.requests(lease.payload), Feeding(lease.entry_id))
        except NoRequest as error:
            self._ends.forget(lease.entry_id)
            if isinstance(error, NotMadeHere):
                self._decline(lease, str(error))
            else:
                self._session.warnings.warn_dead(f"A start payload ({_excerpt(lease.payload)})", str(error))
                self._worker.bury(lease.entry_id, str(error))
        else:
            self.declined.in_a_row = 0
            self._ends.fed(lease.entry_id)

    def _feed(self, requests: Iterable[Request], feeding: Feeding) -> None:
        """Pass *requests* to the engine, which stores them at once through `enqueue_request`.

        Raises:
            NoRequest: a request was neither stored nor kept, so the payload must become a dead letter.
        """
        engine = self._session.crawler.engine
        assert engine is not None
        self._in_progress.feeding = feeding
        try:
            for request in requests:
                engine.crawl(request)
        finally:
            self._in_progress.feeding = None
        if not self._in_progress.local.holds(feeding.lease):
            for put in feeding.puts:
                self._worker.note_fed(put)
        self._count(stats.FED)
        if feeding.refused:
            raise NoRequest(feeding.refused)


def _excerpt(payload: bytes) -> str:
    """Return the beginning of a start payload for a log.

    Of JSON, return only the URL, because its form data may contain passwords.
    """
    text = payload[1:]
    if text.startswith(b"{"):
        found = _URL_IN_JSON.search(text)
        text = found[1] if found else b"JSON without a URL"
    return repr(text[:80])[1:] + ("…" if len(text) > 80 else "")
