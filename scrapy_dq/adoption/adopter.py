"""Moves a scrapy-redis crawl into the frontier: first what it had seen, then what it had left to do.

The order is what makes a kill harmless. A worker that starts between the two misses requests, which the next
adoption brings; the other way round it would crawl again what scrapy-redis had finished. An adopted request
itself is not looked up among what scrapy-redis had seen: there it stands, as seen, since it was queued.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from scrapy_dq.adoption.reader import Reader
from scrapy_dq.adoption.source import Found, Source
from scrapy_dq.frontier.alive import find_alive
from scrapy_dq.frontier.dialogue import Dialogue
from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.heartbeat import Heartbeat
from scrapy_dq.frontier.identity import own_identity
from scrapy_dq.frontier.model import FrontierError, FrontierRefused, FrontierUnavailable, Put, Status, Words
from scrapy_dq.scrapy_redis import FINGERPRINT_BYTES

logger = logging.getLogger(__name__)
T = TypeVar("T")
PATIENCE_S = 60.0
"""How long a Redis that does not answer is waited for."""

MAX_REASONS = 1_000


class Progress(Protocol):
    """Shows how far it is."""

    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


@dataclass
class Tally:
    """What became of everything that was read."""

    requests: int = 0
    known: int = 0
    """Requests, readable or not, that the frontier had already."""
    dead: int = 0
    """Dead letters, new ones."""
    dead_before: int = 0
    """Dead letters that an earlier adoption has left; they are among those that are known."""
    cut: int = 0
    """Of them, those of which a part is kept."""
    reasons: Counter[str] = field(default_factory=Counter)
    fingerprints: int = 0
    new_fingerprints: int = 0
    no_fingerprints: int = 0
    """Members of the dupefilter that scrapy-redis 0.9 would not have written."""

    def count_reason(self, reason: str, by: int) -> None:
        """Count a reason of dead letters; those that come after very many others under one name."""
        known = reason in self.reasons or len(self.reasons) < MAX_REASONS
        self.reasons[reason if known else "other reasons"] += by

    @property
    def has_dead(self) -> bool:
        """Some could not be read: their source is the only place to mend them from."""
        return bool(self.dead or self.dead_before)

    @property
    def adopted(self) -> int:
        return self.requests - self.known - self.dead


class Adopter:
    """One adoption; it may be repeated, and then stores only what is missing."""

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        source: Source,
        progress: Progress,
        *,
        connect: Callable[[], Any],
        ttl_s: float,
        rollback_horizon_s: float,
        max_bytes: int,
    ) -> None:
        """
        Args:
            connect: makes a blocking `redis` client for the heartbeat thread.
            ttl_s: how long a worker may stand still before it counts as dead.
            rollback_horizon_s: requests stored within this time are stored again if Redis comes back older.
            max_bytes: of one entry (DQ_MAX_ENTRY_BYTES).
        """
        self.tally = Tally()
        self._frontier = frontier
        self._source = source
        self._progress = progress
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._dead: set[str] = set()
        self.disturbed = False
        """Redis lost its newest data, or others took this process for dead: some of it may be missing."""
        self._dialogue = Dialogue(frontier, crawl, own_identity(), self, rollback_horizon_s)
        self._heartbeat = Heartbeat(
            frontier, connect, ttl_s=ttl_s, stall_timeout_s=300.0, observed=lambda silent, dead: None
        )

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a member of the crawl, so that the run is not taken for finished meanwhile; leave it open.

        Raises:
            FrontierError: a worker lives, or the run is over; nothing was changed.
        """
        await self._refuse_live_workers()
        joined = await self._patiently(lambda: self._dialogue.join(uuid.uuid4().hex))
        if joined.status is Status.FINISHED:
            raise FrontierRefused(
                "the run that DQ_RUN_NAME names is finished: another DQ_RUN_NAME starts a new run"
            )
        self._heartbeat.start(self._dialogue.id, self._dialogue.epoch)
        try:
            yield
        finally:
            self._heartbeat.stop()
            if not self._dialogue.lost:
                # A member that stays behind is found dead by whoever comes next.
                with suppress(FrontierError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._dialogue.leave(), 5.0)

    async def adopt_fingerprints(self, found: Found) -> None:
        """Copy a dupefilter; from then on, workers that join check against it.

        Raises:
            FrontierRefused: a worker has come too early to know of it.
        """
        self._progress.begin("fingerprints", found.size)
        first = True
        async for members in self._source.fingerprints(found.key):
            self.tally.fingerprints += len(members)
            plain = [fingerprint for fingerprint in map(_unhex, members) if fingerprint]
            self.tally.no_fingerprints += len(members) - len(plain)
            new = await self._patiently(
                partial(self._frontier.adopt, self._dialogue.epoch, self._dialogue.run, plain)
            )
            self.tally.new_fingerprints += new
            self._progress.advance(len(members))
            if first:
                first = False
                await self._refuse_live_workers()

    async def adopt_requests(
        self, queue: Found, reader: Reader, *, tail_first: bool, newest_first: bool
    ) -> None:
        """Put every request of a queue, so that it is served as it would have been there.

        Args:
            tail_first: a LIST that scrapy-redis serves from its tail.
            newest_first: of equal requests, our order serves the last one that was put.
        """
        self._progress.begin("requests", queue.size)
        outbox = self._dialogue.outbox
        unique = queue.type == "zset"
        async for members in self._source.members(queue, tail_first, backwards=newest_first):
            for member in members:
                put = reader.put_of(member, unique)
                self.tally.requests += 1
                if put.reason:
                    self.tally.dead += 1
                    self.tally.cut += len(member) > self._max_bytes
                    self.tally.count_reason(put.reason, 1)
                outbox.append(put)
                if outbox.full:
                    await self._hand_in()
            self._progress.advance(len(members))
        while outbox or self._dialogue.under_way:
            await self._hand_in()

    async def _hand_in(self) -> None:
        worker_id = self._dialogue.id
        await self._patiently(lambda: self._dialogue.speak(0))
        if self._dialogue.lost or self._dialogue.over:
            raise FrontierRefused(
                "the crawl was deleted meanwhile, or another has taken its place: begin again"
            )
        if self._dialogue.id != worker_id:
            self.disturbed = True
            self._heartbeat.start(self._dialogue.id, self._dialogue.epoch)

    async def _refuse_live_workers(self) -> None:
        own = self._dialogue.id
        others = self._dead | {own}
        alive = await self._patiently(lambda: find_alive(self._frontier, self._ttl_s, "adopt", others))
        if alive:
            raise FrontierRefused(
                f"worker {alive} of crawl {self._frontier.crawl!r} is alive, and would not know what "
                f"scrapy-redis has seen: stop it first"
            )
        self._dead = others - {own}

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        told = False
        while True:
            try:
                return await call()
            except FrontierUnavailable as error:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    logger.warning("%s. Trying again for %.0f s", error, PATIENCE_S)
                    told = True
                await asyncio.sleep(0.5)

    # What the dialogue tells (frontier.dialogue.Listener).

    def put_dropped(self, put: Put) -> None:
        self.tally.known += 1
        if put.reason:
            self.tally.dead -= 1
            self.tally.dead_before += 1

    def put_refused(self, put: Put) -> None:
        raise AssertionError("no request is put with a bound")

    def outbox_lost(self, parentless: bool) -> None:
        raise AssertionError("nothing of it is ever on disk")

    def leases_arrived(self) -> None: ...
    def run_finished(self) -> None: ...
    def frontier_lost(self) -> None: ...
    def told(self, before: Words, words: Words) -> None: ...
    def counted(self, what: str, amount: float) -> None: ...


def _unhex(member: bytes) -> bytes | None:
    try:
        fingerprint = bytes.fromhex(member.decode("ascii"))
    except ValueError:
        return None
    return fingerprint if len(fingerprint) == FINGERPRINT_BYTES else None
