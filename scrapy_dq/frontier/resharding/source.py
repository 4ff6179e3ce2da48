"""One shard of a crawl that is resharded: reads all of it, and moves what belongs elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.read_pace import ReadPace
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.resharding.routes import Routes
from scrapy_dq.frontier.resharding.transfer import PART, Transfer

_ENTRY_ID = slice(16, 28)
"""In a member of `returned`, behind its partition."""
_FIRST_BUCKETS = 1024
_TIMED = ("delayed", "earliest", "blocked")
_OF_PARTITIONS = ("limits", "earliest", "blocked")


class _Chain(NamedTuple):
    """A list, in the order in which lists are moved."""

    is_failed: bool
    partition: bytes = b""
    rank: int = 0

    @property
    def label(self) -> str:
        return "failed" if self.is_failed else "backlog"

    @property
    def name(self) -> bytes:
        return b"failed" if self.is_failed else b"backlog:%d:%s" % (self.rank, self.partition)


class Source:
    """One of the shards that were."""

    def __init__(
        self, number: int, transfer: Transfer, routes: Routes, progress: Callable[[int], object]
    ) -> None:
        self._number, self._transfer, self._routes, self._progress = number, transfer, routes, progress
        frontier = transfer.frontiers[number]
        self._client = frontier.client
        self._prefix = keys.prefix(frontier.name)
        self._sent: dict[int, int] = defaultdict(int)
        """By shard: how many elements of lists have gone there."""
        self.copied = 0
        """Tokens, each counted once per copy."""

    async def move(self, meta: dict[bytes, bytes]) -> None:
        """Move everything that belongs elsewhere; what was begun by an interrupted call is continued.

        Args:
            meta: of this shard.
        """
        for name, value in meta.items():
            if name.startswith(b"reshard:to "):
                self._sent[int(name.rpartition(b" ")[2])] = int(value)
        if b"reshard:tokens" not in meta:
            for label in ("seen", "seeds", "admitted", "adopted"):
                await self._move_tokens(label)
            await self._transfer.depart(self._number, "tokens")
        for label in (*_OF_PARTITIONS, "delayed", "dead", "returned", "quarantine"):
            await self._move_members(label)
        await self._move_lists(meta)

    async def _give(self, label: str, parts: dict[int, list[Any]]) -> None:
        timed = label in _TIMED or (label == "seen" and self._routes.seen is Seen.EXPIRING)
        for to, items in parts.items():
            if to != self._number:
                there = self._transfer.in_time_of(to, self._number, items) if timed else items
                await self._transfer.arrive(to, self._number, label, there)

    # Fingerprints and other tokens

    async def _move_tokens(self, label: str) -> None:
        """Copy the tokens to each shard in which they may be looked up; those whose shard is known leave."""
        routes = self._routes
        known = routes.knows_token(label)
        async for found in self._tokens(label):
            self._progress(len(found))
            parts: dict[int, list[Any]] = defaultdict(list)
            leave = []
            for token, items in found:
                shards = [routes.of_token(token)] if known else routes.of_tokens(label, self._number)
                for to in shards:
                    parts[to] += items
                    self.copied += to != self._number
                if known and shards[0] != self._number:
                    leave.append(token)
            await self._give(label, parts)
            if leave:
                await self._transfer.depart(self._number, label, leave)

    async def _tokens(self, label: str) -> AsyncIterator[list[tuple[bytes, list[Any]]]]:
        """Yield parts of a set of tokens: each token, and what arrive.lua takes of it."""
        kind = self._routes.seen if label == "seen" else Seen.EXACT
        if kind is Seen.COMPACT:
            async for found in self._buckets():
                yield found
            return
        cursor = -1
        while cursor:
            with as_unavailable():
                scan = self._client.zscan if kind is Seen.EXPIRING else self._client.sscan
                cursor, members = await scan(self._prefix + label, max(0, cursor), count=PART)
            if kind is Seen.EXPIRING:
                found = [(token, [int(at), token]) for token, at in members]
            else:
                found = [(token, [token]) for token in members]
            for at in range(0, len(found), PART):
                yield found[at : at + PART]

    async def _buckets(self) -> AsyncIterator[list[tuple[bytes, list[Any]]]]:
        """Yield parts of a compact seen: each member, with its first bucket (lua/seen/buckets.lua)."""
        with as_unavailable():
            name = self._prefix + "seen"
            generation, buckets = await self._client.hmget(name, "generation", "buckets")
        found: list[tuple[bytes, list[Any]]] = []
        for n in range(int(buckets or 0)):
            with as_unavailable():
                members = await self._client.smembers(b"%s:%s:%d" % (name.encode(), generation, n))
            found += ((member, [n % _FIRST_BUCKETS, member]) for member in members)
            if len(found) >= PART:
                yield found
                found = []
        yield found

    # Entries that are in no list, and what is known of partitions

    async def _move_members(self, label: str) -> None:
        async for found in self._members(label):
            self._progress(len(found))
            parts: dict[int, list[Any]] = defaultdict(list)
            leave = []
            for member, items in found:
                to = self._shard_of(label, member, items)
                if to != self._number:
                    parts[to] += items
                    leave.append(member)
            await self._give(label, parts)
            if leave:
                entries = 0 if label in _OF_PARTITIONS else len(leave)
                await self._transfer.depart(self._number, label, leave, entries=entries)

    async def _members(self, label: str) -> AsyncIterator[list[tuple[bytes, list[Any]]]]:
        """Yield parts of a hash or a sorted set: each field or member, and what arrive.lua takes of it."""
        cursor, pace = -1, ReadPace(PART)
        scan = self._client.hscan if label in ("limits", "dead") else self._client.zscan
        while cursor:
            with as_unavailable():
                cursor, read = await scan(self._prefix + label, max(0, cursor), count=pace.count)
            if label in ("limits", "dead"):
                found = [(each, [each, value]) for each, value in read.items()]
            elif label in _TIMED:
                found = [(each, [int(at), each]) for each, at in read]
            else:
                found = [(each, [each]) for each, _ in read]
            pace.saw([items[-1] for _, items in found])
            for at in range(0, len(found), PART):
                yield found[at : at + PART]

    def _shard_of(self, label: str, member: bytes, items: list[Any]) -> int:
        if label in _OF_PARTITIONS:
            return self._routes.of_partition(member, self._number)
        if label == "delayed":
            partition, entry_id = member[20:].partition(b"\0")[0], member[:12]
        elif label == "dead":
            partition, entry_id = _field(items[1], 6), member
        else:
            partition, _, rest = member.partition(b"\0")
            entry_id = rest[_ENTRY_ID]
        return self._routes.of_entry(partition, entry_id)

    # Lists

    async def _move_lists(self, meta: dict[bytes, bytes]) -> None:
        last = None
        if b"reshard:at" in meta:
            rank, _, partition = meta[b"reshard:at"].partition(b":")
            last = _Chain(rank == b"failed", partition, int(rank) if rank != b"failed" else 0)
        for chain in [*await self._backlog(), _Chain(True)]:
            if last is None or chain > last:
                await self._move_list(chain, None)
            elif chain == last:
                await self._move_list(chain, int(meta[b"reshard:left"]))

    async def _backlog(self) -> list[_Chain]:
        """Return the lists of the backlog, in the order of moving."""
        found: set[_Chain] = set()
        cursor = -1
        while cursor:
            with as_unavailable():
                cursor, best = await self._client.hscan(self._prefix + "bands", max(0, cursor), count=PART)
            found |= {_Chain(False, partition, _rank(band)) for partition, band in best.items()}
        cursor = -1
        while cursor:
            with as_unavailable():
                name = self._prefix + "more_bands"
                cursor, more = await self._client.zscan(name, max(0, cursor), count=PART)
            split = (member.partition(b"\0") for member, _ in more)
            found |= {_Chain(False, partition, _rank(band)) for partition, _, band in split}
        return sorted(found)

    async def _move_list(self, chain: _Chain, left: int | None) -> None:
        """Move a list; *left*: how many of its elements were not read yet, by the call that has begun it."""
        routes, name = self._routes, self._prefix.encode() + chain.name
        if chain.partition and routes.of_entry(chain.partition, b"") == self._number:
            return
        if left is None:
            with as_unavailable():
                left = await self._client.llen(name)
        offset, pace = 0, ReadPace(PART)
        while left:
            with as_unavailable():
                elements = await self._client.lrange(name, offset, offset + min(left, pace.count) - 1)
            if not elements:
                return  # somebody else has deleted some
            pace.saw(elements)
            self._progress(len(elements))
            parts: dict[int, list[Any]] = defaultdict(list)
            stay = []
            for position, element in enumerate(elements, 1):
                if chain.is_failed:
                    to = routes.of_entry(_field(element, 8), _field(element, 0))
                else:
                    to = routes.of_entry(chain.partition, element[8:20])
                if to == self._number:
                    stay.append(position)
                else:
                    parts[to].append(element)
            for to, items in parts.items():
                await self._transfer.arrive(
                    to, self._number, chain.label, items, chain.rank, chain.partition, self._sent[to]
                )
                self._sent[to] += len(items)
            left, offset = left - len(elements), offset + len(elements)
            if await self._transfer.depart(
                self._number, chain.label, entries=len(elements) - len(stay), rank=chain.rank,
                partition=chain.partition, count=len(elements), stay=stay, left=left,
                sent=[number for to, items in parts.items() for number in (to, len(items))],
            ):  # fmt: skip
                offset = 0  # those that were read have left, or are at the tail


def _field(record: bytes, position: int) -> bytes:
    with suppress(Exception):  # somebody else may have written it
        field = msgpack.unpackb(record, raw=True)[position]
        if isinstance(field, bytes):
            return field
    return b""


def _rank(band: bytes) -> int:
    return int.from_bytes(band, "big") - 2**52
