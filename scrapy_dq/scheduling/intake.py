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
from scrapy_dq.revisits.revisits import Visit
from scrapy_dq.revisits.revisits import check as check_revisit
from scrapy_dq.scheduling.admission import Admissions
from scrapy_dq.scheduling.due_times import AT_ONCE, DUE_KEYS, BadDue, Due, due_of
from scrapy_dq.scheduling.in_progress import InProgress
from scrapy_dq.scheduling.partitions import BadPartition
from scrapy_dq.scheduling.session import Session
from scrapy_dq.scheduling.stored_form import StoredForm
from scrapy_dq.start_urls.payloads import NoRequest
from scrapy_dq.stats import names as stats
from scrapy_dq.stats.collector import Tally
from scrapy_dq.text import CREW_SHOWS, printable, prose_without_logins, without_numbers

logger = logging.getLogger(__name__)
MOST_REASONS = 10
"""Most different reasons for which a warning is logged."""


class _Placed(NamedTuple):
    """Where a request comes from, and what decides where it is put."""

    fingerprint: bytes | None
    parent: Request | None
    """Its callback has yielded the request, or the request follows it; None: unknown, or it has no parent."""
    parent_id: bytes | None
    """The lease of its parent, or of the start payload that it was made from."""
    followed: bool
    """It is a redirect or a retry of its parent."""
    from_start: bool
    """`start()` has yielded it."""
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
        self._admissions = admissions
        self._session = session
        self._config = session.config
        self._crawler = crawler
        self._worker = session.worker
        self._settlement = session.settlement
        self._work = work
        self._revisits = session.revisits
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
            lease = self._work.parent_of(self._settlement.parent_of(request))
            self._revisits.leave_conditions(request, lease)
        placed = self._place(request)
        if placed is None:
            self.count_duplicate(request)
            return False
        unfit = None
        try:
            if self._revisits is not None and self._serve_again(request, placed):
                return True
            if not request.meta.get("dq_local"):
                return self._put(request, placed, self._encode(request, placed))
        except CannotEncode as error:
            unfit = error
        if self._leaves_the_web(request, placed):
            self._count(stats.SCHEME_DROPPED)
            self.warn(
                "",
                "%s is dropped: its scheme is not in DQ_URL_SCHEMES (%s), and a web page may have led to it. "
                "To crawl it, add the scheme, or yield it from start(). %s counts them",
                shown(request), ", ".join(sorted(self._schemes)), stats.SCHEME_DROPPED,
            )  # fmt: skip
            return False
        if unfit is not None:
            self._warn_unencodable(request, unfit, start=placed.from_start)
        return self._keep_local(request, placed)

    def _place(self, request: Request) -> _Placed | None:
        """Return where *request* comes from and is put; None: it is a duplicate."""
        # A DUPEFILTER_CLASS that is not ours filters here; with ours, the frontier filters.
        if (
            not self._session.shares_seen
            and not request.dont_filter
            and self._session.dupefilter.request_seen(request)
        ):
            self._await_puts(request, self._worker.last_references)
            return None
        fingerprint = self._admissions.fingerprint(request)
        reference = self._admissions.sent_as(fingerprint)
        if reference is not None:  # so are most links of most sites
            self._await_puts(request, (reference,))
            return None
        parent = self._settlement.parent_of(request)
        parent_id, followed = self._work.parent_of(parent), request is self._settlement.following
        partition, due, reason = b"", AT_ONCE, ""
        try:
            self._session.slots.leave_inherited(request, parent, followed=followed)
            partition = self._session.slots.partition_of(request)
            due = due_of(request, parent, self._config.retry_backoff)
            if self._revisits is not None:
                check_revisit(request)
        except (BadDue, BadPartition, BadRevisit) as error:
            reason = prose_without_logins(str(error), request.url)
        from_start = self._settlement.from_start(request)
        return _Placed(fingerprint, parent, parent_id, followed, from_start, partition, due, reason)

    def _possible_parents(self, request: Request) -> set[bytes]:
        return self._work.possible_parents(self._settlement.parent_of(request))

    def _await_puts(self, request: Request, references: Iterable[int]) -> None:
        """Keep the lease that has brought *request* until these puts, which were made before, are certain."""
        if self._worker.shards > 1:
            parents = self._possible_parents(request)
            for reference in references:
                self._worker.depends(parents, reference)

    def _encode(self, request: Request, placed: _Placed, visit: Visit | None = None) -> bytes:
        """Return the payload of *request*, with *visit*.

        Raises:
            CannotEncode: it has to stay in this worker; or it is too large by the visit.
        """
        stored = self._stored_form.of(request, placed.parent, placed.followed)
        if visit is not None:
            stored = copied(stored) if stored is request else stored
            visit.put_into(stored)
        return self._session.codec.encode(stored)

    def _with_visit(self, request: Request, placed: _Placed, payload: bytes) -> bytes:
        """Return *payload*; with a visit if it is of a page that is visited again."""
        if self._revisits is None or not request.dont_filter:
            return payload
        redirected = placed.parent_id if placed.followed else None
        begins = placed.from_start or self._work.feeding is not None
        visit = self._revisits.first_visit_of(request, begins=begins, redirected=redirected)
        try:
            return payload if visit is None else self._encode(request, placed, visit)
        except CannotEncode:  # too large by the visit: the page is visited once
            return payload

    def _serve_again(self, request: Request, placed: _Placed) -> bool:
        """Have the entry of a page that is visited again served once more for a retry; False: it is none.

        A second entry, and an ack of the first, would be two for ever after a roll-back that takes the ack.

        Raises:
            CannotEncode: it has to stay in this worker.
        """
        lease, due = placed.parent_id, placed.due
        if self._revisits is None or lease is None or placed.reason or not placed.followed:
            return False
        visit = self._revisits.visit_of_retry(request, placed.parent, lease)
        if visit is None or request.meta.get("dq_local"):
            return False
        payload = self._encode(request, placed, visit)
        wait_s = max(0.0, due.at - time.monotonic()) if due.at else 0.0
        self._revisits.retry(lease, payload, int(index(request.priority)), wait_s)
        self._count(stats.ENQUEUED, stats.SCRAPY_ENQUEUED)
        return True

    def _leaves_the_web(self, request: Request, placed: _Placed) -> bool:
        """Return whether a web page may lead to a URL of another kind, which DQ_URL_SCHEMES does not allow.

        Such a page may name files of this host, and what its AWS credentials can read. What a spider may want
        to fetch besides is not dropped: what `start()` yields, links of a page with the same scheme, data:
        URLs, which hold their own content, and requests that it marks with `dq_local`. But a mark that the
        parent has, too, may be a copy. What comes by `engine.crawl()` may be a link that the spider has kept,
        and its mark a copy.
        """
        scheme, parent = _scheme_of(request), placed.parent
        if scheme in self._schemes or scheme == "data":
            return False
        if parent is None:  # what was fed is refused, or made by the project's own code
            return not (placed.from_start or self._work.feeding is not None)
        marked = request.meta.get("dq_local") and not parent.meta.get("dq_local")
        return not marked and _scheme_of(parent) != scheme

    def store_fed(self, requests: Iterable[Request], entry_id: bytes, message: bytes) -> None:
        """Pass the requests made from the start payload of a lease to the engine, which stores them.

        Args:
            message: see `Lease.message`.
        Raises:
            NoRequest: one of them was neither stored nor kept: the payload must become a dead letter.
        """
        assert self._crawler.engine is not None
        self._fed_puts.clear()
        self._refused_fed = ""
        if message:
            self._work.messages[entry_id] = message
        self._work.feeding = entry_id
        try:
            for request in requests:
                self._crawler.engine.crawl(request)
        finally:
            self._work.feeding = None
        if not self._work.local.holds(entry_id):
            for put in self._fed_puts:
                self._worker.note_fed(put)
        self._count(stats.FED)
        if self._refused_fed:
            raise NoRequest(self._refused_fed)

    def settled(self, entry_id: bytes) -> None:
        """Note that a lease has ended: it leads to nothing more."""
        self._admissions.settled(entry_id)
        self._work.messages.pop(entry_id, None)

    def keep(self, request: Request, partition: bytes = b"", due: Due = AT_ONCE) -> None:
        """Keep *request* in this worker; the leases that may have brought it do not end before it is done."""
        parents = set() if self._settlement.from_start(request) else self._possible_parents(request)
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
            self._session.dupefilter.log(request, self._crawler.spider)
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

    def _keep_local(self, request: Request, placed: _Placed) -> bool:
        if placed.reason and self._work.feeding is not None:
            # It becomes a dead letter. If it stayed here, the mistake of a program that feeds the crawl would
            # take it out of its partition, or crawl it before its time.
            self._refused_fed = placed.reason
            return False
        if placed.reason:
            logger.warning(
                "%s stays in this worker and is crawled at once: %s", shown(request), placed.reason
            )
        for key in DUE_KEYS:
            request.meta.pop(key, None)  # as with stored requests (`as_stored`): a retry of it is due at once
        self.keep(request, placed.partition, placed.due)
        self._admissions.remember(placed.fingerprint, 0)
        return True

    def _put(self, request: Request, placed: _Placed, payload: bytes) -> bool:
        """Put *request* into the outbox; as a dead letter, if it cannot be served."""
        fingerprint, parent_id, reason = placed.fingerprint, placed.parent_id, placed.reason
        if reason and fingerprint is not None:
            # Not under its fingerprint: a valid request for the same page must not be a duplicate of it. But
            # many pages may link to it, and one dead letter is enough.
            fingerprint = sha1(b"dead letter" + fingerprint).digest()
            reference = self._admissions.sent_as(fingerprint)
            if reference is not None:
                self._await_puts(request, (reference,))
                self.count_duplicate(request)
                return False
        seed = placed.from_start and self._config.seed_once
        admitted = self._admissions.of(
            request, fingerprint, parent_id, payload, seed=seed, followed=placed.followed
        )
        start = self._config.start_queue if request.meta.get("is_start_request") else StartQueue.SHARED
        # Its identity is that without a visit: DQ_REVISIT may be set, or removed, in the middle of a run.
        kept = payload if self._revisits is None else self._with_visit(request, placed, payload)
        put = Put(
            *admitted, int(index(request.priority)), start, kept, parent_id, request, placed.partition,
            *placed.due, reason,
        )  # fmt: skip
        fed = self._work.feeding is not None
        # No worker could acknowledge it in another shard: there it is done when its requests are stored.
        if (fed or placed.followed) and self._worker.shards == 1:
            put.message = self._work.messages.get(parent_id, b"")
        # The token of a page that is visited again is kept: put once more, there would be two for ever.
        forgets = put.admission is Admission.ID and kept is payload and not reason
        if reason:
            self._count(stats.BURIED)
            self.warn_dead(str(request), reason)
        elif forgets and fed:
            self._fed_puts.append(put)
        elif self._session.joined.adopted and put.admission is Admission.SEEN:
            put.known_as = scrapy_redis.fingerprint(request)
        if not self._worker.put(put):
            self.warn("", "%s is dropped: the run is over for this worker", shown(request))
            return False
        reference = self._worker.reference(put)
        self._admissions.remember(fingerprint, reference)
        if forgets and not fed and self._revisits is not None:  # the run may never end
            self._worker.forget_with_parent(put)
        if parent_id is None and not placed.from_start:
            self._await_puts(request, (reference,))
        if not reason:
            self._count(stats.ENQUEUED, stats.SCRAPY_ENQUEUED)
        return True

    def _warn_unencodable(self, request: Request, error: CannotEncode, *, start: bool) -> None:
        self._count(stats.UNENCODABLE)
        reason = prose_without_logins(str(error), request.url)
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
