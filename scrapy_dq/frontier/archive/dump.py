"""Reads a crawl in parts. A dump changes nothing, and reads no key as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Any

from scrapy_dq.frontier import records
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import ENTRIES, HISTORY, TOKENS, Header, Part, regrouped
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.reader import Backlog, Pages, Reader
from scrapy_dq.frontier.records import DECLINED, IN_FLIGHT, QUARANTINE, RETURNED, WAITING

_PART = 1_000
"""Maximum number of items in a part."""
_FIRST_BUCKETS = 1024
"""Source: lua/seen/seen_compact.lua"""
_Items = AsyncIterator[list[Any]]


async def dump(
    frontiers: Sequence[Frontier], header: Header, kinds: Sequence[str] = parts.KINDS
) -> AsyncIterator[Part]:
    """Yield all parts of a crawl, shard by shard, each in the order of *kinds*.

    Raises:
        FrontierUnavailable: no usable reply.
    """
    async for part in regrouped(_pages(frontiers, header, kinds), _PART, by_partition=True):
        yield part


async def _pages(frontiers: Sequence[Frontier], header: Header, kinds: Sequence[str]) -> AsyncIterator[Part]:
    for number, frontier in enumerate(frontiers):
        for kind in kinds:
            if number != HOME and kind in (parts.STATS, *HISTORY):
                continue  # the curves of another shard would not fit the curves of home
            async for items in _items(Reader(frontier.client, frontier.name), kind, header):
                yield Part(kind, number, items)


def _items(reader: Reader, kind: str, header: Header) -> _Items:
    name, seen = kind.encode(), header.seen if kind == parts.SEEN else Seen.EXACT
    if seen is Seen.COMPACT:
        return _buckets(reader, name)
    if seen is Seen.EXPIRING or kind in (parts.BLOCKED, parts.EARLIEST):
        return _times(reader, name)
    if kind in TOKENS:
        return _alone(reader.pages(name, "set"))
    if kind in HISTORY:
        return _alone(reader.elements(name))
    if kind in (RETURNED, QUARANTINE):
        return _returned(reader, kind)
    if kind == WAITING:
        return _waiting(reader)
    return reader.entries(kind) if kind in ENTRIES else reader.pages(name)


async def _alone(pages: Pages) -> _Items:
    """Yield each token, or element, as a separate item."""
    async for page in pages:
        yield [(each,) for each in page]


async def _times(reader: Reader, name: bytes) -> _Items:
    offset = await reader.offset()
    async for members in reader.pages(name, "zset"):
        yield [(int(at) - offset, member) for member, at in members]


async def _buckets(reader: Reader, name: bytes) -> _Items:
    generation, buckets = await reader.ask("hmget", name, "generation", "buckets")
    for n in range(int(buckets) if generation else 0):
        members = await reader.ask("smembers", b"%s:%s:%d" % (name, generation, n))
        yield [(n % _FIRST_BUCKETS, member) for member in members]


async def _returned(reader: Reader, kind: str) -> _Items:
    """Yield the entries of *kind*, and entries in other keys that a dump stores as *kind*.

    A dump stores declined entries as RETURNED, and also the leases of workers that are dead or on hold. It
    stores leases of suspects as QUARANTINE.
    """
    suspect = kind == QUARANTINE
    for where in (kind,) if suspect else (kind, DECLINED):
        async for entries in reader.entries(where):
            yield entries
    async for leases in reader.entries(IN_FLIGHT):
        yield [each for each in leases if each.suspect is suspect]


async def _waiting(reader: Reader) -> _Items:
    """Yield the waiting entries by partition; in each partition the oldest first, whatever their rank."""
    lists = sorted({each async for found in reader.lists() for each in found})
    heads = reader.heads(lists)
    for _, group in groupby(lists, lambda each: each.partition):
        ranks = list(group)
        pages = [reader.elements(each.name, await anext(heads), len(ranks)) for each in ranks]
        async for entries in _merged([_entries(*each) for each in zip(ranks, pages, strict=True)]):
            yield entries


def _entries(backlog: Backlog, pages: Pages) -> _Items:
    return ([records.waiting(each, backlog.rank, backlog.partition) for each in page] async for page in pages)


async def _merged(lists: list[_Items]) -> _Items:
    heads = [await anext(each, []) for each in lists]
    while any(heads):
        # Merge only up to the page whose last entry is the oldest. The next page of its list may have entries
        # that are older than the remaining entries of the other pages.
        ends = min(head[-1].sequence for head in heads if head)
        older = ([e for e in head if e.sequence <= ends] for head in heads)
        yield list(merge(*older, key=lambda e: e.sequence))
        for n, head in enumerate(heads):
            if head:
                heads[n] = [e for e in head if e.sequence > ends] or await anext(lists[n], [])
