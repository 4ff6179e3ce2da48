"""Scrapy's scheduler contract -> worker calls. Decides nothing about stored state; never waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from operator import index
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import build_from_crawler

from scrapy_dq import scrapy_redis, stats
from scrapy_dq.admission import Admitted
from scrapy_dq.codec import CannotDecode, CannotEncode
from scrapy_dq.due import AT_ONCE, DUE_KEYS, BadDue, Due, due_of, without_due
from scrapy_dq.dupefilter import DupeFilter
from scrapy_dq.fed import Fed, NoRequest
from scrapy_dq.frontier.model import Admission, Lease, Put
from scrapy_dq.local import LocalQueue
from scrapy_dq.session import Session
from scrapy_dq.settings import enabled
from scrapy_dq.settlement import Outcome, is_one_off
from scrapy_dq.signals import items_given_up
from scrapy_dq.slots import BadPartition
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

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None
        self._crawler = crawler
        self._stats = crawler.stats
        self._opened = False
        self._local = LocalQueue()
        self._leases: dict[Request, bytes] = {}
        self._waiting: dict[bytes, _Ending] = {}  # done, but a local request may be their child
        self._fed_by: MutableMapping[Request, bytes] = WeakKeyDictionary()
        self._expanded: list[Put] = []
        self._asked_if_idle = False
        self._tells_sent = False
        self._warned_unencodable = self._warned_dead = False

    # Opening and closing.

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl; the Deferred fails, after one ERROR line, if that is not possible."""
        return deferred_from_coro(self._open(spider))

    async def _open(self, spider: Spider) -> None:
        # Not in from_crawler: an exception there leaves the engine half-made, and hides its cause.
        self._spider = spider
        self._session = Session.from_crawler(self._crawler)
        self._config = self._session.config
        self._admissions = self._session.admissions()
        self._fed = Fed(spider, self._session.codec)
        await self._session.open(self)
        self._crawler.signals.connect(self.release_unfinished, items_given_up)
        self._opened = True

    def close(self, reason: str) -> Deferred[None]:
        """Hand in what is done, give back what is not, and leave. Safe on a half-opened scheduler."""
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        for entry_id in self._waiting:
            # Local children die with this process: their parents must run again.
            self._session.worker.release(entry_id)
        self._waiting.clear()
        if hasattr(self, "_session"):
            await self._session.close(reason)

    # The engine's calls.

    def has_pending_requests(self) -> bool:
        """Tell whether anything of the whole crawl, on any worker, is not done yet."""
        if not self._opened:
            return False
        if not self._asked_if_idle:
            # The engine asks only once start() is exhausted: this ends the worker's seeding.
            self._asked_if_idle = True
            self._session.worker.seeded(failed=self._session.settlement.start_failed)
        if len(self._local):
            return True
        listening = self._session.listening
        # With nothing to do but to listen, Scrapy sends spider_idle, and is told to stay open.
        return not listening.idle() if listening.on else self._session.worker.pending

    def enqueue_request(self, request: Request) -> bool:
        """Take *request* into the outbox, or keep it local; False if it is known to be a duplicate."""
        try:
            return self._enqueue(request)
        except Exception:
            # An exception from here would hang the engine and lose what the callback yields next.
            logger.exception("Unexpected error while storing %s: it stays in this worker", request)
            self._push_local(request, {*self._leases.values(), *self._waiting})
            return True

    def next_request(self) -> Request | None:
        """Return the next leased or local request; None if there is none at the moment."""
        request = self._local.pop()
        until = time.monotonic() + EXPANDING_S
        while request is None:
            if time.monotonic() >= until:
                self._session.settlement.wake()  # there may be more, but Scrapy has other things to do, too
                return None
            lease = self._session.worker.take()
            if lease is None:
                return None
            if Fed.is_fed(lease.payload):
                self._expand(lease)
            else:
                request = self._decode(lease)
        self._stats.inc_value(stats.DEQUEUED)
        self._stats.inc_value(stats.SCRAPY_DEQUEUED)
        return request

    def __len__(self) -> int:
        """Return how much waits in the whole crawl, as of the last exchange."""
        return self._session.worker.census.waiting + len(self._local) if self._opened else 0

    # Storing.

    def _enqueue(self, request: Request) -> bool:
        local = bool(request.meta.get("dq_local"))
        parent = self._session.settlement.parent_of(request)
        parent_id = self._fed_by.get(request) if parent is None else self._leases.get(parent)
        if self._session.filtered(request):
            self._count_duplicate(request)
            return False
        fingerprint = self._admissions.fingerprint(request)
        if self._admissions.known(fingerprint):
            self._count_duplicate(request)
            return False
        partition, due, reason = b"", AT_ONCE, ""
        try:
            due = due_of(request, parent, self._config.retry_backoff)
            partition = self._session.slots.partition_of(request)
        except (BadDue, BadPartition) as error:
            reason = str(error)
        if not local:
            try:
                payload = self._session.codec.encode(without_due(request))
            except CannotEncode as error:
                self._warn_unencodable(request, error)
                local = True
        if local:
            if reason:
                logger.warning("%s stays in this worker and is crawled at once: %s", request, reason)
            self._keep_local(request, due)
        elif reason:
            return self._put_dead(request, parent_id, payload, reason)
        else:
            followed = self._followed(request)
            admitted = self._admissions.of(request, fingerprint, parent_id, payload, followed)
            put = _put_of(request, admitted, payload, parent_id)
            put.partition, put.due_at, put.not_before_s = partition, due.at, due.not_before_s
            if request in self._fed_by and put.admission is Admission.ID:
                self._expanded.append(put)
            if self._session.adopted and put.admission is Admission.SEEN:
                put.known_as = scrapy_redis.fingerprint(request)
            if not self._session.worker.put(put):
                return False
            self._stats.inc_value(stats.ENQUEUED)
            self._stats.inc_value(stats.SCRAPY_ENQUEUED)
        if fingerprint is not None:
            self._admissions.remember(fingerprint)
        return True

    def _put_dead(self, request: Request, parent_id: bytes | None, payload: bytes, reason: str) -> bool:
        """Store a request that cannot be served as a dead letter: there its maker finds it, and why."""
        # Not under its fingerprint: one to the same page that is right must not be a duplicate of it.
        admitted = self._admissions.unfiltered(request, parent_id, payload, self._followed(request))
        put = _put_of(request, admitted, payload, parent_id)
        put.reason = reason
        self._stats.inc_value(stats.BURIED)
        self._warn_dead(str(request), reason)
        return self._session.worker.put(put)

    def _warn_dead(self, what: str, reason: str) -> None:
        if not self._warned_dead or self._session.debug:
            self._warned_dead = True
            more = "" if self._session.debug else ". No more of these are shown (SCHEDULER_DEBUG shows all)"
            logger.warning("%s becomes a dead letter: %s%s", what, reason, more)

    def _followed(self, request: Request) -> bool:
        return self._session.settlement.followed(request)

    def _count_duplicate(self, request: Request) -> None:
        self._stats.inc_value(stats.DUPLICATES)
        self._session.log_duplicate(request, self._spider)

    def _warn_unencodable(self, request: Request, error: CannotEncode) -> None:
        self._stats.inc_value(stats.UNENCODABLE)
        if not self._warned_unencodable or self._session.debug:
            self._warned_unencodable = True
            more = "" if self._session.debug else "No more of these are shown (SCHEDULER_DEBUG shows all). "
            logger.warning(
                "%s cannot be stored (%s): it stays in this worker and is not shared. %s%s counts them",
                request,
                error,
                more,
                stats.UNENCODABLE,
            )

    def _keep_local(self, request: Request, due: Due) -> None:
        for key in DUE_KEYS:
            request.meta.pop(key, None)  # as of what is stored: a retry of it is due at once
        if request.meta.get("is_start_request"):
            request.meta["dq_seeded"] = True
            parents: set[bytes] = set()
        else:
            parents = self._possible_parents(request)
        self._push_local(request, parents, due)

    def _push_local(self, request: Request, parents: set[bytes], due: Due = AT_ONCE) -> None:
        if request in self._local or request in self._leases:
            # A callback yielded its own request again: the engine's set holds one object only once.
            request = request.copy()
        # Nobody else's clock is at hand: a local request goes by that of this host.
        due_at = max(due.at, time.monotonic() + due.not_before_s - time.time() if due.not_before_s else 0.0)
        self._local.push(request, parents, due_at)
        if due_at:
            asyncio.get_running_loop().call_later(due_at - time.monotonic(), self._session.leases_arrived)
        self._stats.inc_value(stats.ENQUEUED_LOCAL)
        self._stats.inc_value(stats.SCRAPY_ENQUEUED)

    def _possible_parents(self, request: Request) -> set[bytes]:
        parent = self._session.settlement.parent_of(request)
        if parent is None and request in self._fed_by:
            return {self._fed_by[request]}
        if parent is not None and parent in self._leases:
            return {self._leases[parent]}
        if parent is not None and parent in self._local:
            return set(self._local.parents(parent))
        return {*self._leases.values(), *self._waiting}

    # Serving and settling.

    def _decode(self, lease: Lease) -> Request | None:
        try:
            request = self._session.codec.decode(lease.payload)
        except CannotDecode as error:
            logger.warning("A stored request cannot be read and becomes a dead letter: %s", error)
            self._session.worker.bury(lease.entry_id, str(error))
            return None
        self._leases[request] = lease.entry_id
        if lease.send_at is not None and not self._tells_sent:
            self._tells_sent = True
            self._crawler.signals.connect(self._sent_out, signals.request_reached_downloader)
        return request

    def _expand(self, lease: Lease) -> None:
        """Put the requests that were fed with *lease*, which ends with that."""
        try:
            requests = self._fed.requests(lease.payload)
        except NoRequest as error:
            self._warn_dead(f"What was fed ({_excerpt(lease.payload)})", str(error))
            self._session.worker.bury(lease.entry_id, str(error))
            return
        assert self._crawler.engine is not None
        self._expanded.clear()
        for request in requests:
            self._fed_by[request] = lease.entry_id
            self._crawler.engine.crawl(request)
        if not self._local.holds(lease.entry_id):
            # The lease ends with the exchange that stores them, and so cannot bring them again.
            for put in self._expanded:
                put.once = True
        self._stats.inc_value(stats.FED)
        self._end(lease.entry_id, _Ending(Outcome.DONE, "", ""))

    def _sent_out(self, request: Request) -> None:
        entry_id = self._leases.get(request)
        if entry_id is not None:
            self._session.worker.sent(entry_id)

    def downloaded(self, request: Request) -> None:
        """Settlement's call: *request* has left the downloader."""
        entry_id = self._leases.get(request)
        if entry_id is not None:
            self._session.worker.downloaded(entry_id)

    def settled(self, request: Request, outcome: Outcome, reason: str) -> None:
        """Settlement's call: *request* has left the engine."""
        if request in self._local:
            if outcome is Outcome.INTERRUPTED:
                return  # the spider is closing: close() releases its parents, which yield it anew
            if outcome is Outcome.FAILED:
                self._stats.inc_value(stats.FAILED)
            for free in self._local.done(request):
                if free in self._waiting:
                    self._settle(free, self._waiting.pop(free))
            return
        entry_id = self._leases.pop(request, None)
        if entry_id is None:
            return
        self._end(entry_id, _Ending(outcome, reason, printable(request.url, 2000)))

    def _end(self, entry_id: bytes, ending: _Ending) -> None:
        if self._local.holds(entry_id) and ending.outcome is not Outcome.INTERRUPTED:
            self._waiting[entry_id] = ending
        else:
            self._settle(entry_id, ending)

    def _settle(self, entry_id: bytes, ending: _Ending) -> None:
        self._admissions.settled(entry_id)
        worker = self._session.worker
        if ending.outcome is Outcome.DONE:
            worker.ack(entry_id)
        elif ending.outcome is Outcome.FAILED:
            worker.fail(entry_id, ending.reason, ending.url)
        else:
            worker.release(entry_id)

    def release_unfinished(self) -> None:
        """The grace of a shutdown is over: give back every lease that is still at work."""
        # They stay in _leases: what their callbacks still yield has a parent, and is not doubled.
        for entry_id in (*self._leases.values(), *self._waiting):
            self._session.worker.release(entry_id)
        self._waiting.clear()

    def forget_sent(self) -> None:
        """Some of what this worker has sent was never stored: let the frontier decide what is known."""
        self._admissions.forget_sent()

    def put_dropped(self, put: Put) -> None:
        """The frontier knew *put* already."""
        request = put.source
        if request is None:  # it waited in a long outbox
            try:
                request = self._session.codec.decode(put.payload)
            except CannotDecode:
                self._stats.inc_value(stats.DUPLICATES)
                return
        if put.admission is Admission.SEED:
            self._stats.inc_value(stats.SEEDS_KNOWN)
            logger.debug("Start request admitted already in this run: %s", request)
        else:
            self._count_duplicate(request)
        self._crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self._spider)


def _put_of(request: Request, admitted: Admitted, payload: bytes, parent_id: bytes | None) -> Put:
    start = bool(request.meta.get("is_start_request"))
    priority = int(index(request.priority))
    return Put(*admitted, priority, start, payload, parent_id, request)


class _Ending(NamedTuple):
    """How the work on a lease ended."""

    outcome: Outcome
    reason: str
    url: str


def _excerpt(payload: bytes) -> str:
    """Return the beginning of what was fed, for a log: a stranger's bytes, which may be long."""
    return repr(payload[1:81])[1:] + ("…" if len(payload) > 81 else "")
