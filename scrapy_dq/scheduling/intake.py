"""Requests -> puts in the outbox; and the handling of requests that cannot be stored."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Iterable
from hashlib import sha1
from operator import index
from typing import NamedTuple

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter

from scrapy_dq import scrapy_redis
from scrapy_dq.codec import CannotEncode, Codec
from scrapy_dq.codec.attributes import check_parses
from scrapy_dq.codec.unfit import Unfit
from scrapy_dq.frontier.model import Admission, StartQueue
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.revisits.policy import BadRevisit
from scrapy_dq.revisits.revisits import Revisits
from scrapy_dq.revisits.revisits import check as check_revisit
from scrapy_dq.scheduling.admission import Admissions
from scrapy_dq.scheduling.due_times import AT_ONCE, DUE_KEYS, NOT_STORED, BadDue, Due, as_stored, due_of
from scrapy_dq.scheduling.dupefilter import DupeFilter
from scrapy_dq.scheduling.engine_hooks import Settlement
from scrapy_dq.scheduling.in_progress import InProgress
from scrapy_dq.scheduling.logins import HEADERS, META_KEYS, Logins
from scrapy_dq.scheduling.partitions import BadPartition, OneSlot, Slots
from scrapy_dq.scheduling.stored_form import with_short_link_text, with_short_referer, without_redirects_of
from scrapy_dq.settings import Config
from scrapy_dq.stats import names as stats
from scrapy_dq.stats.collector import Tally
from scrapy_dq.text import CREW_SHOWS, printable, prose_without_logins, without_numbers

logger = logging.getLogger(__name__)
MOST_REASONS = 10
"""Most different reasons for which a warning is logged."""
_ALTERED = NOT_STORED | META_KEYS | {"dq_local", "redirect_urls", "link_text"}
"""Keys of meta of which a request is not stored as it is; for its headers see `HEADERS`."""


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
        self,
        crawler: Crawler,
        config: Config,
        dupefilter: BaseDupeFilter,
        admissions: Admissions,
        codec: Codec,
        partitions: Slots | OneSlot,
        worker: Worker,
        settlement: Settlement,
        work: InProgress,
        revisits: Revisits | None,
        count: Tally,
        *,
        adopted: bool,
    ) -> None:
        """
        Args:
            adopted: a crawl of scrapy-redis was adopted: what it had seen is not crawled again.
        """
        self.admissions = admissions
        self._crawler = crawler
        self._dupefilter = dupefilter
        self._filters_alone = not isinstance(dupefilter, DupeFilter)
        self._codec = codec
        self._partitions = partitions
        self._worker = worker
        self._settlement = settlement
        self._work = work
        self._revisits = revisits
        self._adopted = adopted
        self._count = count
        self._debug = crawler.settings.getbool("SCHEDULER_DEBUG")
        self._retry_backoff = config.retry_backoff
        self._start_queue = config.start_queue
        self._logins = Logins(crawler)
        self._fed_puts: list[Put] = []
        self._refused_fed = ""
        self._schemes = frozenset(scheme.lower() for scheme in config.url_schemes)
        self._warned_over = self._warned_scheme = False
        self._warned_dead = set[str]()
        self._warned_unencodable = set[tuple[bool, str]]()
        """For which reasons a warning was logged, apart for start requests (True) and others."""

    def store(self, request: Request) -> bool:
        """Put *request* into the outbox or the local queue; False if it is a duplicate, or dropped."""
        if self._worker.handed_in:
            self._warn_over(request, "this worker has left the crawl")
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
            if self._revisits is not None and self._serve_again(request, classified):
                return True
            payload = self._encode(request, classified.parent)
        except CannotEncode as error:
            unfit = error
        if payload is None and self._leaves_the_web(request, classified.parent):
            self._count(stats.SCHEME_DROPPED)
            self._warn_scheme(request)
            return False
        if unfit is not None:
            self._warn_unencodable(request, unfit)
        if payload is not None:
            put = self._put_dead if classified.reason else self._put
            return put(request, classified, payload)
        kept = self._keep_local(request, classified)
        if kept and classified.fingerprint is not None:
            self.admissions.remember(classified.fingerprint, 0)
        return kept

    def _classify(self, request: Request) -> _Classified | None:
        """Return what *request* is; None: it is a duplicate."""
        # A DUPEFILTER_CLASS that is not ours filters here; with ours, the frontier filters.
        if self._filters_alone and not request.dont_filter and self._dupefilter.request_seen(request):
            self._await_puts(request, self._worker.last_references)
            return None
        fingerprint = self.admissions.fingerprint(request)
        if fingerprint is not None and self.admissions.known(fingerprint):  # so are most links of most sites
            self._await_puts(request, (self.admissions.sent_as(fingerprint),))
            return None
        parent = self._settlement.parent_of(request)
        parent_id = self._work.parent_of(request, parent)
        partition, due, reason = b"", AT_ONCE, ""
        try:
            self._partitions.leave_inherited(request, parent, self._settlement.followed)
            partition = self._partitions.partition_of(request)
            due = due_of(request, parent, self._retry_backoff)
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

    def _encode(
        self, request: Request, parent: Request | None, mark: Callable[[Request], Request] | None = None
    ) -> bytes | None:
        """Return the payload of *request*; None: it is to stay in this worker.

        Args:
            mark: returns a copy with what is stored besides.
        Raises:
            CannotEncode: it has to.
        """
        # Most requests have nothing of all this, and each test for itself takes its time.
        if _ALTERED.isdisjoint(request.meta) and HEADERS.isdisjoint(request.headers):
            return self._codec.encode(with_short_referer(mark(request) if mark else request))
        if request.meta.get("dq_local"):
            return None
        bare = self._logins.without(as_stored(request))
        if "redirect_urls" in bare.meta and not self._settlement.followed(request):
            bare = without_redirects_of(bare, parent)
        return self._codec.encode(with_short_link_text(with_short_referer(mark(bare) if mark else bare)))

    def _marked(self, request: Request, classified: _Classified, payload: bytes) -> bytes:
        """Return *payload*, marked if it is not filtered and is of a page that is visited again."""
        if self._revisits is None or not request.dont_filter:
            return payload
        redirected = classified.parent_id if self._settlement.followed(request) else None
        begins = self._settlement.from_start(request) or self._work.was_fed(request)
        mark = self._revisits.mark_of(request, begins=begins, redirected=redirected)
        try:
            return (mark and self._encode(request, classified.parent, mark)) or payload
        except CannotEncode:  # too large by the mark: the page is visited once
            return payload

    def _serve_again(self, request: Request, classified: _Classified) -> bool:
        """Have the entry of a page that is visited again served once more for a retry; False: it is none.

        A second entry, and an ack of the first, would be two for ever after a roll-back that takes the ack.

        Raises:
            CannotEncode: it has to stay in this worker.
        """
        assert self._revisits is not None
        lease, parent = classified.parent_id, classified.parent
        if lease is None or classified.reason or not self._settlement.followed(request):
            return False
        mark = self._revisits.mark_of_retry(request, parent, lease)
        payload = mark and self._encode(request, parent, mark)
        if payload is None:
            return False
        wait_s = max(0.0, classified.due.at - time.monotonic()) if classified.due.at else 0.0
        self._revisits.retry(lease, payload, int(index(request.priority)), wait_s)
        self._count(stats.ENQUEUED)
        self._count(stats.SCRAPY_ENQUEUED)
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

    def keep(self, request: Request) -> None:
        """Keep *request*, whose storing has raised, in this worker."""
        self.push_local(request, self._holds(request, self._settlement.parent_of(request)))

    def push_local(
        self, request: Request, parents: set[bytes], partition: bytes = b"", due: Due = AT_ONCE
    ) -> None:
        """Keep *request* in this worker; the leases *parents* do not end before it is done."""
        if request in self._work:
            # A callback yielded its own request again: the engine's set holds an object only once.
            try:
                request = request.copy()
            except Exception:  # a class whose constructor needs more arguments than Scrapy passes
                request = copy.copy(request)
        # The clock of Redis is not available here: for a local request, the clock of this host counts.
        due_at = max(due.at, time.monotonic() + due.not_before_s - time.time() if due.not_before_s else 0.0)
        self._work.local.push(request, partition, parents, due_at)
        if due_at:
            asyncio.get_running_loop().call_later(due_at - time.monotonic(), self._settlement.wake)
        self._count(stats.ENQUEUED_LOCAL)
        self._count(stats.SCRAPY_ENQUEUED)

    def count_duplicate(self, request: Request) -> None:
        """Count *request* as a duplicate, and log it through the dupefilter."""
        self._count(stats.DUPLICATES)
        assert self._crawler.spider is not None
        try:
            self._dupefilter.log(request, self._crawler.spider)
        except Exception:  # of a project's own: the request is a duplicate nevertheless
            logger.exception("The dupefilter could not log a duplicate: %s", shown(request))

    def warn_dead(self, what: str, reason: str) -> None:
        """Log that *what* becomes a dead letter: once for each reason, unless SCHEDULER_DEBUG is set."""
        kind = without_numbers(reason)
        new = kind not in self._warned_dead and len(self._warned_dead) < MOST_REASONS
        if new or self._debug:
            self._warned_dead.add(kind)
            more = "" if self._debug else ". No more with this reason are shown (SCHEDULER_DEBUG shows all)"
            logger.warning(
                "%s becomes a dead letter: %s%s", printable(prose_without_logins(what)), reason, more
            )

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
        if fingerprint is not None and self.admissions.known(fingerprint):
            self._await_puts(request, (self.admissions.sent_as(fingerprint),))
            self.count_duplicate(request)
            return False
        put = self._put_of(request, classified._replace(fingerprint=fingerprint), payload)
        put.reason = classified.reason
        self._count(stats.BURIED)
        self.warn_dead(str(request), put.reason)
        if not self._worker.put(put):
            return False
        self._remember(fingerprint, put)
        return True

    def _remember(self, fingerprint: bytes | None, put: Put) -> None:
        if fingerprint is not None:
            self.admissions.remember(fingerprint, self._worker.reference(put))

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
            self._warn_over(request, "the run is over for this worker")
            return False
        self._remember(classified.fingerprint, put)
        if forgets and not fed and self._revisits is not None:  # the run may never end
            self._worker.forget_with_parent(put)
        if put.parent is None and not self._settlement.from_start(request):
            self._await_puts(request, (self._worker.reference(put),))
        self._count(stats.ENQUEUED)
        self._count(stats.SCRAPY_ENQUEUED)
        return True

    def _put_of(self, request: Request, classified: _Classified, payload: bytes) -> Put:
        # Only what has no fingerprint is identified by where it comes from.
        followed = classified.fingerprint is None and self._settlement.followed(request)
        parent_id = classified.parent_id
        admitted = self.admissions.of(request, classified.fingerprint, parent_id, payload, followed)
        start = self._start_queue if request.meta.get("is_start_request") else StartQueue.SHARED
        # Its identity is that without a mark: DQ_REVISIT may be set, or removed, in the middle of a run.
        payload = self._marked(request, classified, payload)
        put = Put(
            *admitted, int(index(request.priority)), start, payload, parent_id, request, classified.partition,
            *classified.due,
        )  # fmt: skip
        # In another shard nobody could acknowledge it: there it is done when its requests are stored.
        counts = self._work.has_messages and self._worker.shards == 1
        if counts and (self._settlement.followed(request) or self._work.was_fed(request)):
            put.message = self._work.message_of(parent_id)
        return put

    def _warn_unencodable(self, request: Request, error: CannotEncode) -> None:
        self._count(stats.UNENCODABLE)
        start = self._settlement.from_start(request)
        kind = start, without_numbers(str(error))
        new = kind not in self._warned_unencodable and len(self._warned_unencodable) < MOST_REASONS
        if new or self._debug:
            self._warned_unencodable.add(kind)
            more = "" if self._debug else "No more with this reason are shown (SCHEDULER_DEBUG shows all). "
            logger.warning(
                "%s cannot be stored (%s): %s. %s%s counts them",
                shown(request, 100 if start else 500),  # a crew's screen shows 300 characters
                prose_without_logins(str(error), request.url),
                "each worker crawls this start request" if start
                else "it stays in this worker and is not shared",
                more,
                stats.UNENCODABLE,
                extra={CREW_SHOWS: start},
            )  # fmt: skip

    def _warn_scheme(self, request: Request) -> None:
        if not self._warned_scheme or self._debug:
            self._warned_scheme = True
            more = "" if self._debug else "No more of these are shown (SCHEDULER_DEBUG shows all). "
            logger.warning(
                "%s is dropped: its scheme is not in DQ_URL_SCHEMES (%s), and a web page may have led to it. "
                "To crawl it, add the scheme, or yield it from start(). %s%s counts them",
                shown(request),
                ", ".join(sorted(self._schemes)),
                more,
                stats.SCHEME_DROPPED,
            )

    def _warn_over(self, request: Request, why: str) -> None:
        if not self._warned_over:
            self._warned_over = True
            logger.warning("%s and all later requests are dropped: %s", shown(request), why)


def _scheme_of(request: Request) -> str:
    return request.url.partition(":")[0].lower()
