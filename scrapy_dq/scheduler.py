"""Scrapy's scheduler contract -> worker calls. Decides nothing about stored state; never waits."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter, OrderedDict
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import build_from_crawler

from scrapy_dq import stats
from scrapy_dq.codec import CannotDecode, CannotEncode
from scrapy_dq.due import AT_ONCE, DUE_KEYS, BadDue, Due, due_of, without_due
from scrapy_dq.dupefilter import DupeFilter
from scrapy_dq.frontier.model import ENTRY_ID_BYTES, Admission, Lease, Put
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
        assert crawler.request_fingerprinter is not None
        self._crawler = crawler
        self._stats = crawler.stats
        self._fingerprint = crawler.request_fingerprinter.fingerprint
        self._opened = False
        self._local = LocalQueue()
        self._leases: dict[Request, bytes] = {}
        self._waiting: dict[bytes, _Ending] = {}  # done, but a local request may be their child
        self._sent: OrderedDict[bytes, None] = OrderedDict()
        self._seeds: Counter[int] = Counter()
        self._children: dict[bytes, Counter[bytes]] = {}
        self._ids = _entry_ids()
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
        return len(self._local) > 0 or self._session.worker.pending

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
        while request is None:
            lease = self._session.worker.take()
            if lease is None:
                return None
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
        parent_id = self._leases.get(parent) if parent is not None else None
        if self._session.filtered(request):
            self._count_duplicate(request)
            return False
        fingerprint = self._shared_fingerprint(request)
        if fingerprint in self._sent:
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
            admitted = self._admission(request, fingerprint, parent_id, payload)
            put = _put_of(request, admitted, payload, parent_id)
            put.partition, put.due_at, put.not_before_s = partition, due.at, due.not_before_s
            if not self._session.worker.put(put):
                return False
            self._stats.inc_value(stats.ENQUEUED)
            self._stats.inc_value(stats.SCRAPY_ENQUEUED)
        if fingerprint is not None:
            self._remember(fingerprint)
        return True

    def _put_dead(self, request: Request, parent_id: bytes | None, payload: bytes, reason: str) -> bool:
        """Store a request that cannot be served as a dead letter: there its maker finds it, and why."""
        # Not under its fingerprint: one to the same page that is right must not be a duplicate of it.
        seed = self._seed_token(request)
        if seed is not None:
            admitted = next(self._ids), Admission.SEED, seed
        else:
            entry_id = next(self._ids) if parent_id is None else self._child_id(request, parent_id, payload)
            admitted = entry_id, Admission.ID, entry_id
        put = _put_of(request, admitted, payload, parent_id)
        put.reason = reason
        self._stats.inc_value(stats.BURIED)
        if not self._warned_dead or self._session.debug:
            self._warned_dead = True
            more = "" if self._session.debug else ". No more of these are shown (SCHEDULER_DEBUG shows all)"
            logger.warning("%s becomes a dead letter: %s%s", request, reason, more)
        return self._session.worker.put(put)

    def _shared_fingerprint(self, request: Request) -> bytes | None:
        """Return what `seen` goes by; None for a request that is not filtered by the frontier."""
        shared = self._session.shares_seen and not request.dont_filter
        return self._fingerprint(request) if shared else None

    def _admission(
        self, request: Request, fingerprint: bytes | None, parent_id: bytes | None, payload: bytes
    ) -> tuple[bytes, Admission, bytes]:
        """Return entry id, and what makes the put new."""
        if fingerprint is not None:
            return next(self._ids), Admission.SEEN, fingerprint
        seed = self._seed_token(request)
        if seed is not None:
            return next(self._ids), Admission.SEED, seed
        if not request.dont_filter:
            parent_id = None  # somebody else's DUPEFILTER_CLASS let it pass
        entry_id = next(self._ids) if parent_id is None else self._child_id(request, parent_id, payload)
        return entry_id, Admission.ID, entry_id

    def _seed_token(self, request: Request) -> bytes | None:
        """Return what makes a start request the same on all workers; None: there is no such thing."""
        meta = request.meta
        seeding = meta.get("is_start_request") and not meta.get("dq_seeded")
        if not (request.dont_filter and seeding and self._config.seed_once):
            return None
        fingerprint = self._fingerprint(request)
        key = int.from_bytes(fingerprint[:8], "big")  # half the memory; there may be millions
        self._seeds[key] += 1
        return fingerprint + self._seeds[key].to_bytes(4, "big")

    def _child_id(self, request: Request, parent_id: bytes, payload: bytes) -> bytes:
        """Return the id that this child has again when its parent runs again; the second one is dropped.

        Two children are the same only if all of them is: a callback may yield them in another order. A
        redirect or retry is its parent's only one, and carries the latency of this very download.
        """
        followed = self._session.settlement.followed(request)
        child = self._fingerprint(request) if followed else payload
        name = blake2b(parent_id + child, digest_size=ENTRY_ID_BYTES).digest()
        siblings = self._children.setdefault(parent_id, Counter())
        siblings[name] += 1
        ordinal = siblings[name].to_bytes(4, "big")
        return blake2b(name + ordinal, digest_size=ENTRY_ID_BYTES).digest()

    def _remember(self, fingerprint: bytes) -> None:
        self._sent[fingerprint] = None
        if len(self._sent) > self._config.local_seen:
            self._sent.popitem(last=False)

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
        ending = _Ending(outcome, reason, printable(request.url, 2000))
        if self._local.holds(entry_id) and outcome is not Outcome.INTERRUPTED:
            self._waiting[entry_id] = ending
        else:
            self._settle(entry_id, ending)

    def _settle(self, entry_id: bytes, ending: _Ending) -> None:
        self._children.pop(entry_id, None)
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
        self._sent.clear()

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


def _put_of(
    request: Request, admitted: tuple[bytes, Admission, bytes], payload: bytes, parent_id: bytes | None
) -> Put:
    start = bool(request.meta.get("is_start_request"))
    priority = int(index(request.priority))
    return Put(*admitted, priority, start, payload, parent_id, request)


class _Ending(NamedTuple):
    """How the work on a lease ended."""

    outcome: Outcome
    reason: str
    url: str


def _entry_ids() -> Any:
    """Yield ids that no worker makes twice: 8 random bytes of this process, 4 of a counter."""
    while True:
        prefix = os.urandom(8)
        for number in range(2**32):
            yield prefix + number.to_bytes(4, "big")
