"""Finds the shards that a worker cannot reach although other workers reach them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.frontier.moves import Release, Return
from scrapy_dq.frontier.worker.heartbeat import BEATS_PER_TTL
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.sharding.deferred_ends import DeferredEnds
from scrapy_dq.sharding.part import Part

logger = logging.getLogger(__name__)


class Reach:
    """Compares the shards that this worker reaches with the shards that other workers reach.

    If a shard answers no worker, this worker just waits for it. Each worker that waits for a shard reports
    this to the other shards (lua/transitions/report.lua). So a live member that has reported no wait gets
    answers from all shards.

    Args:
        parts: the parts of the worker.
        deferred: the worker's leases whose ends wait for puts in other shards.
        end: ends such a lease; its first argument is the lease's shard.
    """

    def __init__(
        self, parts: Sequence[Part], ttl_s: float, deferred: DeferredEnds,
        end: Callable[[int, Return], None], listener: Listener,
    ) -> None:  # fmt: skip
        self._parts = parts
        self._listener = listener
        self._ttl_s = ttl_s
        self._deferred = deferred
        self._end = end
        self.lost: frozenset[int] = frozenset()
        """The shards that have given this worker no answer for *ttl_s*, while they answer other workers."""
        self._beats: dict[str, int] = {}
        """Heartbeats of the other members at the last check."""
        self._tried_at: dict[int, float] = {}
        """By shard: the time of this worker's last try to reach it, as of the first check that found that
        other workers reach it."""
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Check the shards from time to time, until `end`."""
        self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def try_once(self) -> None:
        """Make one last call to each lost shard before leaving.

        The call is not repeated, because the other shards need the rest of the time.
        """
        lost = [self._parts[shard].membership for shard in self.lost]
        await asyncio.gather(*(each.attempt(each.dialogue.take_census, 0.0) for each in lost))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / BEATS_PER_TTL)
            with suppress(FrontierError):  # the next round looks again
                await self._check()

    async def _check(self) -> None:
        silent = {shard for shard, part in enumerate(self._parts) if self._is_silent(part)}
        reachable = next((part for part in self._parts if not part.outage), None)
        self.lost &= silent
        if self.lost and any(map(_keeps_waiting, self._parts)):
            self._listener.cut_off()
        if not silent - self.lost or reachable is None:
            self._beats, self._tried_at = {}, {}
            return
        others = [each for each in await reachable.frontier.members() if each.worker_id != reachable.id]
        before, self._beats = self._beats, {each.worker_id: each.beat for each in others}
        if not any(
            each.beat > before.get(each.worker_id, each.beat) and not each.waits_for for each in others
        ):
            self._tried_at = {}
            return
        for shard in silent - self.lost:
            # RACE: when an outage ends for all workers, another worker may get an answer before this worker
            # tries again.
            tried_at = _tried_at(self._parts[shard])
            if tried_at > self._tried_at.setdefault(shard, tried_at):
                self._give_up(shard)
                self.lost |= {shard}

    def _is_silent(self, part: Part) -> bool:
        unanswered = part.dialogue.outage.unanswered
        return unanswered is not None and unanswered[1] - unanswered[0] > self._ttl_s

    def _give_up(self, shard: int) -> None:
        given_up = self._deferred.give_up_on(shard)
        logger.warning(
            "Shard %d of crawl %r answers other workers, and has not answered this one for %.0f s. This "
            "worker takes no requests until this shard answers it. It gives back the requests whose links "
            "belong to this shard; %d of them were done, and run again",
            shard, self._parts[shard].frontier.crawl, self._ttl_s, len(given_up),
        )  # fmt: skip
        for own, entry_id in given_up:
            self._end(own, Release(entry_id))


def _tried_at(part: Part) -> float:
    """Return when this worker last tried to reach a shard that is silent."""
    unanswered = part.dialogue.outage.unanswered
    return unanswered[1] if unanswered is not None else 0.0


def _keeps_waiting(part: Part) -> bool:
    """Tell whether this worker, cut off and without new requests, keeps the crawl from ending."""
    protocol = part.protocol
    return protocol.outbox.parentless > 0 or protocol.stays_raised() or part.census.declined > 0
