"""A crawl -> its parts. Nothing is changed, and no key is read as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from heapq import merge
from itertools import groupby

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.read_pace import ReadPace
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.header import offset_of
from scrapy_dq.frontier.archive.parts import TOKENS, Header, Part
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
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.resharding.shard_reader import Chain, ShardReader

_MOST_LISTS = 200
"""So many lists are begun in one call."""
_PART, _PART_BYTES = 1_000, 1_048_576
"""Of a part: most items, and about how many bytes."""
_HEAD = 8
"""Elements of a list that are read with those of others."""


async def dump(
    frontiers: Sequence[Frontier], header: Header, kinds: Sequence[str] = parts.KINDS
) -> AsyncIterator[Part]:
    """Yield all parts of a crawl: of each shard, in the order of *kinds*."""
    for number, frontier in enumerate(frontiers):
        shard = _Shard(frontier, header, await offset_of(frontier))
        for kind in kinds:
            async for items, partition in shard.read(kind):
                for some in _sliced(items):
                    yield Part(kind, number, some, partition)


_Items = tuple[list[Item], bytes]


class _Shard:
    def __init__(self, frontier: Frontier, header: Header, offset: int) -> None:
        self._frontier, self._header, self._offset = frontier, header, offset
        self._reader = ShardReader(frontier)

    def read(self, kind: str) -> AsyncIterator[_Items]:
        if kind in TOKENS:
            return self._tokens(kind)
        if kind in (parts.RETURNED, parts.QUARANTINE):
            return self._come_back(kind)
        if kind == parts.WAITING:
            return self._waiting()
        return self._failed() if kind == parts.FAILED else self._members(kind)

    async def _tokens(self, kind: str) -> AsyncIterator[_Items]:
        timed = kind == parts.SEEN and self._header.seen is Seen.EXPIRING
        async for found in self._reader.tokens(kind, self._header.seen):
            if timed:
                yield [(at - self._offset, token) for _, (at, token) in found], b""
            else:
                yield [tuple(items) for _, items in found], b""

    async def _members(self, kind: str, key: str = "") -> AsyncIterator[_Items]:
        """Yield what is in a hash or a sorted set; *key*: its name, if it differs from the kind's."""
        async for found in self._reader.members(key or kind):
            yield [item_of(kind, member, stored, self._offset) for member, stored in found], b""

    async def _come_back(self, kind: str) -> AsyncIterator[_Items]:
        """Yield what has come back or was declined, and what workers hold that are dead, or on hold."""
        quarantined = kind == parts.QUARANTINE
        for key in (kind,) if quarantined else (kind, "declined"):
            async for found in self._members(kind, key):
                yield found
        prefix = keys.prefix(self._frontier.name).encode()
        with as_unavailable():
            workers = await self._frontier.client.smembers(prefix + b"members")
        for worker_id in workers:
            cursor, pace = -1, ReadPace()
            while cursor:
                with as_unavailable():
                    name = prefix + b"in-flight:" + worker_id
                    cursor, read = await self._frontier.client.hscan(name, max(0, cursor), count=pace.count)
                pace.saw(read.values())
                leases = [each for each in read.items() if is_quarantined(each[1]) is quarantined]
                yield [leased_item(*each) for each in leases], b""

    async def _failed(self) -> AsyncIterator[_Items]:
        (head,) = await self._reader.heads([chain := Chain(True)], _HEAD)
        async for records in self._pages(chain, head, _HEAD):
            yield [failed_item(record) for record in records], b""

    async def _waiting(self) -> AsyncIterator[_Items]:
        """Yield the backlog partition by partition, the oldest entries first, whatever their rank."""
        pace = ReadPace(_HEAD * _MOST_LISTS)
        some: list[Chain] = []
        for _, chains in groupby(await self._reader.backlog(), lambda chain: chain.partition):
            lists = list(chains)
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

    async def _begun(self, chains: list[Chain], head: int, pace: ReadPace) -> AsyncIterator[_Items]:
        """Yield all of some lists, of which the first *head* elements are read together."""
        heads: list[list[bytes]] = []
        while len(heads) < len(chains):
            part = chains[len(heads) :][: max(1, min(_MOST_LISTS, pace.count // head))]
            found = await self._reader.heads(part, head)
            pace.saw([element for each in found for element in each])
            heads += found
        for partition, pairs in groupby(zip(chains, heads, strict=True), lambda pair: pair[0].partition):
            async for items in self._merged(list(pairs), head):
                yield items, partition

    async def _merged(self, lists: list[tuple[Chain, list[bytes]]], head: int) -> AsyncIterator[list[Item]]:
        pages = [aiter(self._pages(*each, head, len(lists))) for each in lists]
        if len(lists) == 1:
            async for elements in pages[0]:
                yield [waiting_item(lists[0][0].rank, each) for each in elements]
            return
        heads = [await self._next(chain.rank, each) for (chain, _), each in zip(lists, pages, strict=True)]
        while any(heads):
            # As far as the list whose page ends first: what is read next of it may be older than the others.
            ends = min(head[-1][1] for head in heads if head)
            yield list(merge(*([e for e in head if e[1] <= ends] for head in heads), key=lambda e: e[1]))
            for n, (chain, _) in enumerate(lists):
                was_read = bool(heads[n])
                heads[n] = [e for e in heads[n] if e[1] > ends]
                if was_read and not heads[n]:
                    heads[n] = await self._next(chain.rank, pages[n])

    async def _next(self, rank: int, pages: AsyncIterator[list[bytes]]) -> list[Item]:
        """Return the next ones of a list; empty: it has no more."""
        return [waiting_item(rank, each) for each in await anext(pages, [])]

    async def _pages(
        self, chain: Chain, begun: list[bytes], head: int, beside: int = 1
    ) -> AsyncIterator[list[bytes]]:
        """Yield the elements of a list, of which the first *head* were read.

        Args:
            beside: so many lists are read at once: each page is smaller.
        """
        if begun:
            yield begun
        at, pace = len(begun), ReadPace(500)
        while at >= head and (
            elements := await self._reader.elements(chain, at, max(1, pace.count // beside))
        ):
            pace.saw(elements)
            at += len(elements)
            yield elements


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
