"""Moves parts of a crawl from shard to shard, so that they are on disk there before they leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused, Order
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import id_text, refuse
from scrapy_dq.frontier.worker.durability import written

PART = 1_000
"""Most elements, members or tokens in one call."""
WINDOW_BYTES = 32 * 1024 * 1024
"""How much is copied before the disks are waited for."""
DISK_S = 60.0
"""The longest wait for a disk; after that the move goes on, with a doubt."""
SAME_CLOCK_MS = 1_000
_CHANGED = "crawl {!r} has changed meanwhile, or the same command runs elsewhere: this one moves nothing more"
ROLLED_BACK = (
    "the Redis of shard {} was rolled back, or emptied, while it received what was in shard {}: what it had "
    "received last is lost. `scrapy dq clear` deletes the crawl, so that it starts again"
)

ROLLED_BACK_MEANWHILE = (
    "the Redis of shard {} was rolled back, or emptied, while it received what is in shard {}. What it has "
    "lost is still there: repeat the command"
)

ROLLED_BACK_IMPORT = (
    "the Redis of shard {} was rolled back, or emptied, during the import: repeat the command, which stores "
    "again what is lost"
)


class Transfer:
    """Of one reshard.

    Args:
        frontiers: of all shards, those that were and those that will be; home first.
        epoch: of the crawl.
        change: the numbers of shards: `b"<before>><after>"`.
        run, is_open: of home.
        imported: the id of what is imported; empty: it is a reshard.
    """

    def __init__(
        self, frontiers: Sequence[Frontier], epoch: bytes, change: bytes, run: int, is_open: bool,
        imported: str = "",
    ) -> None:  # fmt: skip
        self.frontiers = frontiers
        self.moved = 0
        """Entries that have left their old shard."""
        self.doubts: list[str] = []
        """Why it is not certain that what was moved is on disk; a sentence without a full stop each."""
        self.clocks: dict[int, float] = {}
        """By shard: its time in ms, less that of this process."""
        # RACE: the same command is running elsewhere, or its last call is still on its way: whoever has begun
        # last owns each shard, and all others are refused.
        self._of = epoch, change, uuid4().hex
        self._imported = imported
        self._id = (imported or uuid4().hex).encode()
        self._run, self._is_open = run, is_open
        self._arrived: dict[tuple[int, int], int] = {}
        """By old and new shard: how often something has arrived, as the new one has counted it last."""
        self._got: dict[tuple[int, int], int] = {}
        """The same, when something arrived that has to leave its old shard."""
        self._owed: list[tuple[int, int, list[Any]]] = []
        """What has arrived and has to leave: its old shard, how many entries, arguments of depart.lua."""
        self._touched: dict[int, set[int]] = {}
        """Where something has arrived since the last wait for the disks, and from which old shards."""
        self._bytes = 0

    async def call(self, frontier: Frontier, transition: str, *args: Any) -> Any:
        """Run a script of this reshard on a shard, and return its answer."""
        packed = (msgpack.packb(arg, use_bin_type=False) if isinstance(arg, list) else arg for arg in args)
        with as_unavailable():
            script = Script(transition, Order.FIFO)  # no entry gets a new place, whatever the order
            reply = await script.call(frontier.client, keys.fixed(frontier.name), *self._of, *packed)
        refuse(reply)
        if reply[0] == b"CHANGED":
            raise FrontierRefused(_CHANGED.format(frontier.crawl))
        return reply

    async def change(
        self, number: int, after: int, step: str, *, added: bool = False, sequence: int = 0,
        described: Sequence[bytes] = (), replaces: bytes = b"", on: Frontier | None = None,
    ) -> int:  # fmt: skip
        """Take a step of the reshard in one shard, and return its time in ms.

        Args:
            after: how many shards there will be.
            step: begin, end or tidy.
            added: there was no such shard before.
            sequence, described, replaces: see transitions/reshard.lua.
            on: the frontier to use.
        """
        frontier = on or self.frontiers[number]
        reply = await self.call(
            frontier, "reshard", self._id, int(number == HOME), step, int(added), self._run,
            int(self._is_open), sequence, keys.schema_of(after), list(described), replaces,
        )  # fmt: skip
        if reply[0] == b"LIVE":
            raise FrontierRefused(
                f"worker {id_text(reply[1])} has joined shard {number} of crawl {frontier.crawl!r} "
                f"meanwhile: stop it, and repeat the command: until that is complete, no worker can join"
            )
        if reply[0] == b"LATER":
            raise FrontierRefused(
                f"shard {number} of crawl {frontier.crawl!r} is in a later run than home, whose Redis was "
                f"rolled back: `scrapy dq clear` deletes the crawl, so that it starts again"
            )
        if reply[0] != b"OK":
            raise FrontierRefused(_CHANGED.format(frontier.crawl))
        self._id = reply[2]
        return int(reply[1])

    async def arrive(
        self, to: int, of: int, label: str, items: list[Any], first: int = 0, *, on: Frontier | None = None
    ) -> None:
        """Store *items* of shard *of* in shard *to*. Source: transitions/arrive.lua

        Args:
            first: of lists, how many elements were sent before.
            on: the frontier to use.
        """
        reply = await self.call(on or self.frontiers[to], "arrive", of, label, first, items)
        if reply[0] == b"GAP":
            raise self._rolled_back(to, of)
        if int(reply[1]) != self._arrived.get((of, to), int(reply[1]) - 1) + 1:
            raise self._rolled_back(to, of)
        self._arrived[of, to] = int(reply[1])
        if items:  # else it was only something to wait for (`on_disk`)
            self._got[of, to] = int(reply[1])
        self._touched.setdefault(to, set()).add(of)
        for item in items:
            if isinstance(item, (bytes, list)):
                self._bytes += len(item) if isinstance(item, bytes) else sum(map(len, item))

    def _rolled_back(self, to: int, of: int) -> FrontierRefused:
        if self._imported:
            return FrontierRefused(ROLLED_BACK_IMPORT.format(to))
        told = ROLLED_BACK_MEANWHILE if (of, to) in self._arrived else ROLLED_BACK
        return FrontierRefused(told.format(to, of))

    async def depart(
        self, of: int, label: str, items: Sequence[bytes] = (), *, entries: int = 0, rank: int = 0,
        partition: bytes = b"", count: int = 0, stay: Sequence[int] = (), left: int = 0,
        sent: Sequence[int] = (),
    ) -> bool:  # fmt: skip
        """Have what has arrived elsewhere leave a shard, as soon as it is on the disks there.

        Args:
            entries: how many entries that are.
            rank, partition, count, stay, left, sent: see transitions/depart.lua.
        Returns:
            whether it, and all before it, has left.
        """
        args = [label, rank, partition, count, stay, left, sent, items]
        self._owed.append((of, entries, args))
        if self._bytes < WINDOW_BYTES and len(self._owed) < PART:
            return False
        await self.complete()
        return True

    async def complete(self) -> None:
        """Wait for the disks, and have everything leave that has arrived."""
        if self._touched:
            await self.on_disk(sorted(self._touched))
        for of, entries, args in self._owed:
            await self._depart_now(of, *args)
            self.moved += entries
        self._owed, self._bytes = [], 0

    async def _depart_now(
        self, of: int, label: str, rank: int = 0, partition: bytes = b"", count: int = 0,
        stay: Sequence[int] = (), left: int = 0, sent: Sequence[int] = (), items: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        """Source: transitions/depart.lua"""
        frontier = self.frontiers[of]
        gave = [number for (source, to), got in self._got.items() if source == of for number in (to, got)]
        await self.call(
            frontier, "depart", label, rank, partition, count, list(stay), left, list(sent), list(items), gave
        )

    async def on_disk(self, shards: Iterable[int]) -> None:
        """Wait until what these shards have stored is on disk, and on their replicas."""

        async def wait(number: int) -> None:
            # Once more, with nothing: whether what arrived from them before is still there.
            olds = sorted(self._touched.pop(number, {HOME}))

            async def look(alone: Frontier) -> None:
                for of in olds:
                    await self.arrive(number, of, "seeds", [], on=alone)

            await self.written(number, look)

        await asyncio.gather(*map(wait, shards))

    async def written(self, number: int, write: Callable[[Frontier], Awaitable[object]]) -> None:
        """Write to a shard with *write*, and wait until it is on disk, and on its replicas."""
        doubt = await written(self.frontiers[number], write, time.monotonic() + DISK_S)
        if doubt and doubt not in self.doubts:
            self.doubts.append(doubt)

    def in_time_of(self, to: int, of: int, items: list[Any]) -> list[Any]:
        """Return items, of a time and a member in turn, with the times of another shard's clock."""
        ahead = round(self.clocks[to] - self.clocks[of])
        if abs(ahead) <= SAME_CLOCK_MS:
            return items
        return [item + ahead if isinstance(item, int) else item for item in items]
