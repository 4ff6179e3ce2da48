"""The keys of a scrapy-redis crawl: their contents, read in batches, and deleted on request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

# These keys are not a frontier's, so that no other module handles their errors.
from redis.exceptions import NoPermissionError, RedisError

from scrapy_dq.frontier.errors import describe, explain
from scrapy_dq.frontier.model import FrontierError, FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.reader import ReadPace
from scrapy_dq.scrapy_redis import FINGERPRINT_BYTES

T = TypeVar("T")
PATIENCE_S = 30.0
"""How long a read without an answer is repeated."""
BATCH = 500
FINGERPRINTS = 1_000
_SIZES = {"list": "llen", "set": "scard", "zset": "zcard"}


class BadSource(FrontierError):
    """A key is not of the type that scrapy-redis uses; the message says which, and what to do."""


@dataclass(frozen=True)
class Found:
    """What a key holds."""

    key: str
    type: str
    """none, if there is no such key."""
    size: int


class Source:
    """Reads the keys of one crawl. Only `delete` writes; every read may be repeated."""

    def __init__(self, client: Any) -> None:
        """Read with a `redis.asyncio` client that decodes nothing."""
        self.client = client

    async def look(self, key: str, *types: str) -> Found:
        """Return what *key* holds.

        Raises:
            BadSource: something of another type than *types*.
        """
        found = (await self._read(key, lambda: self.client.type(key))).decode()
        if found == "none":
            return Found(key, found, 0)
        if found not in types:
            raise BadSource(
                f"the key {key!r} is a {found}; scrapy-redis would have a {' or a '.join(types)} there"
            )
        count = getattr(self.client, _SIZES[found])
        return Found(key, found, await self._read(key, lambda: count(key)))

    async def mark(self, queue: Found) -> tuple[int, Any]:
        """Return a mark that differs if the queue has changed: its length, and its members at both ends."""
        if queue.type == "none":
            return 0, None
        size = (await self.look(queue.key, queue.type)).size
        return size, (await self._range(queue, False, 0, 1), await self._range(queue, True, 0, 1))

    async def members(self, queue: Found, tail_first: bool, backwards: bool) -> AsyncIterator[list[bytes]]:
        """Yield all members of a queue, in batches of the size that ReadPace returns.

        Args:
            tail_first: a LIST is served from its tail.
            backwards: begin with the member that is served last.
        """
        start, pace = 0, ReadPace(BATCH)
        # From the end: what is served last is at the other end.
        tail_first ^= backwards
        while start < queue.size:
            stop = min(start + pace.count, queue.size)
            members = await self._range(queue, tail_first, start, stop)
            if not members:
                return  # it has become shorter
            yield members
            start = stop
            pace.saw(members)

    async def fingerprints(self, key: str) -> AsyncIterator[tuple[list[bytes], int]]:
        """Yield batches of all fingerprints of a SET, some twice, and how many others are beside them."""
        cursor, process = 0, await self._process(key)
        while True:
            cursor, members = await self._read(
                key, partial(self.client.sscan, key, cursor, count=FINGERPRINTS)
            )
            for i in range(0, len(members), FINGERPRINTS):
                found = [_unhex(member) for member in members[i : i + FINGERPRINTS]]
                plain = [each for each in found if each]
                yield plain, len(found) - len(plain)
            if not cursor:
                # A cursor is meaningless to another process of Redis: it may have skipped members.
                last, process = process, await self._process(key)
                if last == process:
                    return

    async def _process(self, key: str) -> Any:
        """Return an id that is unique to each process of Redis; None: this user may not read it."""
        with suppress(FrontierRefused):
            return (await self._read(key, lambda: self.client.info("server"))).get("run_id")

    async def delete(self, keys: list[str]) -> None:
        """Delete exactly these keys."""
        await self._read(keys[0], lambda: self.client.unlink(*keys))

    async def _range(self, queue: Found, from_end: bool, start: int, stop: int) -> list[bytes]:
        """Return the members from *start* to before *stop*, counted from one end, in that direction."""
        read = self.client.zrange if queue.type == "zset" else self.client.lrange
        first, last = (-stop, -start - 1) if from_end else (start, stop - 1)
        members: list[bytes] = await self._read(queue.key, lambda: read(queue.key, first, last))
        return members[::-1] if from_end else members

    async def _read(self, key: str, call: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await call()
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
