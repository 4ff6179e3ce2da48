"""Writes items to lists and streams in Redis: in batches, in order, through outages; nothing blocks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from scrapy_dq.backend.cluster import tag_of
from scrapy_dq.backend.connection import Connection
from scrapy_dq.frontier.errors import describe, explain, passes
from scrapy_dq.frontier.worker.outage import Outage
from scrapy_dq.items.replay_log import MARK_PREFIX, ItemLog

logger = logging.getLogger(__name__)
T = TypeVar("T")
LINGER_S = 0.01
MAX_ITEMS, MAX_BYTES = 500, 1_048_576
"""Limits of a batch, which bound how long it blocks Redis. A single item may be larger."""
MOST_TRIES = 5
"""Of an item larger than a batch. Redis closes the connection at one of 512 MB, and a slow line needs longer
for it than a reply may take: all later items would wait for it."""
LOOK_S = 0.2
CHECK_S = 1.0
"""Seconds between two checks whether Redis was rolled back, while there are no new items."""
# One command for each key, so that each key's part of a batch is stored as a whole or not at all. Not MULTI:
# a user that may run scripts need not be granted transactions.
_ADD_TO_STREAM = "for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'item', ARGV[i]) end"


class ItemNotStored(RuntimeError):
    """An item is probably not in Redis: it was not confirmed."""


@dataclass(eq=False)
class _Waiting:
    """An item to be stored, and the future that its page awaits."""

    key: str | bytes
    item: bytes
    stored: asyncio.Future[None]


class ItemWriter:
    """One coroutine that stores all waiting items in one trip.

    An item is stored at least once. If a reply is lost, its batch is written again, and may be stored twice.
    Numbering batches in Redis would prevent only that: an item is also stored twice if its page is crawled
    again after a crash, so a consumer that needs each item once has to identify items anyway. What a rollback
    of Redis has lost is written again, too (replay_log.py), because its page may be done.

    Args:
        kind: list or stream.
        closing: returns whether the spider is closing.
        grace_s: how many seconds, from then on, the writer still waits for the end of an outage.
        horizon_s: by how many seconds Redis may be rolled back.
        given_up: called before items fail because *grace_s* is over; returns what happens to their pages.
        counted: called with the numbers of items that were stored and that failed.
    """

    def __init__(
        self,
        connection: Connection,
        kind: str,
        *,
        closing: Callable[[], bool],
        grace_s: float,
        horizon_s: float,
        given_up: Callable[[], str],
        counted: Callable[[int, int], None],
    ) -> None:
        self._connection = connection
        self._kind = kind
        self._closing = closing
        self._grace_s = grace_s
        self._given_up = given_up
        self._counted = counted
        self._client: Any = None
        self._tries = 0
        """How often the batch at hand was sent in vain while Redis answered otherwise."""
        self._waiting: deque[_Waiting] = deque()
        self._in_hand: list[_Waiting] = []
        """The batch that is being written; no page waits for those items that Redis had before."""
        self._log = ItemLog(horizon_s)
        self._tag = ""
        self._ended: asyncio.Future[None] | None = None
        self._outage = Outage("Items wait, and with them their requests, until Redis serves again", "items")
        self._closing_since: float | None = None
        self._refused: set[str | bytes] = set()
        self._kick = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def _need_one_slot(self, key: str | bytes) -> None:
        # A pipeline goes to one node; the mark has to be there, too.
        try:
            tag = tag_of(key)
        except ValueError as error:
            raise ItemNotStored(str(error)) from None
        if not self._tag:
            self._tag = tag
            self._log.place(tag)
        elif tag != self._tag:
            raise ItemNotStored(
                f"in a Redis Cluster, the keys of all items need one hash tag, for example "
                f"'{self._tag}:items': {key!a} is in another slot"
            )

    async def write(self, key: str | bytes, item: bytes) -> None:
        """Store *item* under *key*, after all that were given before it.

        Raises:
            ItemNotStored: Redis refuses it, or is unavailable until the end of the crawl; or its key is in
                another slot of a Redis Cluster than those before.
        """
        if self._connection.in_cluster:
            self._need_one_slot(key)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_on(), name="scrapy-dq items")
        waiting = _Waiting(key, item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._kick.set()
        await waiting.stored

    async def close(self) -> None:
        """Stop writing, after a last check for a rollback. Call it when no page waits for an item."""
        if self._writing is not None:
            if self._log or self._waiting or self._in_hand:
                self._closing_since = self._closing_since or time.monotonic()
                self._ended = asyncio.get_running_loop().create_future()
                self._kick.set()
                await asyncio.wait([self._ended, self._writing], return_when=asyncio.FIRST_COMPLETED)
            self._writing.cancel()
            await asyncio.wait([self._writing])
            await self._remove_mark()
        await self._connection.close()

    async def _write_on(self) -> None:
        while True:
            self._kick.clear()
            if not self._waiting and not self._ended:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._kick.wait(), CHECK_S if self._log else None)
            if 0 < len(self._waiting) < MAX_ITEMS:
                await asyncio.sleep(LINGER_S)
            batch = self._in_hand = self._next_batch()
            try:
                await self._store(batch)
            except Exception as error:
                # Never end silently: without this coroutine every page with an item would hang forever.
                logger.exception("Unexpected error while %d items were stored", len(batch))
                self._fail(batch, f"unexpected {type(error).__name__}: {error}")
            self._in_hand = []
            if self._ended and not self._waiting:
                self._ended.set_result(None)
                return

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < MAX_ITEMS:
            size += len(self._waiting[0].item)
            if batch and size > MAX_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _store(self, batch: list[_Waiting]) -> None:
        began, kept = time.monotonic(), 0
        self._tries = 0
        while True:
            try:
                batch, error = await self._unless_late(self._send(batch), began)
            except _TooLate:
                self._give_up(batch)
                return
            if error is None:
                self._outage.ended(kept)
                return
            if batch or self._waiting:  # else it was only a check for a rollback
                self._outage.began(ItemNotStored(explain(error)))
            if self._client is not None:
                self._connection.note_no_answer()
            try:
                await self._unless_late(asyncio.sleep(self._outage.delay_s()), began)
            except _TooLate:
                self._give_up(batch)
                return
            kept = len(batch) + len(self._waiting)

    async def _send(self, batch: list[_Waiting]) -> tuple[list[_Waiting], Exception | None]:
        """Make one attempt; return the items to be sent again, and the error."""
        by_key: dict[str | bytes, list[_Waiting]] = {}
        for waiting in batch:
            by_key.setdefault(waiting.key, []).append(waiting)
        sending = False
        try:
            if self._client is None:
                self._client = await self._connection.connect()
            if sum(len(waiting.item) for waiting in batch) > MAX_BYTES:
                await self._ping()
                sending = True
            pipe = self._client.pipeline(transaction=False)
            for key, parts in by_key.items():
                self._add(pipe, key, [waiting.item for waiting in parts])
            if not self._log.off:
                self._log.begin(pipe)
            replies = await pipe.execute(raise_on_error=False)
        except Exception as error:
            if passes(error):
                self._tries += sending
                if self._tries < MOST_TRIES:
                    return batch, error
                self._refuse_large(batch, error)
                return [], None
            replies = [error] * len(by_key)
        left: list[_Waiting] = []
        outage = None
        for (key, parts), reply in zip(by_key.items(), replies, strict=False):
            if not isinstance(reply, Exception):
                self._confirm(parts)
            elif passes(reply):
                left, outage = left + parts, reply
            else:
                self._refuse(key, parts, reply)
        if len(replies) > len(by_key):
            outage = self._marked(replies[-1]) or outage
        return left, outage

    async def _ping(self) -> None:
        try:
            await self._client.ping()
        except Exception as error:  # a user without the right to it gets an answer, too
            if passes(error):
                raise

    def _marked(self, reply: Any) -> Exception | None:
        """Process the mark that a trip has found; return the error if the trip has to be repeated."""
        if not isinstance(reply, Exception):
            if forgotten := self._log.found(int(reply)):
                logger.warning(
                    "Redis was rolled back: %d items that it had are written again",
                    len(forgotten),
                )
                done = asyncio.get_running_loop().create_future()
                done.set_result(None)
                self._waiting.extendleft(_Waiting(key, item, done) for key, item in reversed(forgotten))
        elif passes(reply):
            return reply
        else:
            self._log.off = True
            logger.warning(
                "Redis refuses to store a mark for the newest items (%s): if it is rolled back, items of the "
                "last seconds may be missing. The user in REDIS_URL needs EVAL, GET and SET for %s*",
                describe(reply),
                MARK_PREFIX,
            )
        return None

    async def _remove_mark(self) -> None:
        if self._client is not None and not self._log.off:
            with suppress(Exception):  # it expires
                await asyncio.wait_for(self._log.remove(self._client), self._connection.timeout_s)

    def _add(self, pipe: Any, key: str | bytes, items: list[bytes]) -> None:
        if self._kind == "stream":
            pipe.eval(_ADD_TO_STREAM, 1, key, *items)
        else:
            pipe.rpush(key, *items)

    async def _unless_late(self, work: Coroutine[Any, Any, T], began: float) -> T:
        """Await *work*, unless the spider closes meanwhile and its grace ends.

        Raises:
            _TooLate: it has ended; each batch gets at least the time of one trip.
        """
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([working], timeout=LOOK_S))[0]:
                now = time.monotonic()
                if self._closing_since is None and self._closing():
                    self._closing_since = now
                over = self._closing_since is not None and now >= self._closing_since + self._grace_s
                if over and now >= began + self._connection.timeout_s:
                    raise _TooLate
            return working.result()
        finally:
            working.cancel()

    def _give_up(self, batch: list[_Waiting]) -> None:
        lost = [waiting for waiting in (*batch, *self._waiting) if not waiting.stored.done()]
        doubtful = len(batch) + len(self._waiting) - len(lost) + len(self._log)
        self._waiting.clear()
        if doubtful:
            logger.warning(
                "Redis was unavailable until DQ_SHUTDOWN_GRACE was over: if it is rolled back, up to %d "
                "items that it had confirmed may be missing",
                doubtful,
            )
        if lost:
            logger.error(
                "Redis was unavailable until DQ_SHUTDOWN_GRACE was over: %d items are not stored. %s",
                len(lost),
                self._given_up(),
            )
            self._fail(lost, "Redis was unavailable until the end of the crawl")

    def _refuse(self, key: str | bytes, parts: list[_Waiting], error: Exception) -> None:
        shown = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
        why = f"Redis refuses items for the key {shown!r} ({describe(error)})"
        if key not in self._refused:
            self._refused.add(key)
            logger.error(
                "%s. They are lost to this crawl. The key has to be a %s, or not exist, and the user in "
                "REDIS_URL has to be allowed to write to it; REDIS_ITEMS_KEY names another key",
                why,
                self._kind,
            )
        self._fail(parts, why)

    def _refuse_large(self, batch: list[_Waiting], error: Exception) -> None:
        size = sum(len(waiting.item) for waiting in batch)
        why = f"an item of {size:,} bytes was sent {MOST_TRIES} times in vain ({describe(error)})"
        logger.error(
            "%s: it is not stored. Redis takes none of 512 MB, or the line is too slow for it within "
            "socket_timeout in REDIS_PARAMS",
            why,
        )
        self._fail(batch, why)

    def _confirm(self, parts: Iterable[_Waiting]) -> None:
        done = [waiting for waiting in parts if not waiting.stored.done()]
        for waiting in done:
            waiting.stored.set_result(None)
        for waiting in parts:
            self._log.add(waiting.key, waiting.item)
        self._counted(len(done), 0)

    def _fail(self, parts: Iterable[_Waiting], why: str) -> None:
        lost = [waiting for waiting in parts if not waiting.stored.done()]
        for waiting in lost:
            waiting.stored.set_exception(ItemNotStored(why))
        self._counted(0, len(lost))


class _TooLate(Exception):
    """The grace of a shutdown is over."""
