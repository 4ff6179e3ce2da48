"""Moves a crawl of another scheduler into the frontier: first its dupefilter, then its queue.

This order makes a kill harmless. A worker that starts between the two steps lacks requests, which the next
adoption adds; in the other order it would crawl again what was finished. Adopted requests are not checked
against the adopted fingerprints: each was recorded as seen when it was queued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from scrapy_dq.adoption.jobdir import JobDir
from scrapy_dq.adoption.reader import Reader
from scrapy_dq.adoption.source import Found, Source
from scrapy_dq.frontier.admin.liveness import need_nobody
from scrapy_dq.frontier.admin.producer import Producer
from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.options import WorkerOptions


class Progress(Protocol):
    """Shows the progress of an adoption."""

    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


@dataclass
class AdoptionCounts:
    """What became of everything that was read."""

    requests: int = 0
    known: int = 0
    """Requests, readable or not, that the frontier already had."""
    dead: int = 0
    """New dead letters."""
    dead_before: int = 0
    """Dead letters that an earlier adoption left; they are also counted in `known`."""
    reasons: Counter[str] = field(default_factory=Counter)
    fingerprints: int = 0
    new_fingerprints: int = 0
    invalid_fingerprints: int = 0
    """Members of the dupefilter that scrapy-redis 0.9 would not have written."""

    @property
    def has_dead(self) -> bool:
        """Whether some could not be read: repairing them needs the source."""
        return bool(self.dead or self.dead_before)

    @property
    def adopted(self) -> int:
        return self.requests - self.known - self.dead


class Adopter:
    """One adoption; repeating it stores only what is missing."""

    def __init__(
        self,
        frontiers: Sequence[Frontier],
        crawl: Identity,
        source: Source | JobDir,
        progress: Progress,
        *,
        connect: Callable[[int], Any],
        options: WorkerOptions,
    ) -> None:
        """
        Args:
            frontiers, connect, options: see `Producer`.
        """
        self.counts = AdoptionCounts()
        self._frontier = frontiers[HOME]
        self._source = source
        self._progress = progress
        self._ttl_s = options.ttl_s
        self._dead: dict[str, int | None] = {}
        self.producer = Producer(frontiers, crawl, options, connect=connect, dropped=self._count_known)

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a member of the crawl, so that the run does not finish meanwhile; leave it open.

        Raises:
            FrontierError: a worker is alive, or the run is over; nothing was changed.
        """
        await self._refuse_live_workers()
        async with self.producer.joined():
            yield

    async def adopt_fingerprints(self, found: Found, *, scrapys: bool) -> None:
        """Copy a dupefilter; from then on, workers that join check against it.

        Args:
            scrapys: see `Frontier.adopt`.
        Raises:
            FrontierRefused: a worker joined before the fingerprints were stored, and does not check against
                them.
        """
        self._progress.begin("fingerprints", found.size)
        number, producer = 0, self.producer
        async for plain, others in self._source.fingerprints(found.key):
            number += 1
            self.counts.fingerprints += len(plain) + others
            self.counts.invalid_fingerprints += others
            # In each shard: of its partition, which decides, a fingerprint tells nothing.
            for frontier, worker_id in producer.members:
                call = producer.epoch, producer.run, worker_id, number, plain
                adopt = partial(frontier.adopt, *call, scrapys=scrapys)
                new, intact = await producer.patiently(adopt)
                producer.disturbed = producer.disturbed or not intact
            self.counts.new_fingerprints += new
            self._progress.advance(len(plain) + others)
            if number == 1:
                await self._refuse_live_workers()

    async def adopt_requests(
        self, queue: Found, reader: Reader, *, tail_first: bool, newest_first: bool
    ) -> None:
        """Put every request of a queue, to be served in the order that its scheduler would have used.

        Args:
            tail_first: the queue is a LIST that scrapy-redis serves from its tail.
            newest_first: the order of this crawl serves the newest of equal requests first.
        """
        self._progress.begin("requests", queue.size)
        unique = queue.type == "zset"
        async for members in self._source.members(queue, tail_first, backwards=newest_first):
            for member in members:
                put = reader.put_of(member, unique)
                self.counts.requests += 1
                if put.reason:
                    self.counts.dead += 1
                    self.counts.reasons[put.reason] += 1
                await self.producer.put(put)
            self._progress.advance(len(members))
        await self.producer.hand_in()

    async def _refuse_live_workers(self) -> None:
        _, own = self.producer.members[HOME]
        others = self._dead | {own: None}
        refused = ", and would crawl again what was seen: stop it first"
        await self.producer.patiently(
            lambda: need_nobody(self._frontier, self._ttl_s, "adopt", refused, others)
        )
        del others[own]
        self._dead = others

    def _count_known(self, put: Put) -> None:
        self.counts.known += 1
        if put.reason:
            self.counts.dead -= 1
            self.counts.dead_before += 1
