"""The shards of a crawl that is loaded, from the first call to the last. Until then, no worker can join.

Each stores what it gets once, however often that is sent, and counts the calls: so a Redis that was rolled
back meanwhile is noticed. Source of all: lua/transitions/load.lua
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.archive.header import meta_of
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import refuse
from scrapy_dq.frontier.worker.durability import written

DISK_S = 60.0
"""The longest wait for a disk; after that the load goes on, with a doubt."""
_OWNER = b"load:owner"
"""A mark in meta, while a shard is loaded."""
_OF_ALL = (
    b"epoch", b"run", b"phase", b"schema", b"order", b"seen_kind", b"fingerprinter", b"spider",
    b"partition_by", b"seen_since", b"spider_args", b"run_name", b"keep_seen", b"limits_set", b"began",
    b"cleared", b"seen_for", b"imported",
)  # fmt: skip
"""What is in the meta of each shard; the rest is in that of home."""


class NewCrawl:
    """The new crawl of one call of `load`."""

    def __init__(self, frontiers: Sequence[Frontier], epoch: bytes) -> None:
        """
        Args:
            frontiers: of all shards that there will be, home first.
            epoch: of the crawl.
        """
        self._frontiers = frontiers
        self.doubts: list[str] = []
        """Why it is not certain that everything is on disk; a sentence without a full stop each."""
        # RACE: the same command is running elsewhere, or its last call is still on its way: whoever has begun
        # last owns each shard, and all others are refused.
        self._epoch, self._owner = epoch, uuid4().hex
        self._stored: dict[int, int] = {}
        """By shard: how often something was stored, as it has counted last."""

    async def begin(
        self, metas: Sequence[dict[bytes, bytes]], described: dict[bytes, bytes], sequence: int
    ) -> list[int]:
        """From now on no worker can join.

        Args:
            metas: what each shard has by now.
            described: the meta of home.
            sequence: the highest of the crawl: an entry keeps its turn, and later ones come after it.
        Returns:
            how many elements of lists each shard has, of an interrupted load.
        """
        described = {b"epoch": self._epoch, **described}
        for number, meta in enumerate(metas):
            fields = [part for name in described if number == HOME or name in _OF_ALL
                      for part in (name, described[name])]  # fmt: skip
            await self._call(number, "begin", [meta.get(b"epoch", b""), sequence, fields])
        return [int((await meta_of(each)).get(b"load:elements", 0)) for each in self._frontiers]

    async def store(
        self, number: int, label: str, items: list[Any], first: int = 0, on: Frontier | None = None
    ) -> None:
        """Store *items* in a shard.

        Args:
            first: of lists, how many elements were sent before.
            on: the frontier to use.
        """
        status, count = await self._call(number, label, items, first, on)
        if status == b"GAP" or count != self._stored.get(number, count - 1) + 1:
            raise FrontierRefused(
                f"the Redis of shard {number} of crawl {self._frontiers[HOME].crawl!r} was rolled back, or "
                f"emptied, while it was filled: repeat the command, which stores again what is lost"
            )
        self._stored[number] = count

    async def end(self, done: int, failed: int, gone: int) -> None:
        """Wait for the disks, and let workers join.

        Args:
            done, failed, gone: how many requests of this run are; of those that have failed, without what
                other shards than home count.
        """
        others = range(1, len(self._frontiers))
        for number in others:
            await self._call(number, "end", [])
        # Once more, with nothing: whether what was stored before is still there.
        shards = range(len(self._frontiers))
        await asyncio.gather(
            *(self._written(n, lambda alone, n=n: self.store(n, "seeds", [], on=alone)) for n in shards)  # type: ignore[misc]
        )
        await self._written(HOME, lambda alone: self._call(HOME, "end", [done, failed, gone], on=alone))
        for number in shards:
            await self._call(number, "tidy", [])

    async def end_again(self, metas: Sequence[dict[bytes, bytes]]) -> None:
        """Take the last steps of a load that was killed after home had ended: that may not be on its disk."""

        def tidy(number: int) -> Callable[[Frontier], Awaitable[object]]:
            return lambda alone: self._call(number, "tidy", [], on=alone, owner=metas[number][_OWNER])

        for number, meta in enumerate(metas):
            if _OWNER in meta:
                await self._written(number, tidy(number))

    async def _call(
        self, number: int, label: str, items: list[Any], first: int = 0, on: Frontier | None = None,
        owner: bytes = b"",
    ) -> tuple[bytes, int]:  # fmt: skip
        frontier = on or self._frontiers[number]
        script = Script("load")
        packed = msgpack.packb(items, use_bin_type=False)
        with as_unavailable():
            reply = await script.call(
                frontier.client, keys.fixed(frontier.name), self._epoch, len(self._frontiers),
                owner or self._owner, label, first, packed,
            )  # fmt: skip
        refuse(reply)
        if reply[0] == b"CHANGED":
            raise FrontierRefused(
                f"crawl {frontier.crawl!r} has changed meanwhile, or the same command runs elsewhere: this "
                f"one does nothing more"
            )
        return reply[0], int(reply[1]) if reply[1:] else 0

    async def _written(self, number: int, write: Callable[[Frontier], Awaitable[object]]) -> None:
        doubt = await on_disk(self._frontiers[number], write)
        if doubt and doubt not in self.doubts:
            self.doubts.append(doubt)


async def on_disk(frontier: Frontier, write: Callable[[Frontier], Awaitable[object]]) -> str:
    """Write to a shard with *write*, and wait until it is on disk, and on its replicas; return a doubt."""
    return await written(frontier, write, time.monotonic() + DISK_S)
