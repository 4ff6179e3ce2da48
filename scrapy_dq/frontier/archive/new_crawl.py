"""The shards of a crawl that is being loaded. No worker can join before the load ends.

Each shard counts the calls that store something. The count reveals a roll-back of Redis between two calls.

Source of all calls: lua/transitions/load.lua
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
"""The longest wait for a disk. After this time, the load continues, and adds the reason to `doubts`."""
_MARK = b"load:stored"
"""Field of meta while a shard is loaded: the number of calls that have stored something."""
_OF_ALL = (
    b"epoch", b"run", b"phase", b"schema", b"order", b"seen_kind", b"fingerprinter", b"spider",
    b"partition_by", b"seen_since", b"spider_args", b"run_name", b"keep_seen", b"limits_set", b"began",
    b"cleared", b"seen_for", b"imported",
)  # fmt: skip
"""Fields in the meta of each shard; only home's meta has the other fields."""


class NewCrawl:
    """The new crawl that one call of `load` stores."""

    def __init__(self, frontiers: Sequence[Frontier], epoch: bytes = b"") -> None:
        """
        Args:
            frontiers: all shards of the new crawl, home first.
            epoch: the epoch of a crawl that is loaded already; empty: a new crawl.
        """
        self._frontiers = frontiers
        self.doubts: list[str] = []
        """Reasons why some data may not be on disk yet: sentences without a full stop."""
        # RACE: another process may be running the same command, or a call of an earlier attempt may arrive
        # late. The attempt that began last has given its epoch to each shard. Shards refuse calls with other
        # epochs.
        self._epoch = epoch or uuid4().hex.encode()
        self._stored: dict[int, int] = defaultdict(int)
        """By shard: the number of calls that have stored something."""

    async def begin(
        self, metas: Sequence[dict[bytes, bytes]], described: dict[bytes, bytes], sequence: int
    ) -> None:
        """Delete the data of an earlier attempt; from now on no worker can join.

        Args:
            metas: the present meta of each shard.
            described: the new meta of home.
            sequence: the highest sequence of the old crawl. Entries keep their sequences, and later entries
                get higher ones.
        """
        described = {b"epoch": self._epoch, **described}
        for number, meta in enumerate(metas):
            fields = [part for name in described if number == HOME or name in _OF_ALL
                      for part in (name, described[name])]  # fmt: skip
            await self._call(number, "begin", [meta.get(b"epoch", b""), sequence, fields])

    async def store(self, number: int, label: str, items: list[Any], on: Frontier | None = None) -> None:
        """Store *items* in a shard.

        Args:
            on: the frontier to use instead of the shard's own one, for example with its own connection.
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
            done, failed, gone: numbers of requests of this run. *failed* does not include the requests that
                the other shards count.
        """
        others = range(1, len(self._frontiers))
        for number in others:
            await self._call(number, "end", [])
        # This call stores no items, but shows whether the shard still has the data of the earlier calls.
        shards = range(len(self._frontiers))
        await asyncio.gather(*(self._written(n, partial(self.store, n, "seeds", [])) for n in shards))
        await self._written(HOME, partial(self._call, HOME, "end", [done, failed, gone]))
        for number in shards:
            await self._call(number, "tidy", [])

    async def end_again(self, metas: Sequence[dict[bytes, bytes]]) -> None:
        """Complete a load that was killed after its call "end" at home. Its data may not be on disk yet."""
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
                f"crawl {frontier.crawl!r} has just changed, or the same command runs elsewhere: this "
                f"one does nothing more"
            )
        return int(reply[1])

    async def _written(self, number: int, write: Callable[[Frontier], Awaitable[object]]) -> None:
        doubt = await on_disk(self._frontiers[number], write)
        if doubt and doubt not in self.doubts:
            self.doubts.append(doubt)


async def on_disk(frontier: Frontier, write: Callable[[Frontier], Awaitable[object]]) -> str:
    """Call *write* with a shard, then wait for its disk and replicas; return "" or one of `doubts`."""
    return await written(frontier, write, time.monotonic() + DISK_S)
