"""Reads all that one shard of a crawl holds, in bounded steps; nothing is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.read_pace import ReadPace
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Seen

PART = 1_000
"""Most elements, members or tokens in one part."""
TIMED = ("delayed", "earliest", "blocked")
"""Sorted sets whose scores are times, in ms of the crawl's clock."""
FIRST_BUCKETS = 1024
_HASHES = ("limits", "spent", "dead", "messages")
Found = list[tuple[bytes, list[Any]]]
"""Tokens, members or fields, each with what transitions/arrive.lua takes of it."""


class Chain(NamedTuple):
    """A list of entries; they compare in the order in which a reshard moves lists."""

    is_failed: bool
    partition: bytes = b""
    rank: int = 0

    @property
    def label(self) -> str:
        return "failed" if self.is_failed else "backlog"

    @property
    def name(self) -> bytes:
        return b"failed" if self.is_failed else b"backlog:%d:%s" % (self.rank, self.partition)


class ShardReader:
    """Of one shard.

    Raises, whatever is read:
        FrontierUnavailable: no usable reply.
    """

    def __init__(self, frontier: Frontier) -> None:
        self._client = frontier.client
        self._prefix = keys.prefix(frontier.name)

    async def tokens(self, label: str, kind: Seen) -> AsyncIterator[Found]:
        """Yield parts of a set of tokens.

        Args:
            label: seen, seeds, admitted or adopted.
            kind: of `seen`. If it is compact, the tokens are members of its buckets (lua/seen/buckets.lua).
        """
        kind = kind if label == "seen" else Seen.EXACT
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

    async def _buckets(self) -> AsyncIterator[Found]:
        with as_unavailable():
            name = self._prefix + "seen"
            generation, buckets = await self._client.hmget(name, "generation", "buckets")
        found: Found = []
        for n in range(int(buckets) if generation else 0):
            with as_unavailable():
                members = await self._client.smembers(b"%s:%s:%d" % (name.encode(), generation, n))
            found += ((member, [n % FIRST_BUCKETS, member]) for member in members)
            if len(found) >= PART:
                yield found
                found = []
        yield found

    async def members(self, label: str) -> AsyncIterator[Found]:
        """Yield parts of a hash or a sorted set that is not one of tokens."""
        cursor, pace = -1, ReadPace(PART)
        scan = self._client.hscan if label in _HASHES else self._client.zscan
        while cursor:
            with as_unavailable():
                cursor, read = await scan(self._prefix + label, max(0, cursor), count=pace.count)
            if label in _HASHES:
                found = [(each, [each, value]) for each, value in read.items()]
            elif label in TIMED:
                found = [(each, [int(at), each]) for each, at in read]
            else:
                found = [(each, [each]) for each, _ in read]
            pace.saw([items[-1] for _, items in found])
            for at in range(0, len(found), PART):
                yield found[at : at + PART]

    async def backlog(self) -> list[Chain]:
        """Return the lists of the backlog, in the order of moving."""
        found: set[Chain] = set()
        cursor = -1
        while cursor:
            with as_unavailable():
                cursor, best = await self._client.hscan(self._prefix + "bands", max(0, cursor), count=PART)
            found |= _chains(best.items())
        cursor = -1
        while cursor:
            with as_unavailable():
                name = self._prefix + "more_bands"
                cursor, more = await self._client.zscan(name, max(0, cursor), count=PART)
            split = (member.partition(b"\0") for member, _ in more)
            found |= _chains((partition, band) for partition, _, band in split)
        return sorted(found)

    async def length(self, chain: Chain) -> int:
        with as_unavailable():
            return int(await self._client.llen(self._prefix.encode() + chain.name))

    async def heads(self, chains: Sequence[Chain], count: int) -> list[list[bytes]]:
        """Return the first *count* elements of each of some lists."""
        with as_unavailable():
            pipe = self._client.pipeline(transaction=False)
            for chain in chains:
                pipe.lrange(self._prefix.encode() + chain.name, 0, count - 1)
            return list(await pipe.execute())

    async def elements(self, chain: Chain, first: int, count: int) -> list[bytes]:
        """Return *count* elements of a list, from position *first* on."""
        with as_unavailable():
            name = self._prefix.encode() + chain.name
            return list(await self._client.lrange(name, first, first + count - 1))


def _chains(bands: Iterable[tuple[bytes, bytes]]) -> set[Chain]:
    return {Chain(False, partition, keys.rank_of(band)) for partition, band in bands}
