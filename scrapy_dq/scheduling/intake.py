"""Requests -> puts in the outbox; and the handling of requests that cannot be stored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from hashlib import sha1
from operator import index
from typing import NamedTuple

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_dq import scrapy_redis
from scrapy_dq.codec import CannotEncode, copied
from scrapy_dq.codec.attributes import check_parses
from scrapy_dq.codec.unfit import Unfit
from scrapy_dq.frontier.model import Admission, StartQueue
from scrapy_dq.frontier.moves import Put
from scrapy_dq.revisits.policy import BadRevisit
from scrapy_dq.revisits.revisits import check as check_revisit
from scrapy_dq.revisits.visit import Visit
from scrapy_dq.scheduling.admission import Admissions
from scrapy_dq.scheduling.due_times import AT_ONCE, DUE_KEYS, BadDue, Due, due_of
from scrapy_dq.scheduling.in_progress import InProgress
from scrapy_dq.scheduling.partitions import BadPartition
from scrapy_dq.scheduling.session import Session
from scrapy_dq.scheduling.stored_form import StoredForm
from scrapy_dq.stats import names as stats
from scrapy_dq.stats.collector import Tally
from scrapy_dq.text import CREW_SHOWS, printable, prose_without_logins, without_numbers

logger = logging.getLogger(__name__)
MOST_REASONS = 10
"""Most different reasons for which a warning is logged."""


class _Classified(NamedTuple):
    """What decides where a request is put."""

    fingerprint: bytes | None
    parent: Request | None
    parent_id: bytes | None
    partition: bytes
    due: Due
    reason: str
    """Why it cannot be served with what its meta says; "" if it can."""


def shown(request: Request, limit: int = 500) -> str:
    """Return *request* for a log line, without a login."""
    return printable(prose_without_logins(str(request), request.url, limit=limit), limit)


class Intake:
    """Puts requests into the outbox or the local queue. Nothing here blocks."""

    def __init__(
        self, crawler: Crawler, session: Session, admissions: Admissions, work: InProgress, count: Tally
    ) -> None:
        """*session* has joined the crawl."""
        self.admissions = admissions
        self._config = session.config
        self._crawler = crawler
        self._dupefilter = session.dupefilter
        self._filters_alone = not session.shares_seen
        self._codec = session.codec
        self._slots = session.slots
        self._worker = session.worker
        self._settlement = session.settlement
        self._work = work
        self._revisits = session.revisits
        self._adopted = session.joined.adopted
        self._count = count
        self._stored_form = StoredForm(crawler)
        self._fed_puts: list[Put] = []
        self._refused_fed = ""
        self._schemes = frozenset(scheme.lower() for scheme in self._config.url_schemes)
        self._debug = crawler.settings.getbool("SCHEDULER_DEBUG")
        self._warned: dict[str, set[str]] = {}
        """By the text of a warning, the reasons for which it was logged."""

    def store(self, request: Request) -> bool:
        """Put *request* into the outbox or the local queue; False if it is a duplicate, or dropped."""
        if self._worker.handed_in:
            self.warn("", "%s is dropped: this worker has left the crawl", shown(request))
            return False
        try:
            check_parses(request.url)
        except Unfit as error:
            # Scrapy could not send it either, and its fingerprint or its cookies would stop this worker.
            logger.warning("%s is dropped: %s", shown(request, 200), error)
            return False
        if self._revisits is not None:  # before its fingerprint is made, which may include headers
            parent = self._settlement.parent_of(request)
            self._revisits.leave_conditions(request, self._work.parent_of(request, parent))
        classified = self._classify(request)
        if classified is None:
            self.count_duplicate(request)
            return False
        payload, unfit = None, None
        try:
            if self._serve_again(request, classified):
                return True
            payload = self._encode(request, classified.parent)
        except CannotEncode as error:
            unfit = error
        if payload is not None:
            put = self._put_dead if classified.reason else self._put
            return put(request, classified, payload)
        if self._leaves_the_web(request, classified.parent):
            self._count(stats.SCHEME_DROPPED)
            self.warn(
                "",
                "%s is dropped: its scheme is not in DQ_URL_SCHEMES (%s), and a web page may have led to it. "
                "To crawl it, add the scheme, or yield it from start(). %s counts them",
                shown(request), ", ".join(sorted(self._schemes)), stats.SCHEME_DROPPED,
            )  # fmt: skip
            return False
        if unfit is not None:
            self._warn_unencodable(request, unfit)
        return self._keep_local(request, classified)

    def _classify(self, request: Request) -> _Classified | None:
        """Return what *request* is; None: it is a duplicate."""
        # A DUPEFILTER_CLASS that is not ours filters here; with ours, the frontier filters.
        if self._filters_alone and not request.dont_filter and self._dupefilter.request_seen(request):
            self._await_puts(request, self._worker.last_references)
            return None
        fingerprint = self.admissions.fingerprint(request)
        reference = self.admissions.sent_as(fingerprint)
        if reference is not None:  # so are most links of most sites
            self._await_puts(request, (reference,))
            return None
        parent = self._settlement.parent_of(request)
        parent_id = self._work.parent_of(request, parent)
        partition, due, reason = b"", AT_ONCE, ""
        try:
            self._slots.leave_inherited(request, parent, self._settlement.followed)
            partition = self._slots.partition_of(request)
            due = due_of(request, parent, self._config.retry_backoff)
            if self._revisits is not None:
                check_revisit(request)
        except (BadDue, BadPartition, BadRevisit) as error:
            reason = prose_without_logins(str(error), request.url)
        return _Classified(fingerprint, parent, parent_id, partition, due, reason)

    def _await_puts(self, request: Request, references: Iterable[int]) -> None:
        """Keep the lease that has brought *request* until these puts, which were made before, are certain."""
        if self._worker.shards > 1:
            parents = self._work.possible_parents(request, self._settlement.parent_of(request))
            for reference in references:
                self._worker.depends(parents, reference)

    def _encode(self, request: Request, parent: Request | None, visit: Visit | None = None) -> bytes | None:
        """Return the payload of *request*, with *visit*; None: it is to stay in this worker.

        Raises:
            CannotEncode: it has to.
        """
        if request.meta.get("dq_local"):
            return None
        stored = self._stored_form.of(request, parent, self._settlement.followed)
        if visit is not None:
            stored = copied(stored)
            visit.put_into(stored)
        return self._codec.encode(stored)

    def _with_visit(self, request: Request, classified: _Classified, payload: bytes) -> bytes:
        """Return *payload*; with a visit if it is not filtered and is of a page that is visited again."""
        if self._revisits is None or not request.dont_filter:
            return payload
        redirected = classified.parent_id if self._settlement.followed(request) else None
        begins = self._settlement.from_start(request) or self._work.was_fed(request)
        visit = self._revisits.first_visit_of(request, begins=begins, redirected=redirected)
        try:
            return (visit and self._encode(request, classified.parent, visit)) or payload
        except CannotEncode:  # too large by the visit: the page is visited once
            return payload

    def _serve_again(self, request: Request, classified: _Classified) -> bool:
        """Have the entry of a page that is visited again served once more for a retry; False: it is none.

        A second entry, and an ack of the first, would be two for ever after a roll-back that takes the ack.

        Raises:
            CannotEncode: it has to stay in this worker.
        """
        lease, parent = classified.parent_id, classified.parent
        if self._revisits is None or lease is None or classified.reason:
            return False
        if not self._settlement.followed(request):
            return False
        visit = self._revisits.visit_of_retry(request, parent, lease)
        payload = visit and self._encode(request, parent, visit)
        if payload is None:
            return False
        wait_s = max(0.0, classified.due.at - time.monotonic()) if classified.due.at else 0.0
        self._revisits.retry(lease, payload, int(index(request.priority)), wait_s)
        self._count(stats.ENQUEUED, stats.SCRAPY_ENQUEUED)
        return True

    def _leaves_the_web(self, request: Request, parent: Request | None) -> bool:
        """Return whether a web page may lead to a URL of another kind, which DQ_URL_SCHEMES does not allow.

        Such a page may name files of this host, and what its AWS credentials can read. What a spider may want
        to fetch besides is not dropped: what `start()` yields, links of a page with the same scheme, data:
        URLs, which hold their own content, and requests that it marks with `dq_local`. But a mark that the
        parent has, too, may be a copy. What comes by `engine.crawl()` may be a link that the spider has kept,
        and its mark a copy.
        """
        scheme = _scheme_of(request)
        if scheme in self._schemes or scheme == "data":
            return False
        if parent is None:  # what was fed is refused, or made by the project's own code
            return not (self._settlement.from_start(request) or self._work.was_fed(request))
        marked = request.meta.get("dq_local") and not parent.meta.get("dq_local")
        return not marked and _scheme_of(parent) != scheme

    def store_fed(self, requests: Iterable[Request], entry_id: bytes, message: bytes) -> str:
        """Pass the requests made from the start payload of a lease to the engine, which stores them.

        Args:
            message: see `Lease.message`.
        Returns:
            Why one of them was neither stored nor kept: the payload must become a dead letter; "" if none.
        """
        assert self._crawler.engine is not None
        self._fed_puts.clear()
        self._refused_fed = ""
        self._work.note_message(entry_id, message)
        for request in requests:
            self._work.feed(request, entry_id)
            self._crawler.engine.crawl(request)
        if not self._work.local.holds(entry_id):
            for put in self._fed_puts:
                self._worker.note_fed(put)
        self._count(stats.FED)
        return self._refused_fed

    def settled(self, entry_id: bytes) -> None:
        """Note that a lease has ended: it leads to nothing more."""
        self.admissions.settled(entry_id)
        self._work.settled(entry_id)

    def keep(self, request: Request) -> None:
        """Keep *request*, whose storing has raised, in this worker."""
        self.push_local(request, self._holds(request, self._settlement.parent_of(request)))

    def push_local(
        self, request: Request, parents: set[bytes], partition: bytes = b"", due: Due = AT_ONCE
    ) -> None:
        """Keep *request* in this worker; the leases *parents* do not end before it is done."""
        if request in self._work:
            # A callback yielded its own request again: the engine's set holds an object only once.
            request = copied(request)
        # The clock of Redis is not available here: for a local request, the clock of this host counts.
        due_at = max(due.at, time.monotonic() + due.not_before_s - time.time() if due.not_before_s else 0.0)
        self._work.local.push(request, partition, parents, due_at)
        if due_at:
            asyncio.get_running_loop().call_later(due_at - time.monotonic(), self._settlement.wake)
        self._count(stats.ENQUEUED_LOCAL, stats.SCRAPY_ENQUEUED)

    def count_duplicate(self, request: Request) -> None:
        """Count *request* as a duplicate, and log it through the dupefilter."""
        self._count(stats.DUPLICATES)
        assert self._crawler.spider is not None
        try:
            self._dupefilter.log(request, self._crawler.spider)
        except Exception:  # of a project's own: the request is a duplicate nevertheless
            logger.exception("The dupefilter could not log a duplicate: %s", shown(request))

    def warn_dead(self, what: str, reason: str) -> None:
        """Log that *what* becomes a dead letter."""
        self.warn(reason, "%s becomes a dead letter: %s", printable(prose_without_logins(what)), reason)

    def warn(self, reason: str, text: str, *args: object, crew_shows: bool = False) -> None:
        """Log a warning: once for each reason, unless SCHEDULER_DEBUG is set."""
        cause, warned = without_numbers(reason), self._warned.setdefault(text, set())
        if not self._debug:
            if cause in warned or len(warned) == MOST_REASONS:
                return
            warned.add(cause)
            text += ". No more with this reason are shown (SCHEDULER_DEBUG shows all)"
        logger.warning(text, *args, extra={CREW_SHOWS: crew_shows})

    def _keep_local(self, request: Request, classified: _Classified) -> bool:
        if classified.reason and self._work.was_fed(request):
            # It becomes a dead letter. If it stayed here, the mistake of a program that feeds the crawl would
            # take it out of its partition, or crawl it before its time.
            self._refused_fed = classified.reason
            return False
        if classified.reason:
            logger.warning(
                "%s stays in this worker and is crawled at once: %s", shown(request), classified.reason
            )
        for key in DUE_KEYS:
            request.meta.pop(key, None)  # as with stored requests (`as_stored`): a retry of it is due at once
        parents = self._holds(request, classified.parent)
        self.push_local(request, parents, classified.partition, classified.due)
        self.admissions.remember(classified.fingerprint, 0)
        return True

    def _holds(self, request: Request, parent: Request | None) -> set[bytes]:
        """Return the leases that must not end before *request*, which stays in this worker, is done."""
        if self._settlement.from_start(request):
            return set()
        return self._work.possible_parents(request, parent)

    def _put_dead(self, request: Request, classified: _Classified, payload: bytes) -> bool:
        """Store a request that cannot be served as a dead letter, with the reason."""
        # Not under its fingerprint: a valid request for the same page must not be a duplicate of it. But many
        # pages may link to it, and one dead letter is enough.
        fingerprint = classified.fingerprint and sha1(b"dead letter" + classified.fingerprint).digest()
        reference = self.admissions.sent_as(fingerprint)
        if reference is not None:
            self._await_puts(request, (reference,))
            self.count_duplicate(request)
            return False
        put = self._put_of(request, classified._replace(fingerprint=fingerprint), payload)
        put.reason = classified.reason
        self._count(stats.BURIED)
        self.warn_dead(str(request), put.reason)
        if not self._worker.put(put):
            return False
        self.admissions.remember(fingerprint, self._worker.reference(put))
        return True

    def _put(self, request: Request, classified: _Classified, payload: bytes) -> bool:
        put = self._put_of(request, classified, payload)
        # The token of a page that is visited again is kept: put once more, there would be two for ever.
        forgets = put.admission is Admission.ID and put.payload is payload
        fed = forgets and self._work.was_fed(request)
        if fed:
            self._fed_puts.append(put)
        if self._adopted and put.admission is Admission.SEEN:
            put.known_as = scrapy_redis.fingerprint(request)
        if not self._worker.put(put):
            self.warn("", "%s is dropped: the run is over for this worker", shown(request))
            return False
        self.admissions.remember(classified.fingerprint, self._worker.reference(put))
        if forgets and not fed and self._revisits is not None:  # the run may never end
            self._worker.forget_with_parent(put)
        if put.parent is None and not self._settlement.from_start(request):
            self._await_puts(request, (self._worker.reference(put),))
        self._count(stats.ENQUEUED, stats.SCRAPY_ENQUEUED)
        return True

    def _put_of(self, request: Request, classified: _Classified, payload: bytes) -> Put:
        parent_id, seed, followed = classified.parent_id, False, False
        if classified.fingerprint is None:  # only then it is identified by where it comes from
            seed = self._config.seed_once and self._settlement.from_start(request)
            followed = self._settlement.followed(request)
        admitted = self.admissions.of(
            request, classified.fingerprint, parent_id, payload, seed=seed, followed=followed
        )
        start = self._config.start_queue if request.meta.get("is_start_request") else StartQueue.SHARED
        # Its identity is that without a visit: DQ_REVISIT may be set, or removed, in the middle of a run.
        payload = self._with_visit(request, classified, payload)
        put = Put(
            *admitted, int(index(request.priority)), start, payload, parent_id, request, classified.partition,
            *classified.due,
        )  # fmt: skip
        message = self._work.message_of(parent_id)
        # In another shard nobody could acknowledge it: there it is done when its requests are stored.
        alone = message and self._worker.shards == 1
        if alone and (self._settlement.followed(request) or self._work.was_fed(request)):
            put.message = message
        return put

    def _warn_unencodable(self, request: Request, error: CannotEncode) -> None:
        self._count(stats.UNENCODABLE)
        reason, start = prose_without_logins(str(error), request.url), self._settlement.from_start(request)
        ends = "it stays in this worker and is not shared"
        if start:
            ends = "each worker crawls this start request"
        self.warn(
            reason, f"%s cannot be stored (%s): {ends}",
            shown(request, 100 if start else 500),  # a crew's screen shows 300 characters
            reason, crew_shows=start,
        )  # fmt: skip


def _scheme_of(request: Request) -> str:
    return request.url.partition(":")[0].lower()
