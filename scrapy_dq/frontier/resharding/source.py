"""One shard of a crawl that is resharded: reads all of it, and moves what belongs elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgpack

from scrapy_dq.frontier.admin.read_pace import ReadPace
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.resharding.routes import Routes
from scrapy_dq.frontier.resharding.shard_reader import PART, TIMED, Chain, ShardReader
from scrapy_dq.frontier.resharding.transfer import Transfer

_ENTRY_ID = slice(16, 28)
"""In a member of `returned`, behind its partition."""
_OF_PARTITIONS = ("limits", "spent", "earliest", "blocked")


class Source:
    """One of the shards that were."""

    def __init__(
        self, number: int, transfer: Transfer, routes: Routes, progress: Callable[[int], object]
    ) -> None:
        self._number, self._transfer, self._routes, self._progress = number, transfer, routes, progress
        self._reader = ShardReader(transfer.frontiers[number])
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
        async for found in self._reader.members("messages"):
            await self._transfer.depart(self._number, "messages", [message for message, _ in found])
        for label in (*_OF_PARTITIONS, "delayed", "dead", "returned", "quarantine", "declined"):
            await self._move_members(label)
        await self._move_lists(meta)

    async def _give(self, label: str, parts: dict[int, list[Any]]) -> None:
        timed = label in TIMED or (label == "seen" and self._routes.seen is Seen.EXPIRING)
        for to, items in parts.items():
            if to != self._number:
                there = self._transfer.in_time_of(to, self._number, items) if timed else items
                await self._transfer.arrive(to, self._number, label, there)

    # Fingerprints and other tokens

    async def _move_tokens(self, label: str) -> None:
        """Copy the tokens to each shard in which they may be looked up; those whose shard is known leave."""
        routes = self._routes
        known = routes.knows_token(label)
        async for found in self._reader.tokens(label, routes.seen):
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

    # Entries that are in no list, and what is known of partitions

    async def _move_members(self, label: str) -> None:
        async for found in self._reader.members(label):
            self._progress(len(found))
            parts: dict[int, list[Any]] = defaultdict(list)
            leave = []
            for member, items in found:
                to = self._shard_of(label, member, items)
                if to != self._number:
                    parts[to] += items
                    leave.append(member)
            # In its new shard, every worker may try it again.
            await self._give("returned" if label == "declined" else label, parts)
            if leave:
                entries = 0 if label in _OF_PARTITIONS else len(leave)
                await self._transfer.depart(self._number, label, leave, entries=entries)

    def _shard_of(self, label: str, member: bytes, items: list[Any]) -> int:
        if label in _OF_PARTITIONS:
            return self._routes.of_partition(member, self._number)
        if label == "delayed":
            partition, entry_id = member[20:].partition(b"\0")[0], member[:12]
        elif label == "dead":
            partition, entry_id = msgpack.unpackb(items[1], raw=True)[6], member
        else:
            partition, _, rest = member.partition(b"\0")
            entry_id = rest[_ENTRY_ID]
        return self._routes.of_entry(partition, entry_id)

    # Lists

    async def _move_lists(self, meta: dict[bytes, bytes]) -> None:
        last = None
        if b"reshard:at" in meta:
            rank, _, partition = meta[b"reshard:at"].partition(b":")
            last = Chain(rank == b"failed", partition, int(rank) if rank != b"failed" else 0)
        for chain in [*await self._reader.backlog(), Chain(True)]:
            if last is None or chain > last:
                await self._move_list(chain, None)
            elif chain == last:
                await self._move_list(chain, int(meta[b"reshard:left"]))

    async def _move_list(self, chain: Chain, left: int | None) -> None:
        """Move a list; *left*: how many of its elements were not read yet, by the call that has begun it."""
        routes = self._routes
        if chain.partition and routes.of_entry(chain.partition, b"") == self._number:
            return
        if left is None:
            left = await self._reader.length(chain)
        offset, pace = 0, ReadPace(PART)
        while left:
            elements = await self._reader.elements(chain, offset, min(left, pace.count))
            if not elements:
                return  # some were deleted, or evicted
            pace.saw(elements)
            self._progress(len(elements))
            parts: dict[int, list[Any]] = defaultdict(list)
            stay = []
            for position, element in enumerate(elements, 1):
                if chain.is_failed:
                    record = msgpack.unpackb(element, raw=True)
                    to = routes.of_entry(record[8], record[0])
                else:
                    to = routes.of_entry(chain.partition, element[8:20])
                if to == self._number:
                    stay.append(position)
                else:
                    parts[to].append(element)
            for to, items in parts.items():
                given = items if chain.is_failed else [chain.rank, chain.partition, items]
                await self._transfer.arrive(to, self._number, chain.label, given, self._sent[to])
                self._sent[to] += len(items)
            left, offset = left - len(elements), offset + len(elements)
            if await self._transfer.depart(
                self._number, chain.label, entries=len(elements) - len(stay), rank=chain.rank,
                partition=chain.partition, count=len(elements), stay=stay, left=left,
                sent=[number for to, items in parts.items() for number in (to, len(items))],
            ):  # fmt: skip
                offset = 0  # those that were read have left, or are at the tail
