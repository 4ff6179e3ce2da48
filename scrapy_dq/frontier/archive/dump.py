"""A crawl -> its parts. Nothing is changed, and no key is read as a whole.

What is at rest is read in the same order each time: an interrupted load relies on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Any

from scrapy_dq.frontier import records
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import ENTRIES, HISTORY, TOKENS, Header, Part
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.reader import Backlog, Pages, Reader
from scrapy_dq.frontier.records import DECLINED, IN_FLIGHT, QUARANTINE, RETURNED, WAITING, Entry

_PART, _PART_BYTES = 1_000, 1_048_576
"""Of a part: most items, and about how many bytes."""
_FIRST_BUCKETS = 1024
"""Source: lua/seen/seen_compact.lua"""
_Items = AsyncIterator[list[Any]]


async def dump(
    frontiers: Sequence[Frontier], header: Header, kinds: Sequence[str] = parts.KINDS
) -> AsyncIterator[Part]:
    """Yield all parts of a crawl: of each shard, in the order of *kinds*.

    Raises:
        FrontierUnavailable: no usable reply.
    """
    for number, frontier in enumerate(frontiers):
        for kind in kinds:
            if number != HOME and kind in (parts.STATS, *HISTORY):
                continue  # the curves of another shard would not fit to those of home
            async for items in _items(Reader(frontier.client, frontier.name), kind, header):
                for some in _sliced(items):
                    yield Part(kind, number, some)


def _items(reader: Reader, kind: str, header: Header) -> _Items:
    if kind in TOKENS:
        return _tokens(reader, kind, header.seen if kind == parts.SEEN else Seen.EXACT)
    if kind in (RETURNED, QUARANTINE):
        return _came_back(reader, kind)
    if kind == WAITING:
        return _waiting(reader)
    return reader.entries(kind) if kind in ENTRIES else _others(reader, kind.encode())


async def _tokens(reader: Reader, kind: str, seen: Seen) -> _Items:
    name = kind.encode()
    if seen is Seen.COMPACT:
        async for items in _buckets(reader, name):
            yield items
    elif seen is Seen.EXPIRING:
        offset = await reader.offset()
        async for members in reader.pages(name, "zset"):
            yield [(int(at) - offset, token) for token, at in members]
    else:
        async for members in reader.pages(name, "set"):
            yield [(token,) for token in members]


async def _buckets(reader: Reader, name: bytes) -> _Items:
    generation, buckets = await reader.ask("hmget", name, "generation", "buckets")
    found: list[Any] = []
    for n in range(int(buckets) if generation else 0):
        members = await reader.ask("smembers", b"%s:%s:%d" % (name, generation, n))
        found += ((n % _FIRST_BUCKETS, member) for member in members)
        if len(found) >= _PART:
            yield found
            found = []
    yield found


async def _others(reader: Reader, name: bytes) -> _Items:
    """Yield what is neither a token nor an entry."""
    if name.decode() in HISTORY:
        async for elements in reader.elements(name):
            yield [(each,) for each in elements]
        return
    times = name.decode() in (parts.BLOCKED, parts.EARLIEST)
    offset = await reader.offset() if times else 0
    async for found in reader.pages(name):
        yield [(int(at) - offset, partition) for partition, at in found] if times else found


async def _came_back(reader: Reader, kind: str) -> _Items:
    """Yield what has come back or was declined, and what workers hold that are dead, or on hold."""
    suspect = kind == QUARANTINE
    for where in (kind,) if suspect else (kind, DECLINED):
        async for entries in reader.entries(where):
            yield entries
    async for leases in reader.entries(IN_FLIGHT):
        yield [each for each in leases if each.suspect is suspect]


async def _waiting(reader: Reader) -> _Items:
    """Yield the backlog partition by partition, the oldest entries first, whatever their rank."""
    lists = {each async for found in reader.lists() for each in found}
    partitions = (list(group) for _, group in groupby(sorted(lists), lambda each: each.partition))
    async for group in reader.begun(partitions):
        async for entries in _merged(group):
            yield entries


async def _merged(lists: list[tuple[Backlog, Pages]]) -> AsyncIterator[list[Entry]]:
    if len(lists) == 1:
        while entries := await _next(*lists[0]):
            yield entries
        return
    heads = [await _next(*each) for each in lists]
    while any(heads):
        # As far as the list whose page ends first: what is read next of it may be older than the others.
        ends = min(head[-1].sequence for head in heads if head)
        older = ([e for e in head if e.sequence <= ends] for head in heads)
        yield list(merge(*older, key=lambda e: e.sequence))
        for n, each in enumerate(lists):
            was_read = bool(heads[n])
            heads[n] = [e for e in heads[n] if e.sequence > ends]
            if was_read and not heads[n]:
                heads[n] = await _next(*each)


async def _next(of: Backlog, pages: Pages) -> list[Entry]:
    """Return the next ones of a list; empty: it has no more."""
    return [records.waiting(each, of.rank, of.partition) for each in await anext(pages, [])]


def _sliced(items: list[Any]) -> Iterator[list[Any]]:
    """Yield them in parts of the usual size."""
    begin = size = 0
    for at, item in enumerate(items):
        is_entry = isinstance(item, Entry)
        size += len(item.payload) + len(item.reason) + len(item.label) if is_entry else len(item[-1])
        if at + 1 - begin >= _PART or size >= _PART_BYTES:
            yield items[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(items):
        yield items[begin:]
