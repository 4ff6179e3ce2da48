"""Writes items to lists and streams in Redis: in batches, in order, through outages, without blocking."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scrapy_dq.backend.cluster import tag_of
from scrapy_dq.backend.connection import Connection
from scrapy_dq.frontier.errors import describe, explain, is_transient
from scrapy_dq.frontier.worker.outage import Outage
from scrapy_dq.items.replay_log import MARK_PREFIX, ItemLog

logger = logging.getLogger(__name__)
LINGER_S = 0.01
MAX_ITEMS, MAX_BYTES = 500, 1_048_576
"""Limits of a batch, which bound the time for which it blocks Redis. A single item may be larger."""
MAX_TRIES = 5
"""Maximum number of attempts to send an item that is larger than a batch. Redis may refuse it by closing the
connection (from 512 MB), or a slow line may take longer than the timeout. Without a limit, all later items
would wait for this item."""
POLL_S = 0.2
CHECK_S = 1.0
"""Seconds between two checks whether Redis was rolled back, while there are no new items."""
# A batch has one command for each key, so that the items for a key are stored all together or not at all. The
# command is a script, because a user with the right to run scripts may have no right to use MULTI.
_ADD_TO_STREAM = "for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'item', ARGV[i]) end"


class ItemNotStored(RuntimeError):
    """Redis did not confirm the item, so it is probably not stored."""


@dataclass(eq=False)
class _Waiting:
    """An item to be stored, and the future that the item's page awaits."""

    key: str | bytes
    item: bytes
    stored: asyncio.Future[None]


@dataclass(eq=False)
class ItemWriter:
    """Stores waiting items in batches in one coroutine. One trip to Redis stores a batch.

    An item is stored at least once. If a reply is lost, its batch is written again, and may be stored twice.
    Numbered batches would prevent only this case, because an item is also stored twice if its page is crawled
    again after a crash. So a consumer that needs each item once has to identify items in any case. Items that
    a rollback of Redis has lost are also written again (replay_log.py), because their pages may be done.
    """

    connection: Connection
    kind: str
    """list or stream."""
    closing: Callable[[], bool]
    """Returns whether the spider is closing."""
    grace_s: float
    """Seconds for which the writer waits for the end of an outage while the spider closes."""
    horizon_s: float
    """Seconds by which Redis may be rolled back."""
    given_up: Callable[[], str]
    """Called before items fail because the grace is over; returns a sentence about their requests."""
    counted: Callable[[int, int], None]
    """Called with the numbers of items that were stored and that failed."""

    def __post_init__(self) -> None:
        self._client: Any = None
        self._tries = 0
        """Failed attempts to send a large item while Redis answered other commands."""
        self._waiting: deque[_Waiting] = deque()
        self._batch: list[_Waiting] = []
        """The items of the current batch. No page waits for an item that a rollback of Redis had lost."""
        self._log = ItemLog(self.horizon_s)
        self._tag = ""
        self._ending = False
        self._outage = Outage("Items wait, and with them their requests, until Redis serves again", "items")
        self._closing_since: float | None = None
        self._logged: set[tuple[str | bytes, str]] = set()
        """Keys whose items were refused, each with the advice that was logged."""
        self._kick = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def _require_one_slot(self, key: str | bytes) -> None:
        # A pipeline goes to one node, and the mark (replay_log.py) has to be on that node.
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
        """Store *item* under *key*, after all earlier items.

        Raises:
            ItemNotStored: Redis refuses the item, or is unavailable until the end of the crawl; or the key
                is in another slot of a Redis Cluster than earlier keys.
        """
        if self.connection.in_cluster:
            self._require_one_slot(key)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_on(), name="scrapy-dq items")
        waiting = _Waiting(key, item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._kick.set()
        await waiting.stored

    async def close(self) -> None:
        """Stop writing, after a last check for a rollback. Call it when no page waits for an item."""
        if self._writing is not None:
            self._closing_since = self._closing_since or time.monotonic()
            self._ending = True
            self._kick.set()
            await asyncio.wait([self._writing])
            if self._client is not None and not self._log.off:
                with suppress(Exception):  # the mark expires
                    await self._client.delete(self._log.key)
        await self.connection.close()

    async def _write_on(self) -> None:
        while True:
            self._kick.clear()
            if not self._waiting and not self._ending:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._kick.wait(), CHECK_S if self._log else None)
            if 0 < len(self._waiting) < MAX_ITEMS:
                await asyncio.sleep(LINGER_S)
            batch = self._batch = self._next_batch()
            try:
                await self._store_in_time()
            except Exception as error:
                # Never end silently: without this coroutine every page with an item would hang forever.
                logger.exception("Unexpected error while %d items were stored", len(batch))
                self._fail(batch, f"unexpected {type(error).__name__}: {error}")
            if self._ending and not self._waiting:
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

    async def _store_in_time(self) -> None:
        """Store the batch, or give it up when the grace of a closing spider is over.

        Each batch gets at least the time of one trip.
        """
        began, storing = time.monotonic(), asyncio.ensure_future(self._store())
        try:
            while not (await asyncio.wait([storing], timeout=POLL_S))[0]:
                now = time.monotonic()
                if self._closing_since is None and self.closing():
                    self._closing_since = now
                over = self._closing_since is not None and now >= self._closing_since + self.grace_s
                if over and now >= began + self.connection.timeout_s:
                    self._give_up()
                    return
            storing.result()
        finally:
            storing.cancel()

    async def _store(self) -> None:
        """Send the batch until Redis has answered for each item."""
        self._tries = kept = 0
        while (error := await self._send()) is not None:
            if self._batch or self._waiting:  # otherwise the trip was only a check for a rollback
                self._outage.began(ItemNotStored(explain(error)))
            if self._client is not None:
                self.connection.note_no_answer()
            await asyncio.sleep(self._outage.delay_s())
            kept = len(self._batch) + len(self._waiting)
        self._outage.ended(kept)

    async def _send(self) -> Exception | None:
        """Try once to send the batch.

        Returns:
            None, or the error if something has to be sent again. `_batch` now has the items to send again.
        """
        by_key: dict[str | bytes, list[_Waiting]] = {}
        for waiting in self._batch:
            by_key.setdefault(waiting.key, []).append(waiting)
        sends_large_item = False
        try:
            if self._client is None:
                self._client = await self.connection.connect()
            if sum(len(waiting.item) for waiting in self._batch) > MAX_BYTES:
                await self._client.ping()
                sends_large_item = True
            pipe = self._client.pipeline(transaction=False)
            for key, parts in by_key.items():
                self._add(pipe, key, [waiting.item for waiting in parts])
            if not self._log.off:
                self._log.begin(pipe)
            replies = await pipe.execute(raise_on_error=False)
        except Exception as error:
            self._tries += sends_large_item
            if is_transient(error) and self._tries < MAX_TRIES:
                return error
            replies = [error] * len(by_key)
        self._batch, outage = [], None
        for (key, parts), reply in zip(by_key.items(), replies, strict=False):
            if not isinstance(reply, Exception):
                self._confirm(parts)
            elif is_transient(reply) and self._tries < MAX_TRIES:
                self._batch, outage = self._batch + parts, reply
            else:
                self._refuse(key, parts, reply)
        if len(replies) > len(by_key):
            outage = self._marked(replies[-1]) or outage
        return outage

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
        elif is_transient(reply):
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

    def _add(self, pipe: Any, key: str | bytes, items: list[bytes]) -> None:
        if self.kind == "stream":
            pipe.eval(_ADD_TO_STREAM, 1, key, *items)
        else:
            pipe.rpush(key, *items)

    def _give_up(self) -> None:
        left = [*self._batch, *self._waiting]
        lost = [waiting for waiting in left if not waiting.stored.done()]
        doubtful = len(left) - len(lost) + len(self._log)
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
                self.given_up(),
            )
            self._fail(lost, "Redis was unavailable until the end of the crawl")

    def _refuse(self, key: str | bytes, parts: list[_Waiting], error: Exception) -> None:
        reason = f"Redis refuses items for the key {key!r} ({describe(error)})"
        advice = (
            f"They are lost to this crawl. The key has to be a {self.kind}, or not exist, and the user in "
            f"REDIS_URL has to be allowed to write to it; REDIS_ITEMS_KEY names another key"
        )
        if self._tries >= MAX_TRIES:
            size = len(parts[0].item)
            reason = (
                f"an item of {size:,} bytes was sent {MAX_TRIES} times without success ({describe(error)})"
            )
            advice = (
                "It is not stored. Redis accepts no item of 512 MB or more, or the connection is too slow to "
                "send it within socket_timeout (REDIS_PARAMS)"
            )
        if (key, advice) not in self._logged:
            self._logged.add((key, advice))
            logger.error("%s. %s", reason, advice)
        self._fail(parts, reason)

    def _confirm(self, parts: Iterable[_Waiting]) -> None:
        done = [waiting for waiting in parts if not waiting.stored.done()]
        for waiting in done:
            waiting.stored.set_result(None)
        for waiting in parts:
            self._log.add(waiting.key, waiting.item)
        self.counted(len(done), 0)

    def _fail(self, parts: Iterable[_Waiting], reason: str) -> None:
        lost = [waiting for waiting in parts if not waiting.stored.done()]
        for waiting in lost:
            waiting.stored.set_exception(ItemNotStored(reason))
        self.counted(0, len(lost))
