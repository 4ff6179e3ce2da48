"""Moves a crawl of another scheduler into the frontier: first its dupefilter, then its queue.

This order makes a kill harmless. A worker that starts between the two steps lacks requests, and the next
adoption adds them. In the other order, the worker would crawl finished pages again. Adopted requests are not
checked against the adopted fingerprints, because the other scheduler recorded each request as seen when it
queued it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from scrapy_dq.adoption.jobdir import JobDir
from scrapy_dq.adoption.reader import Reader
from scrapy_dq.adoption.source import Source
from scrapy_dq.frontier.admin.liveness import require_no_live_worker
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.moves import Put
from scrapy_dq.pushing.producer import Producer


class Progress(Protocol):
    """Shows the progress of an adoption."""

    def begin(self, label: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


@dataclass
class AdoptionCounts:
    """Results of an adoption, in numbers."""

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
    """Members of the dupefilter that are not fingerprints of scrapy-redis 0.9 or Scrapy."""

    @property
    def has_dead(self) -> bool:
        """Whether some requests are dead letters. To repair these, the user needs the source."""
        return bool(self.dead or self.dead_before)

    @property
    def adopted(self) -> int:
        return self.requests - self.known - self.dead

    def add(self, put: Put) -> None:
        self.requests += 1
        if put.reason:
            self.dead += 1
            self.reasons[put.reason] += 1

    def add_known(self, put: Put) -> None:
        self.known += 1
        if put.reason:
            self.dead -= 1
            self.dead_before += 1


@dataclass
class Adopter:
    """One adoption; a repetition stores only missing requests and fingerprints."""

    producer: Producer
    """Its `dropped` must be `counts.add_known`."""
    source: Source | JobDir
    reader: Reader
    progress: Progress
    counts: AdoptionCounts
    ttl_s: float
    """DQ_WORKER_TTL."""
    _dead: dict[str, int | None] = field(default_factory=dict)

    async def adopt(self, newest_first: bool) -> None:
        """Adopt everything as a member of the crawl, so that the run cannot finish before the end.

        Args:
            newest_first: whether this crawl serves the newest of requests with equal priority first.
        Raises:
            FrontierError: a worker is alive, or the run is over; nothing was changed.
            FrontierRefused: a worker joined before the fingerprints were stored, and does not check them.
        """
        await self._refuse_live_workers()
        async with self.producer.joined():
            await self._adopt_fingerprints()
            await self._adopt_requests(newest_first)

    async def _adopt_fingerprints(self) -> None:
        """Copy the dupefilter; workers that join after the first batch check it."""
        self.progress.begin("fingerprints", self.source.dupefilter.size)
        number, producer, native = 0, self.producer, isinstance(self.source, JobDir)
        async for plain, others in self.source.fingerprints():
            number += 1
            self.counts.fingerprints += len(plain) + others
            self.counts.invalid_fingerprints += others
            # Each shard gets all fingerprints: the partition decides the shard, and a fingerprint has none.
            for frontier, worker_id in producer.members:
                call = producer.epoch, producer.run, worker_id, number, plain
                new, intact = await producer.with_retries(partial(frontier.adopt, *call, native=native))
                producer.disturbed = producer.disturbed or not intact
            self.counts.new_fingerprints += new
            self.progress.advance(len(plain) + others)
            if number == 1:
                await self._refuse_live_workers()

    async def _adopt_requests(self, newest_first: bool) -> None:
        """Put every request of the queue. The new crawl serves them in the old scheduler's order."""
        self.progress.begin("requests", self.source.queue.size)
        async for members in self.source.members(backwards=newest_first):
            for member in members:
                put = self.reader.put_of(member)
                self.counts.add(put)
                await self.producer.put(put)
            self.progress.advance(len(members))
        await self.producer.hand_in()

    async def _refuse_live_workers(self) -> None:
        home, own_id = self.producer.members[HOME]
        self._dead[own_id] = None
        refused = ", and would crawl seen pages again: stop it first"
        await self.producer.with_retries(
            lambda: require_no_live_worker(home, self.ttl_s, "adopt", refused, self._dead)
        )
