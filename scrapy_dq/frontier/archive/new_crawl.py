"""The shards of a crawl that is loaded, from the first call to the last. Until then, no worker can join.

Each shard counts the calls, which shows whether its Redis was rolled back between two of them.

Source of all: lua/transitions/load.lua
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import refuse
from scrapy_dq.frontier.worker.durability import written

DISK_S = 60.0
"""The longest wait for a disk; after that the load goes on, with a doubt."""
_MARK = b"load:stored"
"""In meta, while a shard is loaded: how often something was stored."""
_OF_ALL = (
    b"epoch", b"run", b"phase", b"schema", b"order", b"seen_kind", b"fingerprinter", b"spider",
    b"partition_by", b"seen_since", b"spider_args", b"run_name", b"keep_seen", b"limits_set", b"began",
    b"cleared", b"seen_for", b"imported",
)  # fmt: skip
"""What is in the meta of each shard; the rest is in that of home."""


class NewCrawl:
    """The new crawl of one call of `load`."""

    def __init__(self, frontiers: Sequence[Frontier], epoch: bytes = b"") -> None:
        """
        Args:
            frontiers: of all shards that there will be, home first.
            epoch: of a crawl that is loaded already; empty: a new one.
        """
        self._frontiers = frontiers
        self.doubts: list[str] = []
        """Why it is not certain that everything is on disk; a sentence without a full stop each."""
        # RACE: the same command is running elsewhere, or its last call is still on its way: whoever has begun
        # last has given each shard another epoch, and all others are refused.
        self._epoch = epoch or uuid4().hex.encode()
        self._stored: dict[int, int] = defaultdict(int)
        """By shard: how often something was stored."""

    async def begin(
        self, metas: Sequence[dict[bytes, bytes]], described: dict[bytes, bytes], sequence: int
    ) -> None:
        """Delete what an earlier attempt has stored; from now on no worker can join.

        Args:
            metas: what each shard has by now.
            described: the meta of home.
            sequence: the highest of the crawl: an entry keeps its turn, and later ones come after it.
        """
        described = {b"epoch": self._epoch, **described}
        for number, meta in enumerate(metas):
            fields = [part for name in described if number == HOME or name in _OF_ALL
                      for part in (name, described[name])]  # fmt: skip
            await self._call(number, "begin", [meta.get(b"epoch", b""), sequence, fields])

    async def store(self, number: int, label: str, items: list[Any], on: Frontier | None = None) -> None:
        """Store *items* in a shard.

        Args:
            on: the frontier to use.
        """
        self._stored[number] += 1
        if await self._call(number, label, items, on) != self._stored[number]:
            raise FrontierRefused(
                f"the Redis of shard {number} of crawl {self._frontiers[HOME].crawl!r} was rolled back, or "
                f"emptied, while it was filled: repeat the command, which begins again"
            )

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
        await asyncio.gather(*(self._written(n, partial(self.store, n, "seeds", [])) for n in shards))
        await self._written(HOME, partial(self._call, HOME, "end", [done, failed, gone]))
        for number in shards:
            await self._call(number, "tidy", [])

    async def end_again(self, metas: Sequence[dict[bytes, bytes]]) -> None:
        """Take the last steps of a load that was killed after home had ended: that may not be on its disk."""
        for number, meta in enumerate(metas):
            if _MARK in meta:
                await self._written(number, partial(self._call, number, "tidy", []))

    async def _call(self, number: int, label: str, items: list[Any], on: Frontier | None = None) -> int:
        frontier = on or self._frontiers[number]
        names, packed = keys.fixed(frontier.name), msgpack.packb(items, use_bin_type=False)
        with as_unavailable():
            reply = await Script("load").call(
                frontier.client, names, self._epoch, len(self._frontiers), label, packed
            )
        refuse(reply)
        if reply[0] == b"CHANGED":
            raise FrontierRefused(
                f"crawl {frontier.crawl!r} has changed meanwhile, or the same command runs elsewhere: this "
                f"one does nothing more"
            )
        return int(reply[1])

    async def _written(self, number: int, write: Callable[[Frontier], Awaitable[object]]) -> None:
        doubt = await on_disk(self._frontiers[number], write)
        if doubt and doubt not in self.doubts:
            self.doubts.append(doubt)


async def on_disk(frontier: Frontier, write: Callable[[Frontier], Awaitable[object]]) -> str:
    """Write to a shard with *write*, and wait until it is on disk, and on its replicas; return a doubt."""
    return await written(frontier, write, time.monotonic() + DISK_S)
