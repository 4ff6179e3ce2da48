"""Reads the keys of a shard page by page, at a measured pace. Changes nothing, and reads no key as a whole.

An entry that moves during the reading may be missing, or appear twice. All other entries appear once, and in
the same order in each reading.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

from scrapy_dq.frontier import keys, records
from scrapy_dq.frontier.blocking import at_once
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES
from scrapy_dq.frontier.records import DEAD, DELAYED, FAILED, IN_FLIGHT, WAITING, Entry

T = TypeVar("T")
MAX_RECORDS = 200
_PART = 1_000
"""Approximate maximum number of members of a hash or set in one page."""
_ELEMENTS = 500
"""Maximum number of elements of a list in one page."""
_MAX_LISTS = 200
"""Maximum number of lists whose heads are read in one call. There may be a million lists of one element."""
_HEAD = 8
"""Number of elements in the head of a list. One call reads the heads of many lists."""
_OFFSET = 7
"""The index of the clock's offset in the counts of a shard. Source: lua/lib/state.lua"""
_SCANS = {"hash": "hscan", "set": "sscan", "zset": "zscan"}
_TYPES = {key.name: key.type for key in keys.KEYS}


class ReadPace:
    """Computes how many records to read next, so that they take about MAX_EXCHANGE_BYTES at most.

    The estimate uses the size of the last records, so the first read is small. With a fixed number of
    records, a read could exceed a time-out or the memory, because a record may be megabytes large.

    Args:
        most: maximum number of records to read in one call.
    """

    def __init__(self, most: int = MAX_RECORDS) -> None:
        self._most = most
        self.count = min(4, most)

    def observe(self, records: Collection[bytes]) -> None:
        """Adapt to the largest of *records*, which were read last."""
        largest = max(map(len, records), default=0)
        self.count = max(1, min(self._most, 4 * self.count, MAX_EXCHANGE_BYTES // max(1, largest)))


class Backlog(NamedTuple):
    """A list of waiting entries. `Backlog` values sort in the order in which a dump reads their lists."""

    partition: bytes
    rank: int

    @property
    def name(self) -> bytes:
        return b"backlog:%d:%s" % (self.rank, self.partition)


Pages = AsyncIterator[list[bytes]]


class Reader:
    """Reads one shard. With a blocking client, no coroutine waits for an event loop (see `drained`)."""

    def __init__(self, client: Any, shard: str | Shard) -> None:
        """
        Args:
            client: a `redis` or `redis.asyncio` client that decodes nothing.
        """
        self.client, self._prefix = client, keys.prefix(shard).encode()

    async def ask(self, command: str, name: bytes, *args: Any, **options: Any) -> Any:
        """Return the result of a command for the key *name*.

        Raises:
            FrontierUnavailable: no usable reply. A blocking client raises redis.exceptions.RedisError.
        """
        return await _awaited(getattr(self.client, command)(self._prefix + name, *args, **options))

    async def pages(self, name: bytes, type_: str = "") -> AsyncIterator[list[Any]]:
        """Yield the contents of a key: pairs (field, value) or (member, score), or the members of a set.

        Args:
            type_: hash, set or zset; empty: as in `keys.KEYS`.
        """
        scan = _SCANS[type_ or _TYPES[name.decode()]]
        cursor, pace = -1, ReadPace(_PART)
        while cursor:
            cursor, read = await self.ask(scan, name, max(0, cursor), count=pace.count)
            if scan == "hscan":
                pace.observe(read.values())
                found = list(read.items())
            else:
                pace.observe([each[0] for each in read] if scan == "zscan" else read)
                found = list(read)
            yield found

    async def elements(self, name: bytes, head: list[bytes] | None = None, beside: int = 1) -> Pages:
        """Yield the elements of a list.

        Args:
            head: the first elements, from `heads`; None: they were not read yet.
            beside: the number of lists that are read at the same time; the size of a page is divided by it.
        """
        if head:
            yield head
        if head is not None and len(head) < _HEAD:
            return
        at, pace = len(head or ()), ReadPace(_ELEMENTS)
        while found := await self.ask("lrange", name, at, at + max(1, pace.count // beside) - 1):
            yield found
            at += len(found)
            pace.observe(found)

    async def offset(self) -> int:
        """Return by how many ms this shard's stored times are ahead of the clock of Redis (ms since 1970)."""
        counts = await self.ask("hget", b"meta", "counts")
        return int(counts.split()[_OFFSET]) if counts else 0

    async def entries(
        self, where: str, partitions: Collection[bytes] | None = None
    ) -> AsyncIterator[list[Entry]]:
        """Yield the entries of one of `records.PLACES`.

        Args:
            partitions: for WAITING, the only partitions to read; None: all. For the other places, this call
                reads all partitions.
        """
        if where == IN_FLIGHT:
            for worker_id in await self.ask("smembers", b"members"):
                async for leases in self.pages(b"in-flight:" + worker_id, "hash"):
                    yield [records.leased(record, worker_id) for _, record in leases]
        elif where == WAITING:
            async for entries in self._waiting(partitions):
                yield entries
        elif where == DELAYED:
            offset, (seconds, micros) = await self.offset(), await _awaited(self.client.time())
            now_ms = seconds * 1000 + micros / 1000
            async for members in self.pages(b"delayed"):
                found = [records.member(where, stored, int(due_ms) - offset) for stored, due_ms in members]
                yield [each._replace(wait_s=max(0.0, each.due_ms - now_ms) / 1000) for each in found]
        elif where == FAILED:
            async for page in self.elements(b"failed"):
                yield [records.failed(each) for each in page if each]  # empty: left by a stopped retry
        elif where == DEAD:
            async for page in self.pages(b"dead"):
                yield [records.dead(*each) for each in page]
        else:
            async for members in self.pages(where.encode()):
                yield [records.member(where, each) for each, _ in members]

    async def _waiting(self, partitions: Collection[bytes] | None) -> AsyncIterator[list[Entry]]:
        async for lists in self.lists(partitions):
            heads = self.heads(lists)
            for each in lists:
                at, last = 0, None
                async for page in self.elements(each.name, await anext(heads)):
                    if not at and records.is_newest_first(page[0]):
                        last = (len(page) if len(page) < _HEAD else await self.ask("llen", each.name)) - 1
                    yield [
                        records.waiting(element, each.rank, each.partition)._replace(
                            ahead=n if last is None else last - n
                        )
                        for n, element in enumerate(page, at)
                    ]
                    at += len(page)

    async def lists(self, partitions: Collection[bytes] | None = None) -> AsyncIterator[list[Backlog]]:
        """Yield the lists that the indexes name, of all partitions or only of *partitions*, in parts.

        If an index changes during the call, a list may come twice.
        """
        for partition in partitions or ():
            band = await self.ask("hget", b"bands", partition)
            first, last = b"[%s\0" % partition, b"(%s\1" % partition
            more = await self.ask("zrangebylex", b"more_bands", first, last)
            bands = [*filter(None, (band,)), *(member[len(partition) + 1 :] for member in more)]
            yield [Backlog(partition, keys.rank_of(each)) for each in bands]
        if partitions is not None:
            return
        async for best in self.pages(b"bands"):
            yield [Backlog(partition, keys.rank_of(each)) for partition, each in best]
        async for others in self.pages(b"more_bands"):
            split = (member.partition(b"\0") for member, _ in others)
            yield [Backlog(partition, keys.rank_of(each)) for partition, _, each in split]

    async def heads(self, lists: Sequence[Backlog]) -> Pages:
        """Yield the first elements of each list; one call reads many lists."""
        at, pace = 0, ReadPace(_HEAD * _MAX_LISTS)
        while chunk := lists[at : at + max(1, pace.count // _HEAD)]:
            pipe = self.client.pipeline(transaction=False)
            for each in chunk:
                pipe.lrange(self._prefix + each.name, 0, _HEAD - 1)
            heads = await _awaited(pipe.execute())
            pace.observe([element for head in heads for element in head])
            for head in heads:
                yield head
            at += len(chunk)


async def _awaited(reply: Any) -> Any:
    if not isawaitable(reply):
        return reply
    with as_unavailable():
        return await reply


def drained(pages: AsyncIterator[T]) -> Iterator[T]:
    """Yield the pages of a `Reader` with a blocking client."""
    while True:
        try:
            page: T = at_once(anext(pages))  # type: ignore[arg-type]
        except StopAsyncIteration:
            return
        yield page
