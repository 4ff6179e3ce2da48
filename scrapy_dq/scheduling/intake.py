"""Requests -> puts in the outbox; and what becomes of those that cannot be stored."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING

from scrapy import Request

from scrapy_dq import scrapy_redis
from scrapy_dq.codec import CannotEncode
from scrapy_dq.codec.attributes import check_host
from scrapy_dq.codec.unfit import Unfit
from scrapy_dq.frontier.model import Admission, Put, StartQueue
from scrapy_dq.scheduling.admission import Admissions, Admitted
from scrapy_dq.scheduling.due_times import AT_ONCE, DUE_KEYS, BadDue, Due, as_stored, due_of
from scrapy_dq.scheduling.fingerprints import quick_fingerprint
from scrapy_dq.scheduling.in_progress import InProgress
from scrapy_dq.scheduling.partitions import BadPartition
from scrapy_dq.scheduling.session import Session
from scrapy_dq.start_urls.hosts import OtherHost
from scrapy_dq.stats import names as stats
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class Intake:
    """Takes requests into the outbox, or keeps them local. Nothing here waits."""

    def __init__(self, crawler: Crawler, session: Session, work: InProgress) -> None:
        assert crawler.stats is not None
        assert crawler.request_fingerprinter is not None
        config = session.config
        self._crawler = crawler
        self._session = session
        self._work = work
        self._count = crawler.stats.inc_value
        self._retry_backoff = config.retry_backoff
        self._start_queue = config.start_queue
        self._checks_hosts = bool(config.start_hosts)
        self.admissions = Admissions(
            quick_fingerprint(crawler.request_fingerprinter),
            config.seed_once,
            config.local_seen,
            session.shares_seen,
        )
        self._fed_puts: list[Put] = []
        self._warned_unencodable = self._warned_dead = self._warned_over = False

    def store(self, request: Request) -> bool:
        """Take *request* into the outbox, or keep it local; False if it is known, or dropped."""
        try:
            check_host(request.url)
        except Unfit as error:
            # Scrapy could not send it either, and each fingerprint of it takes seconds of this worker.
            logger.warning("%s is dropped: %s", printable(request.url, 200), error)
            return False
        if self._session.filtered(request):
            self.count_duplicate(request)
            return False
        fingerprint = self.admissions.fingerprint(request)
        if self.admissions.known(fingerprint):  # most links of most sites end here
            self.count_duplicate(request)
            return False
        local = bool(request.meta.get("dq_local"))
        parent = self._session.settlement.parent_of(request)
        parent_id = self._work.parent_of(request, parent)
        partition, due, reason = b"", AT_ONCE, ""
        refused = False
        try:
            self._session.slots.leave_inherited(request, parent)
            partition = self._session.slots.partition_of(request)
            if self._checks_hosts and not self._work.was_fed(request):
                self._session.start_hosts.check(request, self._followed(request))
            due = due_of(request, parent, self._retry_backoff)
        except (BadDue, BadPartition, OtherHost) as error:
            reason, refused = str(error), isinstance(error, OtherHost)
        if not local:
            try:
                payload = self._session.codec.encode(as_stored(request))
            except CannotEncode as error:
                self._warn_unencodable(request, error)
                local = True
        if local and refused:
            logger.warning("%s is dropped: %s", request, reason)
            return False
        if local:
            if reason:
                logger.warning("%s stays in this worker and is crawled at once: %s", request, reason)
            self._keep_local(request, parent, due)
        elif reason:
            return self._put_dead(request, parent_id, payload, partition, reason)
        else:
            admitted = self.admissions.of(request, fingerprint, parent_id, payload, self._followed(request))
            put = self._put_of(request, admitted, payload, parent_id)
            put.partition, put.due_at, put.not_before_s = partition, due.at, due.not_before_s
            if self._work.was_fed(request) and put.admission is Admission.ID:
                self._fed_puts.append(put)
            if self._session.adopted and put.admission is Admission.SEEN:
                put.known_as = scrapy_redis.fingerprint(request)
            if not self._session.worker.put(put):
                self._warn_over(request)
                return False
            self._count(stats.ENQUEUED)
            self._count(stats.SCRAPY_ENQUEUED)
        if fingerprint is not None:
            self.admissions.remember(fingerprint)
        return True

    def store_fed(self, requests: Iterable[Request], entry_id: bytes) -> None:
        """Store the requests that were fed with a lease, by way of the engine."""
        assert self._crawler.engine is not None
        self._fed_puts.clear()
        for request in requests:
            self._work.feed(request, entry_id)
            self._crawler.engine.crawl(request)
        if not self._work.local.holds(entry_id):
            # The lease ends with the exchange that stores them, and so cannot bring them again.
            for put in self._fed_puts:
                put.once = True
        self._count(stats.FED)

    def push_local(self, request: Request, parents: set[bytes], due: Due = AT_ONCE) -> None:
        """Keep *request* in this worker; the leases *parents* do not end before it is done."""
        if request in self._work:
            # A callback yielded its own request again: the engine's set holds one object only once.
            try:
                request = request.copy()
            except Exception:  # a class whose constructor wants more than Scrapy hands on
                request = copy.copy(request)
        # Nobody else's clock is at hand: a local request goes by that of this host.
        due_at = max(due.at, time.monotonic() + due.not_before_s - time.time() if due.not_before_s else 0.0)
        self._work.local.push(request, parents, due_at)
        if due_at:
            asyncio.get_running_loop().call_later(due_at - time.monotonic(), self._session.leases_arrived)
        self._count(stats.ENQUEUED_LOCAL)
        self._count(stats.SCRAPY_ENQUEUED)

    def count_duplicate(self, request: Request) -> None:
        """Count *request* as known, and log it through the dupefilter."""
        self._count(stats.DUPLICATES)
        self._session.log_duplicate(request)

    def warn_dead(self, what: str, reason: str) -> None:
        """Say, once, that something becomes a dead letter."""
        if not self._warned_dead or self._session.debug:
            self._warned_dead = True
            more = "" if self._session.debug else ". No more of these are shown (SCHEDULER_DEBUG shows all)"
            logger.warning("%s becomes a dead letter: %s%s", printable(what), reason, more)

    def _put_dead(
        self, request: Request, parent_id: bytes | None, payload: bytes, partition: bytes, reason: str
    ) -> bool:
        """Store a request that cannot be served as a dead letter: there its maker finds it, and why."""
        # Not under its fingerprint: one to the same page that is right must not be a duplicate of it.
        admitted = self.admissions.unfiltered(request, parent_id, payload, self._followed(request))
        put = self._put_of(request, admitted, payload, parent_id)
        put.partition, put.reason = partition, reason
        self._count(stats.BURIED)
        self.warn_dead(str(request), reason)
        return self._session.worker.put(put)

    def _keep_local(self, request: Request, parent: Request | None, due: Due) -> None:
        for key in DUE_KEYS:
            request.meta.pop(key, None)  # as of what is stored: a retry of it is due at once
        if request.meta.get("is_start_request"):
            request.meta["dq_seeded"] = True
            parents: set[bytes] = set()
        else:
            parents = self._work.possible_parents(request, parent)
        self.push_local(request, parents, due)

    def _warn_unencodable(self, request: Request, error: CannotEncode) -> None:
        self._count(stats.UNENCODABLE)
        if not self._warned_unencodable or self._session.debug:
            self._warned_unencodable = True
            more = "" if self._session.debug else "No more of these are shown (SCHEDULER_DEBUG shows all). "
            logger.warning(
                "%s cannot be stored (%s): it stays in this worker and is not shared. %s%s counts them",
                printable(str(request)),
                error,
                more,
                stats.UNENCODABLE,
            )

    def _warn_over(self, request: Request) -> None:
        if not self._warned_over:
            self._warned_over = True
            logger.warning("%s is dropped, and what follows it: the run is over for this worker", request)

    def _put_of(self, request: Request, admitted: Admitted, payload: bytes, parent_id: bytes | None) -> Put:
        start = self._start_queue if request.meta.get("is_start_request") else StartQueue.SHARED
        return Put(*admitted, int(index(request.priority)), start, payload, parent_id, request)

    def _followed(self, request: Request) -> bool:
        return self._session.settlement.followed(request)
