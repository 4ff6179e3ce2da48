"""Moves a scrapy-redis crawl into the frontier: first what it had seen, then what it had left to do.

The order is what makes a kill harmless. A worker that starts between the two misses requests, which the next
adoption brings; the other way round it would crawl again what scrapy-redis had finished. An adopted request
itself is not looked up among what scrapy-redis had seen: there it stands, as seen, since it was queued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from scrapy_dq.adoption.reader import Reader
from scrapy_dq.adoption.source import Found, Source
from scrapy_dq.frontier.admin.liveness import find_alive
from scrapy_dq.frontier.admin.producer import Producer
from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import FrontierRefused, Put
from scrapy_dq.scrapy_redis import FINGERPRINT_BYTES

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
            connect, ttl_s, rollback_horizon_s: see `Producer`.
            max_bytes: of one entry (DQ_MAX_ENTRY_BYTES).
        """
        self.tally = Tally()
        self._frontier = frontier
        self._source = source
        self._progress = progress
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._dead: set[str] = set()
        self._visitor = Producer(
            frontier, crawl, connect=connect, ttl_s=ttl_s, rollback_horizon_s=rollback_horizon_s,
            dropped=self._known,
        )  # fmt: skip

    @property
    def disturbed(self) -> bool:
        """See `Producer.disturbed`."""
        return self._visitor.disturbed

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a member of the crawl, so that the run is not taken for finished meanwhile; leave it open.

        Raises:
            FrontierError: a worker lives, or the run is over; nothing was changed.
        """
        await self._refuse_live_workers()
        async with self._visitor.joined():
            yield

    async def adopt_fingerprints(self, found: Found) -> None:
        """Copy a dupefilter; from then on, workers that join check against it.

        Raises:
            FrontierRefused: a worker has come too early to know of it.
        """
        self._progress.begin("fingerprints", found.size)
        number, visitor = 0, self._visitor
        async for members in self._source.fingerprints(found.key):
            number += 1
            self.tally.fingerprints += len(members)
            plain = [fingerprint for fingerprint in map(_unhex, members) if fingerprint]
            self.tally.no_fingerprints += len(members) - len(plain)
            adopt = partial(
                self._frontier.adopt, visitor.epoch, visitor.run, visitor.worker_id, number, plain
            )
            new, intact = await visitor.patiently(adopt)
            visitor.disturbed = visitor.disturbed or not intact
            self.tally.new_fingerprints += new
            self._progress.advance(len(members))
            if number == 1:
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
        unique = queue.type == "zset"
        async for members in self._source.members(queue, tail_first, backwards=newest_first):
            for member in members:
                put = reader.put_of(member, unique)
                self.tally.requests += 1
                if put.reason:
                    self.tally.dead += 1
                    self.tally.cut += len(member) > self._max_bytes
                    self.tally.count_reason(put.reason, 1)
                await self._visitor.put(put)
            self._progress.advance(len(members))
        await self._visitor.hand_in()

    async def _refuse_live_workers(self) -> None:
        own = self._visitor.worker_id
        others = self._dead | {own}
        alive = await self._visitor.patiently(
            lambda: find_alive(self._frontier, self._ttl_s, "adopt", others)
        )
        if alive:
            raise FrontierRefused(
                f"worker {alive} of crawl {self._frontier.crawl!r} is alive, and would not know what "
                f"scrapy-redis has seen: stop it first"
            )
        self._dead = others - {own}

    def _known(self, put: Put) -> None:
        self.tally.known += 1
        if put.reason:
            self.tally.dead -= 1
            self.tally.dead_before += 1


def _unhex(member: bytes) -> bytes | None:
    try:
        fingerprint = bytes.fromhex(member.decode("ascii"))
    except ValueError:
        return None
    return fingerprint if len(fingerprint) == FINGERPRINT_BYTES else None
