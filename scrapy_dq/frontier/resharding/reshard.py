"""Change the number of shards of a crawl at rest.

What a shard holds and another one will hold is copied there, then waits until it is on that Redis's disk, and
only then leaves the old one: killed at any moment, and run again, a reshard loses nothing. Lists are read
from their head on in one fixed order, and each pair of shards counts the elements that went from one to the
other, so that none is stored twice. All else is a set.

The fingerprint of a request does not name its partition. So where there are partitions, each shard gets a
copy of the tokens of every old one from which it gets partitions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.flush import flush_under_workers
from scrapy_dq.frontier.admin.shards import before_and_after
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused, Seen
from scrapy_dq.frontier.resharding.routes import Routes
from scrapy_dq.frontier.resharding.source import Source
from scrapy_dq.frontier.resharding.transfer import ROLLED_BACK, Transfer
from scrapy_dq.frontier.worker.audit import audit

_OF_HOME = (
    b"epoch", b"run", b"order", b"seen_kind", b"fingerprinter", b"spider", b"partition_by", b"spider_args",
    b"run_name", b"signing", b"schema", b"keep_seen", b"seen_since", b"seen_for", b"limits_set", b"began",
)  # fmt: skip
"""What a new shard takes from home's meta."""
_HOLD_ENTRIES = ("bands", "more_bands", "returned", "quarantine", "delayed", "dead", "failed")


@dataclass
class Resharded:
    """What a call has done."""

    before: int
    """The number of shards when the reshard was begun."""
    entries: int = 0
    """Waiting and delayed requests, failed ones and dead letters that have left their old shard."""
    tokens: int = 0
    """Fingerprints and other tokens that were copied, each counted once per copy."""
    doubts: list[str] = field(default_factory=list)
    """Why it is not certain that what was moved is on disk; a sentence without a full stop each."""


async def reshard(
    frontiers: Sequence[Frontier], to: int, progress: Callable[[int], object] = lambda count: None
) -> Resharded:
    """Move a crawl without members into *to* shards; the next call continues one that was interrupted.

    Until it is complete no worker can join.

    Args:
        frontiers: of all shards, those that were and those that will be; home first.
        progress: called with the number of further entries and tokens that were read.
    Raises:
        FrontierUnavailable: a shard does not answer: repeat the call.
        FrontierRefused: it is not possible; the message says why, and whether something was moved.
    """
    metas = [await _meta_of(each) for each in frontiers]
    home, crawl = metas[HOME], frontiers[HOME].crawl
    if b"epoch" not in home:
        raise FrontierRefused(f"there is no crawl {crawl!r}")
    before, after = before_and_after(home.get(b"shards"))
    if after not in (before, to):
        raise FrontierRefused(
            f"crawl {crawl!r} is half moved from {before} to {after} shards: finish that first, with "
            f"--to {after}"
        )
    if before == to:
        await _end_again(frontiers, metas)
        return Resharded(before)
    if b">" in home.get(b"seen_kind", b""):
        raise FrontierRefused(f"the seen set of crawl {crawl!r} is half converted: finish that first")
    _refuse_if_one_is_lost(crawl, metas, before)
    moving = _Reshard(frontiers, before, to, home)
    await moving.begin(metas)
    sources = await moving.move(progress)
    await moving.end()
    transfer = moving.transfer
    return Resharded(before, transfer.moved, sum(each.copied for each in sources), transfer.doubts)


def _refuse_if_one_is_lost(crawl: str, metas: Sequence[dict[bytes, bytes]], before: int) -> None:
    home = metas[HOME]
    if b"shards_exist" not in home:
        return  # its first worker was killed while it joined
    for number in range(1, before):
        was_ended = b"reshard:sums %d" % number in home
        if metas[number].get(b"epoch") != home[b"epoch"] and not was_ended:
            raise FrontierRefused(
                f"shard {number} of crawl {crawl!r} is gone, and with it what waited there: nothing was "
                f"moved. `scrapy dq clear` deletes what is left"
            )


async def _end_again(frontiers: Sequence[Frontier], metas: Sequence[dict[bytes, bytes]]) -> None:
    """End a complete reshard in shards that were rolled back since, or where its last steps are missing."""
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


async def _meta_of(frontier: Frontier) -> dict[bytes, bytes]:
    with as_unavailable():
        return dict(await frontier.client.hgetall(keys.meta(frontier.name)))


class _Reshard:
    """Of a crawl in *before* shards, to *after*; *home*: its meta there."""

    def __init__(
        self, frontiers: Sequence[Frontier], before: int, after: int, home: dict[bytes, bytes]
    ) -> None:
        self._frontiers, self._before, self._after = frontiers, before, after
        self._epoch, self._run = home[b"epoch"], int(home[b"run"])
        is_open = home.get(b"phase") == b"open"
        self.transfer = Transfer(frontiers, self._epoch, b"%d>%d" % (before, after), self._run, is_open)
        self._described = [part for name in _OF_HOME if name in home for part in (name, home[name])]
        kind = Seen.EXACT
        with suppress(ValueError):
            kind = Seen(home.get(b"seen_kind", b"").decode("utf-8", "replace"))
        self._routes = Routes(before, after, home.get(b"partition_by") != b"none", kind)

    async def begin(self, metas: Sequence[dict[bytes, bytes]]) -> None:
        """From now on no worker can join; all shards exist that will be."""
        sequence = max(_counts(meta)[0] for meta in metas)
        clocks = self.transfer.clocks
        for number, meta in enumerate(metas):
            if number < self._after or meta.get(b"epoch") == self._epoch:
                sent = time.monotonic()
                now_ms = await self.transfer.change(
                    number, self._after, "begin", added=number >= self._before, sequence=sequence,
                    described=[*self._described, b"phase", b"open"],
                )  # fmt: skip
                clocks[number] = now_ms - sent * 1000
        await self._refuse_if_one_was_rolled_back()
        await self.transfer.on_disk(clocks)

    async def _refuse_if_one_was_rolled_back(self) -> None:
        """What has left a shard must have arrived in its new one."""
        metas = [await _meta_of(each) for each in self._frontiers]
        for number, meta in enumerate(metas[: self._before]):
            for name, gave in meta.items():
                if name.startswith(b"reshard:gave ") and meta.get(b"epoch") == self._epoch:
                    to = int(name.rpartition(b" ")[2])
                    if int(metas[to].get(b"reshard:got %d" % number, 0)) < int(gave):
                        raise FrontierRefused(ROLLED_BACK.format(to, number))

    async def move(self, progress: Callable[[int], object]) -> list[Source]:
        sources = []
        for number in range(self._before):
            frontier = self._frontiers[number]
            if number not in self.transfer.clocks:
                continue  # it is no more
            if number >= self._after:
                # A list that is in no index would be deleted with this shard.
                await audit(frontier, self._epoch.decode(), self._run)
            source = Source(number, self.transfer, self._routes, progress)
            await source.move(await _meta_of(frontier))
            sources.append(source)
        await self.transfer.complete()
        return sources

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
        meta, prefix = await _meta_of(frontier), keys.prefix(frontier.name)
        with as_unavailable():
            left = [name for name in _HOLD_ENTRIES if await frontier.client.exists(prefix + name)]
        if left:
            raise FrontierRefused(
                f"shard {number} of crawl {frontier.crawl!r} holds requests that could not be moved "
                f"({', '.join(left)}): it was not deleted, and no worker can join"
            )
        done, failed = _counts(meta)[3:5]
        told = (await _meta_of(self._frontiers[HOME])).get(b"gone_elsewhere", b"")
        known = {int(of): int(count) for of, count in re.findall(rb"(\d{1,9}):(\d{1,15}) ", told)}
        gone = int(meta[b"gone"]) if meta.get(b"gone", b"").isdigit() else 0
        sums = [max(0, done), max(0, failed), max(0, gone - known.get(number, 0))]
        await self.transfer.arrive(HOME, number, "sums", sums)
        await self.transfer.on_disk([HOME])

    async def _delete(self, number: int) -> None:
        """Delete what is left of a shard, also of one that an interrupted call has deleted in part."""
        while (await flush_under_workers(self._frontiers[number])).left:
            pass


def _counts(meta: dict[bytes, bytes]) -> list[int]:
    """Return the counts of a shard (lua/lib/state.lua): sequence, waiting, in flight, done, failed, ..."""
    with suppress(ValueError):  # somebody else may have written them
        return [*map(int, meta.get(b"counts", b"").split(b" ")), 0, 0, 0, 0, 0]
    return [0] * 5
