"""A crawl -> its parts. Nothing is changed, and no key is read as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import Any
from uuid import uuid4

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.overview import parse_dead, parse_failed
from scrapy_dq.frontier.admin.read_pace import ReadPace
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import KEPT, TOKENS, Header, Part, rank_of, sequence_of
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused, Order, Seen
from scrapy_dq.frontier.resharding.shard_change import counts_of, meta_of
from scrapy_dq.frontier.resharding.shard_reader import Chain, ShardReader
from scrapy_dq.frontier.wire import half_moved

_DEFERRED = b"\2"
"""Begins the partition of a lease whose work is done. Source: lua/lib/politeness.lua"""
_OFFSET, _SEEN = 7, 11
"""In the counts of a shard. Source: lua/lib/state.lua"""
_MARKED = (0, 1, 2, 3, 4, 9, _SEEN)
"""Counts that change whenever an entry or a token does."""
_MOST_LISTS = 200
"""So many lists are begun in one call."""
_PART, _PART_BYTES = 1_000, 1_048_576
"""Of a part: most items, and about how many bytes."""
_HEAD = 8
"""Elements of a list that are read with those of others."""


@dataclass
class Skipped:
    """What could not be read: somebody else has written it."""

    records: int = 0


async def standing(frontiers: Sequence[Frontier]) -> list[Any]:
    """Return what differs later if anything has been done in the crawl."""
    found: list[Any] = []
    for frontier in frontiers:
        meta = await meta_of(frontier)
        counts = _all_counts(meta)
        found.append(
            [*(meta.get(name) for name in (b"epoch", b"run", b"phase")), *(counts[n] for n in _MARKED)]
        )
    return found


async def header_of(frontiers: Sequence[Frontier]) -> Header:
    """Return what is true of the whole crawl.

    Args:
        frontiers: of all its shards, home first.
    Raises:
        FrontierRefused: there is none; or its order or kind of `seen` is not known.
    """
    metas = [await meta_of(each) for each in frontiers]
    home, crawl = metas[HOME], frontiers[HOME].crawl
    if b"epoch" not in home:
        raise FrontierRefused(f"there is no crawl {crawl!r}")
    for number, meta in enumerate(metas):
        if meta.get(b"epoch") != home[b"epoch"]:
            raise FrontierRefused(f"shard {number} of crawl {crawl!r} is gone, and with it what waited there")
        behind = meta.get(b"run") != home.get(b"run") or (number and meta.get(b"cleared") == b"1")
        if behind and home.get(b"phase") == b"open":
            raise FrontierRefused(
                f"shard {number} of crawl {crawl!r} has not begun the run of home: start a worker, pause the "
                f"crawl, and then export it"
            )
        before, moving, after = meta.get(b"shards", b"").decode("utf-8", "replace").partition(">")
        if moving:
            raise FrontierRefused(half_moved(before, after))
        if b">" in meta.get(b"seen_kind", b""):
            raise FrontierRefused(f"the seen set of crawl {crawl!r} is half converted: finish that first")
    try:
        # A program that pushes requests has begun it, and no spider has joined since.
        order, seen = Order(_text(home, "order") or "fifo"), Seen(_text(home, "seen_kind") or "exact")
    except ValueError as error:
        raise FrontierRefused(f"crawl {crawl!r} was not stored by this version: {error}") from None
    with as_unavailable():
        seconds, micros = await frontiers[HOME].client.time()
    counts = [_all_counts(meta) for meta in metas]
    since = int(_text(home, "seen_since") or 0)
    gone = _text(home, "gone")
    entries = 0
    for frontier, (_, waiting, in_flight, _, _, *rest) in zip(frontiers, counts, strict=True):
        with as_unavailable():
            prefix = keys.prefix(frontier.name)
            kept = await frontier.client.llen(prefix + "failed") + await frontier.client.hlen(prefix + "dead")
        entries += waiting + in_flight + rest[9 - 5] + kept
    return Header(
        id=uuid4().hex, crawl=crawl, at_ms=seconds * 1000 + micros // 1000, order=order, seen=seen,
        shards=len(frontiers), partition_by=_text(home, "partition_by"),
        fingerprinter=_text(home, "fingerprinter"), spider=_text(home, "spider"),
        signing=_text(home, "signing"), run=int(_text(home, "run") or 0),
        sequence=max(each[0] for each in counts), done=sum(each[3] for each in counts),
        failed=sum(each[4] for each in counts), gone=int(gone) if gone.isdigit() else 0,
        seen_since_ms=since and since - counts[HOME][_OFFSET], entries=entries,
        tokens=sum(max(0, each[_SEEN]) for each in counts),
        kept={name: home[name.encode()] for name in KEPT if name.encode() in home},
    )  # fmt: skip


async def dump(
    frontiers: Sequence[Frontier], header: Header, skipped: Skipped, kinds: Sequence[str] = parts.KINDS
) -> AsyncIterator[Part]:
    """Yield all parts of a crawl: of each shard, in the order of *kinds*."""
    for number, frontier in enumerate(frontiers):
        shard = _Shard(frontier, header, skipped, _all_counts(await meta_of(frontier))[_OFFSET])
        for kind in kinds:
            async for items, partition in shard.read(kind):
                for some in _sliced(items):
                    yield Part(kind, number, some, partition)


_Items = tuple[list[tuple[Any, ...]], bytes]


class _Shard:
    def __init__(self, frontier: Frontier, header: Header, skipped: Skipped, offset: int) -> None:
        self._frontier, self._header, self._skipped, self._offset = frontier, header, skipped, offset
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

    async def _members(self, kind: str) -> AsyncIterator[_Items]:
        """Yield what is in a hash or a sorted set of its own."""
        async for found in self._reader.members(kind):
            items = []
            for member, stored in found:
                with suppress(Exception):  # somebody else may have written it
                    items.append(getattr(self, f"_{kind}_item")(member, stored))
            self._skipped.records += len(found) - len(items)
            yield items, b""

    def _limits_item(self, partition: bytes, stored: list[Any]) -> tuple[Any, ...]:
        return partition, stored[1].decode("ascii")

    def _blocked_item(self, partition: bytes, stored: list[Any]) -> tuple[Any, ...]:
        return stored[0] - self._offset, partition

    def _quarantine_item(self, member: bytes, stored: list[Any]) -> tuple[Any, ...]:
        partition, zero, rest = member.partition(b"\0")
        if not zero or len(rest) < 29:
            raise ValueError("too short")
        return partition, rank_of(rest[:8]), sequence_of(rest[8:16]), rest[16:28], rest[28], rest[29:]

    _returned_item = _quarantine_item

    def _delayed_item(self, member: bytes, stored: list[Any]) -> tuple[Any, ...]:
        partition, zero, payload = member[20:].partition(b"\0")
        if not zero:
            raise ValueError("too short")
        return stored[0] - self._offset, rank_of(member[12:20]), partition, member[:12], payload

    def _dead_item(self, entry_id: bytes, stored: list[Any]) -> tuple[Any, ...]:
        parse_dead(entry_id, stored[1])
        reason, at, worker_id, attempts, place, payload, partition = msgpack.unpackb(stored[1], raw=True)
        rank, sequence = rank_of(place[:8]), sequence_of(place[8:])
        return entry_id, reason, int(at), worker_id, int(attempts), rank, sequence, payload, partition

    async def _come_back(self, kind: str) -> AsyncIterator[_Items]:
        """Yield what has come back, and what workers hold that are dead, or on hold."""
        async for found in self._members(kind):
            yield found
        quarantined = kind == parts.QUARANTINE
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
                ours = [each for each in read.items() if _is_lease(each[1])]
                self._skipped.records += (len(read) - len(ours)) * (not quarantined)
                yield [_leased(*each) for each in ours if (each[1][8] >= 128) is quarantined], b""

    async def _failed(self) -> AsyncIterator[_Items]:
        (head,) = await self._reader.heads([chain := Chain(True)], _HEAD)
        async for records in self._pages(chain, head, _HEAD):
            items = []
            for record in records:
                with suppress(Exception):
                    parse_failed(record)
                    *first, at, worker, attempts, place, payload, partition = msgpack.unpackb(
                        record, raw=True
                    )
                    rank, sequence = rank_of(place[:8]), sequence_of(place[8:])
                    items.append((*first, int(at), worker, int(attempts), rank, sequence, payload, partition))
            self._skipped.records += len(records) - len(items)
            yield items, b""

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

    async def _merged(
        self, lists: list[tuple[Chain, list[bytes]]], head: int
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        pages = [aiter(self._pages(*each, head, len(lists))) for each in lists]
        if len(lists) == 1:
            async for elements in pages[0]:
                yield self._elements(lists[0][0].rank, elements)
            return
        heads = [
            self._elements(chain.rank, await _next(each))
            for (chain, _), each in zip(lists, pages, strict=True)
        ]
        while any(heads):
            # As far as the list whose page ends first: what is read next of it may be older than the others.
            ends = min(head[-1][1] for head in heads if head)
            yield list(merge(*([e for e in head if e[1] <= ends] for head in heads), key=lambda e: e[1]))
            for n, (chain, _) in enumerate(lists):
                was_read = bool(heads[n])
                heads[n] = [e for e in heads[n] if e[1] > ends]
                if was_read and not heads[n]:
                    heads[n] = self._elements(chain.rank, await _next(pages[n]))

    def _elements(self, rank: int, elements: list[bytes]) -> list[tuple[Any, ...]]:
        whole = [(rank, sequence_of(each[:8]), each[8:20], each[20:]) for each in elements if len(each) >= 20]
        self._skipped.records += len(elements) - len(whole)
        return whole

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


def _sliced(items: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield them in parts of the usual size."""
    begin = size = 0
    for at, item in enumerate(items):
        size += sum(len(field) for field in item if isinstance(field, bytes))
        if at + 1 - begin >= _PART or size >= _PART_BYTES:
            yield items[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(items):
        yield items[begin:]


async def _next(pages: AsyncIterator[list[bytes]]) -> list[bytes]:
    return await anext(pages, [])


def _is_lease(record: bytes) -> bool:
    return len(record[9:].partition(b"\0")[2]) >= 20


def _leased(entry_id: bytes, record: bytes) -> tuple[Any, ...]:
    """Return the item of a lease. One whose work is done is done once more."""
    partition, _, element = record[9:].partition(b"\0")
    return (
        partition.removeprefix(_DEFERRED), rank_of(record[:8]), sequence_of(element[:8]), entry_id,
        record[8] % 128, element[20:],
    )  # fmt: skip


def _all_counts(meta: dict[bytes, bytes]) -> list[int]:
    return [*counts_of(meta), *[0] * 12][:12]


def _text(meta: dict[bytes, bytes], name: str) -> str:
    return meta.get(name.encode(), b"").decode("utf-8", "replace")
