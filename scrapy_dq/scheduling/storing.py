"""Turns requests into puts in the outbox. A request that cannot be stored stays in this worker."""

from __future__ import annotations

import asyncio
import logging
import time
from hashlib import sha1
from operator import index

from scrapy import Request

from scrapy_dq import scrapy_redis
from scrapy_dq.codec import CannotEncode, copied
from scrapy_dq.codec.attributes import check_parses
from scrapy_dq.codec.unfit import Unfit
from scrapy_dq.frontier.model import Admission, StartQueue
from scrapy_dq.frontier.moves import Put
from scrapy_dq.revisits.policy import BadRevisit
from scrapy_dq.revisits.revisits import check as check_revisit
from scrapy_dq.scheduling.admission import LATEST
from scrapy_dq.scheduling.due_times import AT_ONCE, DUE_KEYS, BadDue, Due, due_of
from scrapy_dq.scheduling.origins import Origin, Origins
from scrapy_dq.scheduling.partitions import BadPartition
from scrapy_dq.scheduling.schemes import UrlSchemes
from scrapy_dq.scheduling.session import Session
from scrapy_dq.stats import names as stats
from scrapy_dq.text import prose_without_logins, shown

logger = logging.getLogger(__name__)


class Storing:
    """Puts requests into the outbox or the local queue. No method blocks."""

    def __init__(self, session: Session) -> None:
        """*session* has joined the crawl."""
        self._session = session
        self._config = session.config
        self._worker = session.worker
        self._in_progress = session.in_progress
        self._admissions = session.admissions
        self._revisits = session.revisits
        self._warnings = session.warnings
        self._count = session.count
        self._origins = Origins(session)
        self._schemes = UrlSchemes(session.config.url_schemes)

    def store(self, request: Request) -> bool:
        """Put *request* into the outbox or the local queue. Return False if it is a duplicate, or dropped."""
        if self._worker.handed_in:
            self._warnings.warn("", "%s is dropped: this worker has left the crawl", shown(request))
            return False
        try:
            check_parses(request.url)
        except Unfit as error:
            # Scrapy could not send it either. If its host is very long, its fingerprint would take too much
            # time, and its cookies too much memory.
            logger.warning("%s is dropped: %s", shown(request, 200), error)
            return False
        if self._revisits is not None:  # before its fingerprint is made, which may include headers
            self._revisits.leave_conditions(request, self._origins.lease_of(request))
        fingerprint, reference = self._admissions.look_up(request)
        if reference is not None:  # a duplicate, as most links are
            earlier = self._worker.last_references if reference == LATEST else (reference,)
            self._origins.await_puts(request, earlier)
            self._session.duplicates.add(request)
            return False
        origin = self._origins.of(request)
        partition, due, reason = b"", AT_ONCE, ""
        try:
            self._session.slots.leave_inherited(request, origin.parent, continues=origin.continues)
            partition = self._session.slots.partition_of(request)
            due = due_of(request, origin.parent, self._config.retry_backoff)
            if self._revisits is not None:
                check_revisit(request)
        except (BadDue, BadPartition, BadRevisit) as error:
            reason = prose_without_logins(str(error), request.url)
        unfit = None
        try:
            if (
                self._revisits is not None
                and origin.continues
                and not reason
                and self._revisits.serve_again(request, origin.parent, origin.lease, due.at)
            ):
                self._count(stats.ENQUEUED, stats.SCRAPY_ENQUEUED)
                return True
            if not request.meta.get("dq_local"):
                stored = self._session.stored_form.of(request, origin.parent, origin.continues)
                payload = self._session.codec.encode(stored)
                return self._put(request, origin, fingerprint, payload, partition, due, reason)
        except CannotEncode as error:
            unfit = error
        if self._schemes.refuse(request, origin):
            self._count(stats.SCHEME_DROPPED)
            self._warnings.warn(
                "",
                "%s is dropped: its scheme is not in DQ_URL_SCHEMES (%s), and a web page may have led to it. "
                "To crawl it, add the scheme, or yield it from start(). %s counts them",
                shown(request), self._schemes, stats.SCHEME_DROPPED,
            )  # fmt: skip
            return False
        if unfit is not None:
            self._count(stats.UNENCODABLE)
            self._warnings.warn_unencodable(request, unfit, start=origin.from_start)
        if reason and origin.feeding is not None:
            # The start payload becomes a dead letter. If the request stayed here, a mistake of the program
            # that feeds the crawl would take the request out of its partition, or make it due too early.
            origin.feeding.refused = reason
            return False
        if reason:
            logger.warning("%s stays in this worker and is crawled at once: %s", shown(request), reason)
        for key in DUE_KEYS:
            request.meta.pop(key, None)  # as in `as_stored`, so that its retry does not copy the delay
        self._admissions.remember(fingerprint, 0)
        self.keep(request, partition, due)
        return True

    def _put(
        self, request: Request, origin: Origin, fingerprint: bytes | None, payload: bytes, partition: bytes,
        due: Due, reason: str,
    ) -> bool:  # fmt: skip
        """Put *request* into the outbox; return False if it is a duplicate, or dropped.

        *reason*: why no worker can serve it, so that it becomes a dead letter; empty: workers can serve it.
        """
        if reason and fingerprint is not None:
            # A dead letter has its own fingerprint, because a valid request for the same page must not count
            # as its duplicate. It needs a fingerprint, because many pages may have the same invalid link, and
            # one dead letter is enough.
            fingerprint = sha1(b"dead letter" + fingerprint).digest()
            reference = self._admissions.sent_as(fingerprint)
            if reference is not None:
                self._origins.await_puts(request, (reference,))
                self._session.duplicates.add(request)
                return False
        seed = origin.from_start and self._config.seed_once
        admitted = self._admissions.of(
            request, fingerprint, origin.lease, payload, seed=seed, continues=origin.continues
        )
        start = self._config.start_queue if request.meta.get("is_start_request") else StartQueue.SHARED
        put = Put(
            *admitted, int(index(request.priority)), start, payload, origin.lease, request, partition, *due,
            reason,
        )  # fmt: skip
        if origin.feeding is not None or origin.continues:
            put.message = self._in_progress.messages.get(origin.lease, b"")
        # The token only serves to recognise repeats of the put. After the end of the parent's lease, there
        # are no repeats.
        token_ends = put.admission is Admission.ID and not reason
        # A page that is visited again keeps its token, because a second put would double its visits.
        if self._revisits is not None and self._revisits.add_first_visit(
            put, request, origin.parent, continues=origin.continues, begins=origin.begins
        ):
            token_ends = False
        if reason:
            self._count(stats.BURIED)
            self._warnings.warn_dead(str(request), reason)
        elif token_ends and origin.feeding is not None:
            origin.feeding.puts.append(put)
        elif self._session.joined.adopted and put.admission is Admission.SEEN:
            put.known_as = scrapy_redis.fingerprint(request)
        if not self._worker.put(put):
            self._warnings.warn("", "%s is dropped: the run is over for this worker", shown(request))
            return False
        self._admissions.remember(fingerprint, put.reference)
        if token_ends and origin.feeding is None and self._revisits is not None:
            # With revisits, the run may never end, so the tokens would accumulate.
            self._worker.forget_with_parent(put)
        if origin.lease is None and not origin.from_start:
            self._origins.await_puts(request, (put.reference,))
        if not reason:
            self._count(stats.ENQUEUED, stats.SCRAPY_ENQUEUED)
        return True

    def keep(self, request: Request, partition: bytes = b"", due: Due = AT_ONCE) -> None:
        """Keep *request* in this worker; the leases that may have led to it do not end before it is done."""
        from_start = self._session.hooks.from_start(request)
        parents = set() if from_start else self._origins.possible_parents(request)
        if request in self._in_progress:
            # A callback yielded its own request again, and the engine's set holds an object only once.
            request = copied(request)
        # The clock of Redis is not available here: for a local request, the clock of this host counts.
        due_at = max(due.at, time.monotonic() + due.not_before_s - time.time() if due.not_before_s else 0.0)
        self._in_progress.local.push(request, partition, parents, due_at)
        if due_at:
            asyncio.get_running_loop().call_later(due_at - time.monotonic(), self._session.hooks.wake)
        self._count(stats.ENQUEUED_LOCAL, stats.SCRAPY_ENQUEUED)
