"""Read the keys of a scrapy-redis crawl in batches, and delete them on request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# These keys do not belong to a frontier, so no other module handles their errors.
from redis.exceptions import NoPermissionError, RedisError

from scrapy_dq.frontier.errors import describe, explain
from scrapy_dq.frontier.model import FrontierError, FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.reader import ReadPace
from scrapy_dq.scrapy_redis import FINGERPRINT_BYTES

PATIENCE_S = 30.0
"""Seconds for which an unanswered command is repeated."""
BATCH = 500
FINGERPRINTS = 1_000
_SIZES = {"list": "llen", "set": "scard", "zset": "zcard"}


class BadSource(FrontierError):
    """A source cannot be adopted, such as a key of a wrong type; the message names the key and a way out."""


@dataclass(frozen=True)
class Found:
    """The type and size of a key or folder."""

    key: str
    type: str
    """`none` if there is no such key."""
    size: int


class Source:
    """The keys of one crawl. Only `delete` writes. A read that got no answer may be repeated."""

    closed = True
    queue: Found
    dupefilter: Found
    served = ""
    """The order of scrapy-redis's queue: priority, fifo or lifo; empty: there is no queue."""

    def __init__(self, client: Any) -> None:
        """Read with a `redis.asyncio` client that decodes nothing."""
        self.client = client

    async def find(self, queue_key: str, dupefilter_key: str) -> None:
        """Read type and size of the two keys.

        Raises:
            BadSource: a key has a type that scrapy-redis does not use.
        """
        self.queue = await self._inspect(queue_key, "zset", "list")
        self.dupefilter = await self._inspect(dupefilter_key, "set")

    async def _inspect(self, key: str, *types: str) -> Found:
        found = (await self._ask("type", key)).decode()
        if found == "none":
            return Found(key, found, 0)
        if found not in types:
            raise BadSource(
                f"the key {key!r} is a {found}; scrapy-redis would have a {' or a '.join(types)} there"
            )
        return Found(key, found, await self._ask(_SIZES[found], key))

    async def mark(self) -> Any:
        """Return a value that differs after a change of the queue: its length and the members at its ends."""
        if self.queue.type == "none":
            return None
        size = (await self._inspect(self.queue.key, self.queue.type)).size
        return size, await self._range(False, 0, 1), await self._range(True, 0, 1)

    async def members(self, backwards: bool) -> AsyncIterator[list[bytes]]:
        """Yield all members of the queue, in batches of the size that ReadPace returns.

        Args:
            backwards: begin with the member that is served last.
        """
        start, pace = 0, ReadPace(BATCH)
        # scrapy-redis takes the next request of a FifoQueue from the tail of the LIST.
        from_end = (self.served == "fifo") ^ backwards
        while start < self.queue.size:
            stop = min(start + pace.count, self.queue.size)
            members = await self._range(from_end, start, stop)
            if not members:
                return  # the queue has become shorter
            yield members
            start = stop
            pace.observe(members)

    async def fingerprints(self) -> AsyncIterator[tuple[list[bytes], int]]:
        """Yield batches of all fingerprints, some twice, each with a count of invalid ones."""
        key = self.dupefilter.key
        cursor, process = 0, await self._process()
        while True:
            cursor, members = await self._ask("sscan", key, cursor, count=FINGERPRINTS)
            for at in range(0, len(members), FINGERPRINTS):
                chunk = members[at : at + FINGERPRINTS]
                plain = [each for each in map(_unhex, chunk) if each]
                yield plain, len(chunk) - len(plain)
            if not cursor:
                # A cursor has no meaning for another Redis process. If Redis was restarted, members may be
                # missing, so the scan begins again.
                last, process = process, await self._process()
                if last == process:
                    return

    async def _process(self) -> Any:
        """Return a unique id of the Redis process; None: this user may not read it."""
        with suppress(FrontierRefused):
            return (await self._ask("info", "server")).get("run_id")

    async def delete(self, keys: list[str]) -> None:
        """Delete exactly these keys."""
        await self._ask("unlink", *keys)

    async def _range(self, from_end: bool, start: int, stop: int) -> list[bytes]:
        """Return the members from *start* up to *stop*, without it, counted from one end."""
        command = "zrange" if self.queue.type == "zset" else "lrange"
        first, last = (-stop, -start - 1) if from_end else (start, stop - 1)
        members: list[bytes] = await self._ask(command, self.queue.key, first, last)
        return members[::-1] if from_end else members

    async def _ask(self, command: str, key: str, *args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await getattr(self.client, command)(key, *args, **options)
            except NoPermissionError as error:
                raise FrontierRefused(f"Redis denies access to {key!r}: {describe(error)}") from error
            except (RedisError, OSError, TimeoutError) as error:
                if time.monotonic() >= deadline:
                    raise FrontierUnavailable(explain(error)) from error
                await asyncio.sleep(0.2)


def _unhex(member: bytes) -> bytes | None:
    try:
        fingerprint = bytes.fromhex(member.decode("ascii"))
    except ValueError:
        return None
    return fingerprint if len(fingerprint) == FINGERPRINT_BYTES else None
