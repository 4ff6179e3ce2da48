"""A crawl -> its parts. Nothing is changed, and no key is read as a whole.

What is at rest is read in the same order each time: an interrupted load relies on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Any, NamedTuple

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.read_pace import ReadPace
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.header import offset_of
from scrapy_dq.frontier.archive.parts import HISTORY, TOKENS, Header, Part
from scrapy_dq.frontier.archive.records import (
    Item,
    failed_item,
    is_quarantined,
    item_of,
    leased_item,
    waiting_item,
)
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Seen

_MOST_LISTS = 200
"""So many lists are begun in one call."""
_PART, _PART_BYTES = 1_000, 1_048_576
"""Of a part: most items, and about how many bytes."""
_HEAD = 8
"""Elements of a list that are read with those of others."""
_FIRST_BUCKETS = 1024
"""Source: lua/seen/seen_compact.lua"""
_HASHES = (parts.LIMITS, parts.SPENT, parts.DEAD, parts.STATS, "messages")


async def dump(
    frontiers: Sequence[Frontier], header: Header, kinds: Sequence[str] = parts.KINDS
) -> AsyncIterator[Part]:
    """Yield all parts of a crawl: of each shard, in the order of *kinds*.

    Raises:
        FrontierUnavailable: no usable reply.
    """
    for number, frontier in enumerate(frontiers):
        shard = _Shard(frontier, header, await offset_of(frontier))
        for kind in kinds:
            if number != HOME and kind in (parts.STATS, *HISTORY):
                continue  # the curves of another shard would not fit to those of home
            async for items, partition in shard.read(kind):
                for some in _sliced(items):
                    yield Part(kind, number, some, partition)


async def messages_of(frontier: Frontier) -> AsyncIterator[list[bytes]]:
    """Yield which messages of streams are not done; see lua/lib/messages.lua."""
    async for found in _found_in(frontier, "messages"):
        if found:
            yield [message for message, _ in found]


_Items = tuple[list[Item], bytes]
_Members = list[tuple[bytes, Any]]
"""Members and scores of a sorted set, or fields and values of a hash."""


class _List(NamedTuple):
    """A list of entries that wait; they compare in the order in which they are read."""

    partition: bytes
    rank: int

    @property
    def name(self) -> bytes:
        return b"backlog:%d:%s" % (self.rank, self.partition)


class _Shard:
    def __init__(self, frontier: Frontier, header: Header, offset: int) -> None:
        self._frontier, self._header, self._offset = frontier, header, offset
        self._client, self._prefix = frontier.client, keys.prefix(frontier.name).encode()

    def read(self, kind: str) -> AsyncIterator[_Items]:
        if kind in TOKENS:
            return self._tokens(kind)
        if kind in (parts.RETURNED, parts.QUARANTINE):
            return self._come_back(kind)
        if kind == parts.WAITING:
            return self._waiting()
        if kind == parts.FAILED or kind in HISTORY:
            return self._elements(kind)
        return self._members(kind)

    async def _tokens(self, kind: str) -> AsyncIterator[_Items]:
        name, seen = self._prefix + kind.encode(), self._header.seen if kind == parts.SEEN else Seen.EXACT
        if seen is Seen.COMPACT:
            async for items in self._buckets(name):
                yield items, b""
            return
        scan, cursor = self._client.zscan if seen is Seen.EXPIRING else self._client.sscan, -1
        while cursor:
            with as_unavailable():
                cursor, found = await scan(name, max(0, cursor), count=_PART)
            if seen is Seen.EXPIRING:
                yield [(int(at) - self._offset, token) for token, at in found], b""
            else:
                yield [(token,) for token in found], b""

    async def _buckets(self, name: bytes) -> AsyncIterator[list[Item]]:
        with as_unavailable():
            generation, buckets = await self._client.hmget(name, "generation", "buckets")
        found: list[Item] = []
        for n in range(int(buckets) if generation else 0):
            with as_unavailable():
                members = await self._client.smembers(b"%s:%s:%d" % (name, generation, n))
            found += ((n % _FIRST_BUCKETS, member) for member in members)
            if len(found) >= _PART:
                yield found
                found = []
        yield found

    async def _members(self, kind: str, key: str = "") -> AsyncIterator[_Items]:
        """Yield what is in a hash or a sorted set; *key*: its name, if it differs from the kind's."""
        async for found in _found_in(self._frontier, key or kind):
            yield [item_of(kind, *each, self._offset) for each in found], b""

    async def _come_back(self, kind: str) -> AsyncIterator[_Items]:
        """Yield what has come back or was declined, and what workers hold that are dead, or on hold."""
        quarantined = kind == parts.QUARANTINE
        for key in (kind,) if quarantined else (kind, "declined"):
            async for found in self._members(kind, key):
                yield found
        with as_unavailable():
            workers = await self._client.smembers(self._prefix + b"members")
        for worker_id in workers:
            cursor, pace = -1, ReadPace()
            while cursor:
                with as_unavailable():
                    name = self._prefix + b"in-flight:" + worker_id
                    cursor, read = await self._client.hscan(name, max(0, cursor), count=pace.count)
                pace.saw(read.values())
                leases = [each for each in read.items() if is_quarantined(each[1]) is quarantined]
                yield [leased_item(*each) for each in leases], b""

    async def _elements(self, kind: str) -> AsyncIterator[_Items]:
        """Yield what is in a list that has a key of its own."""
        name = kind.encode()
        (head,) = await self._heads([name], _HEAD)
        async for records in self._pages(name, head, _HEAD):
            yield [failed_item(each) if kind == parts.FAILED else (each,) for each in records], b""

    async def _waiting(self) -> AsyncIterator[_Items]:
        """Yield the backlog partition by partition, the oldest entries first, whatever their rank."""
        pace = ReadPace(_HEAD * _MOST_LISTS)
        some: list[_List] = []
        for _, group in groupby(await self._backlog(), lambda each: each.partition):
            lists = list(group)
            # There may be a million lists of one element; or of one partition a thousand.
            if some and len(some) + len(lists) > max(1, pace.count // _HEAD):
                async for found in self._begun(some, _HEAD, pace):
                    yield found
                some = []
            some += lists
            if len(lists) > _MOST_LISTS:
                async for found in self._begun(some, 1, pace):
                    yield found
                some = []
        async for found in self._begun(some, _HEAD, pace):
            yield found

    async def _backlog(self) -> list[_List]:
        """Return the lists that the index names, in order."""
        found: set[_List] = set()
        cursor = -1
        while cursor:
            with as_unavailable():
                name = self._prefix + b"bands"
                cursor, best = await self._client.hscan(name, max(0, cursor), count=_PART)
            found |= _lists(best.items())
        cursor = -1
        while cursor:
            with as_unavailable():
                name = self._prefix + b"more_bands"
                cursor, more = await self._client.zscan(name, max(0, cursor), count=_PART)
            split = (member.partition(b"\0") for member, _ in more)
            found |= _lists((partition, band) for partition, _, band in split)
        return sorted(found)

    async def _begun(self, lists: list[_List], head: int, pace: ReadPace) -> AsyncIterator[_Items]:
        """Yield all of some lists, of which the first *head* elements are read together."""
        heads: list[list[bytes]] = []
        while len(heads) < len(lists):
            part = lists[len(heads) :][: max(1, min(_MOST_LISTS, pace.count // head))]
            found = await self._heads([each.name for each in part], head)
            pace.saw([element for each in found for element in each])
            heads += found
        for partition, pairs in groupby(zip(lists, heads, strict=True), lambda pair: pair[0].partition):
            async for items in self._merged(list(pairs), head):
                yield items, partition

    async def _merged(self, lists: list[tuple[_List, list[bytes]]], head: int) -> AsyncIterator[list[Item]]:
        pages = [aiter(self._pages(each.name, begun, head, len(lists))) for each, begun in lists]
        if len(lists) == 1:
            async for elements in pages[0]:
                yield [waiting_item(lists[0][0].rank, each) for each in elements]
            return
        heads = [await self._next(of.rank, each) for (of, _), each in zip(lists, pages, strict=True)]
        while any(heads):
            # As far as the list whose page ends first: what is read next of it may be older than the others.
            ends = min(head[-1][1] for head in heads if head)
            yield list(merge(*([e for e in head if e[1] <= ends] for head in heads), key=lambda e: e[1]))
            for n, (of, _) in enumerate(lists):
                was_read = bool(heads[n])
                heads[n] = [e for e in heads[n] if e[1] > ends]
                if was_read and not heads[n]:
                    heads[n] = await self._next(of.rank, pages[n])

    async def _next(self, rank: int, pages: AsyncIterator[list[bytes]]) -> list[Item]:
        """Return the next ones of a list; empty: it has no more."""
        return [waiting_item(rank, each) for each in await anext(pages, [])]

    async def _heads(self, names: Sequence[bytes], count: int) -> list[list[bytes]]:
        """Return the first *count* elements of each of some lists."""
        with as_unavailable():
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                pipe.lrange(self._prefix + name, 0, count - 1)
            return list(await pipe.execute())

    async def _pages(
        self, name: bytes, begun: list[bytes], head: int, beside: int = 1
    ) -> AsyncIterator[list[bytes]]:
        """Yield the elements of a list, of which the first *head* were read.

        Args:
            beside: so many lists are read at once: each page is smaller.
        """
        elements, at, pace = begun, 0, ReadPace(500)
        while elements:
            yield elements
            at += len(elements)
            if at < head:
                return
            with as_unavailable():
                last = at + max(1, pace.count // beside) - 1
                elements = list(await self._client.lrange(self._prefix + name, at, last))
            pace.saw(elements)


async def _found_in(frontier: Frontier, key: str) -> AsyncIterator[_Members]:
    cursor, pace = -1, ReadPace(_PART)
    scan = frontier.client.hscan if key in _HASHES else frontier.client.zscan
    while cursor:
        with as_unavailable():
            name = keys.prefix(frontier.name) + key
            cursor, read = await scan(name, max(0, cursor), count=pace.count)
        found = list(read.items() if key in _HASHES else read)
        pace.saw([value if isinstance(value, bytes) else member for member, value in found])
        yield found


def _lists(bands: Iterable[tuple[bytes, bytes]]) -> set[_List]:
    return {_List(partition, keys.rank_of(band)) for partition, band in bands}


def _sliced(items: list[Item]) -> Iterator[list[Item]]:
    """Yield them in parts of the usual size."""
    begin = size = 0
    for at, item in enumerate(items):
        size += sum(len(field) for field in item if isinstance(field, bytes))
        if at + 1 - begin >= _PART or size >= _PART_BYTES:
            yield items[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(items):
        yield items[begin:]
