"""A change of the number of shards of a crawl without members, from its first step to its last.

While it lasts, no worker can join. Where the crawl had no shard before, it is imported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from redis.exceptions import ResponseError

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.flush import purge
from scrapy_dq.frontier.admin.shards import before_and_after
from scrapy_dq.frontier.errors import as_unavailable, moved_to
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.frontier.resharding.transfer import ROLLED_BACK, Transfer

_HOLD_ENTRIES = ("bands", "more_bands", "returned", "quarantine", "declined", "delayed", "dead", "failed")


class ShardChange:
    """Of a crawl in *before* shards, to *after*."""

    def __init__(
        self, frontiers: Sequence[Frontier], before: int, after: int, home: dict[bytes, bytes],
        described: Sequence[bytes], at_home: Sequence[bytes] = (), imported: str = "",
    ) -> None:  # fmt: skip
        """
        Args:
            home: its meta there; of an import: what it will be.
            described, at_home: names of fields of *home* that each new shard takes; that home takes.
            imported: see `Transfer`.
        """
        self._frontiers, self._before, self._after = frontiers, before, after
        self._epoch, run = home[b"epoch"], int(home[b"run"])
        is_open = home.get(b"phase") == b"open"
        self.transfer = Transfer(frontiers, self._epoch, b"%d>%d" % (before, after), run, is_open, imported)
        self._described = [part for name in described if name in home for part in (name, home[name])]
        self._at_home = [part for name in at_home for part in (name, home[name])]

    async def begin(self, metas: Sequence[dict[bytes, bytes]], sequence: int = 0) -> None:
        """From now on no worker can join; all shards exist that will be.

        Args:
            metas: of all *frontiers*.
            sequence: the least that the crawl goes on from.
        """
        sequence = max(sequence, *(counts_of(meta)[0] for meta in metas))
        clocks = self.transfer.clocks
        for number, meta in enumerate(metas):
            if number < self._after or meta.get(b"epoch") == self._epoch:
                sent = time.monotonic()
                described = self._described + (self._at_home if number == HOME else [])
                now_ms = await self.transfer.change(
                    number, self._after, "begin", added=number >= self._before, sequence=sequence,
                    described=[*described, b"phase", b"open"], replaces=meta.get(b"epoch", b""),
                )  # fmt: skip
                clocks[number] = now_ms - sent * 1000
        await self._refuse_if_one_was_rolled_back()
        await self.transfer.on_disk(clocks)

    async def _refuse_if_one_was_rolled_back(self) -> None:
        """What has left a shard must have arrived in its new one."""
        metas = [await meta_of(each) for each in self._frontiers]
        for number, meta in enumerate(metas[: self._before]):
            for name, gave in meta.items():
                if name.startswith(b"reshard:gave ") and meta.get(b"epoch") == self._epoch:
                    to = int(name.rpartition(b" ")[2])
                    if int(metas[to].get(b"reshard:got %d" % number, 0)) < int(gave):
                        raise FrontierRefused(ROLLED_BACK.format(to, number))

    async def end(self) -> None:
        """Delete the shards that are no more; from the last step on, workers can join."""
        await self._refuse_if_one_was_rolled_back()
        for number in range(self._after, self._before):
            if number in self.transfer.clocks:
                await self._keep_sums(number)
            await self._delete(number)
        await self.transfer.on_disk(range(self._after))
        for number in range(1, self._after):
            await self.transfer.change(number, self._after, "end")
        await self.transfer.written(
            HOME, lambda home: self.transfer.change(HOME, self._after, "end", on=home)
        )
        for number in range(1, self._after):
            await self.transfer.change(number, self._after, "tidy")

    async def _keep_sums(self, number: int) -> None:
        """Add the sums of a shard that will be no more to those of home, if nothing else is left in it."""
        frontier = self._frontiers[number]
        meta, prefix = await meta_of(frontier), keys.prefix(frontier.name)
        with as_unavailable():
            left = [name for name in _HOLD_ENTRIES if await frontier.client.exists(prefix + name)]
        if left:
            raise FrontierRefused(
                f"shard {number} of crawl {frontier.crawl!r} holds requests that could not be moved "
                f"({', '.join(left)}): it was not deleted, and no worker can join"
            )
        done, failed = counts_of(meta)[3:5]
        told = (await meta_of(self._frontiers[HOME])).get(b"gone_elsewhere", b"")
        known = {int(of): int(count) for of, count in re.findall(rb"(\d{1,9}):(\d{1,15}) ", told)}
        sums = [done, failed, max(0, int(meta.get(b"gone", 0)) - known.get(number, 0))]
        await self.transfer.arrive(HOME, number, "sums", sums)
        await self.transfer.on_disk([HOME])

    async def _delete(self, number: int) -> None:
        """Delete what is left of a shard, also of one that an interrupted call has deleted in part."""
        frontier = self._frontiers[number]
        while (await frontier.flush([], force=True)).left:
            pass
        await purge([frontier])


async def end_again(frontiers: Sequence[Frontier], metas: Sequence[dict[bytes, bytes]]) -> None:
    """End a complete change in shards that were rolled back since, or where its last steps are missing."""
    epoch = metas[HOME][b"epoch"]
    for number, meta in enumerate(metas):
        stored = meta.get(b"shards", b"1")
        marked = b">" in stored or any(name.startswith(b"reshard:") for name in meta)
        if number != HOME and marked and meta.get(b"epoch") == epoch:
            before, after = before_and_after(stored)
            run = int(metas[HOME][b"run"])
            transfer = Transfer(frontiers, epoch, b"%d>%d" % (before, after), run, False)
            for step in ("begin", "end", "tidy"):
                await transfer.change(number, after, step)


async def meta_of(frontier: Frontier) -> dict[bytes, bytes]:
    """Return the meta of a shard; in a cluster, its node is found by this."""
    with as_unavailable():
        for last in (False,) * 3 + (True,):
            try:
                return dict(await frontier.client.hgetall(keys.meta(frontier.name)))
            except ResponseError as error:
                if last or moved_to(error) is None:
                    raise
    raise AssertionError("the last try returns or raises")


def counts_of(meta: dict[bytes, bytes]) -> list[int]:
    """Return the counts of a shard (lua/lib/state.lua): sequence, waiting, in flight, done, failed, ..."""
    return [*map(int, meta[b"counts"].split())] if b"counts" in meta else [0] * 12
