"""Stores parts as a new crawl with any order, kind of seen and number of shards.

After an interruption, the next load begins again: it first deletes the data of the earlier attempt.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapy_dq.frontier import keys, records
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.header import meta_of
from scrapy_dq.frontier.archive.new_crawl import NewCrawl
from scrapy_dq.frontier.archive.parts import ENTRIES, TOKENS, Header, Part, Shape, regrouped
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME, shard_of
from scrapy_dq.frontier.messages import apart
from scrapy_dq.frontier.model import FrontierRefused, Seen, clamped
from scrapy_dq.frontier.records import CLAIMED, FAILED, WAITING, Entry

_PART = 500
"""Maximum number of items in one call."""
_OF_PARTITIONS = (parts.LIMITS, parts.BLOCKED, parts.SPENT, parts.EARLIEST)


@dataclass
class Loaded:
    """The result of a load."""

    before: bool = False
    """An earlier call has loaded the same export completely, so this call did nothing."""
    entries: int = 0
    tokens: int = 0
    """Number of fingerprints in the given parts, without expired ones."""
    doubts: list[str] = field(default_factory=list)
    """Reasons why some data may not be on disk yet: sentences without a full stop."""


async def load(
    frontiers: Sequence[Frontier],
    header: Header,
    given: AsyncIterator[Part],
    shape: Shape,
    *,
    priority_of: Callable[[bytes], int],
    progress: Callable[[int], object] = lambda count: None,
    whole: bool = False,
) -> Loaded:
    """Store a crawl that does not exist; after an interruption, the next call begins again.

    Args:
        frontiers: all shards of the new crawl, home first.
        given: all parts of the old crawl.
        shape: the shape of the new crawl.
        priority_of: returns the priority of a payload, for an old crawl whose order has no priorities.
        progress: called with the number of further entries and fingerprints.
        whole: refuse to end if the number of entries in *given* differs from the header.
    Raises:
        FrontierUnavailable: a shard does not answer. Repeat the call.
        FrontierRefused: the crawl exists, is half imported from another export, or was rolled back.
    """
    require_convertible(header, shape.seen)
    if await is_loaded(frontiers, header.id):
        return Loaded(before=True)
    metas = await require_none(frontiers, header.id)
    new = NewCrawl(frontiers)
    await new.begin(metas, _meta_of_new(header, shape), header.sequence)
    loading = _Loading(new, header, shape, priority_of)
    async for part in regrouped(given, _PART):
        await loading.take(part)
        if part.kind == parts.SEEN or part.kind in ENTRIES:
            progress(len(part.items))
    if whole and loading.entries != header.entries:
        raise FrontierRefused(
            f"crawl {header.crawl!r} counts {header.entries:,} requests, and {loading.entries:,} were found: "
            f"it was not moved. `scrapy dq clear --all` deletes the incomplete copy, crawl "
            f"{frontiers[HOME].crawl!r}"
        )
    await loading.end()
    return Loaded(False, loading.entries, loading.tokens, new.doubts)


async def is_loaded(frontiers: Sequence[Frontier], id_: str) -> bool:
    """Tell whether the export *id_* was loaded completely; if it was, take the last steps of that load."""
    metas = [await meta_of(each) for each in frontiers]
    home = metas[HOME]
    if home.get(b"imported") != id_.encode() or home.get(b"shards", b"").startswith(b"0>"):
        return False
    await NewCrawl(frontiers, home[b"epoch"]).end_again(metas)
    return True


def require_convertible(header: Header, seen: Seen) -> None:
    """Raise FrontierRefused if the seen set of the old crawl cannot be converted to the kind *seen*."""
    if header.seen is Seen.COMPACT and seen is not Seen.COMPACT and header.tokens:
        raise FrontierRefused(
            "`seen` is compact, and does not hold whole fingerprints: it cannot become "
            f"{seen.value}. Set DQ_SEEN = 'compact'"
        )


async def require_none(frontiers: Sequence[Frontier], id_: str) -> list[dict[bytes, bytes]]:
    """Raise FrontierRefused if the crawl exists, unless a load from the export *id_* was interrupted.

    Returns:
        the meta of each shard.
    """
    metas, crawl = [await meta_of(each) for each in frontiers], frontiers[HOME].crawl
    home, id_bytes = metas[HOME], id_.encode()
    if home.get(b"shards", b"").startswith(b"0>"):
        if home.get(b"imported") != id_bytes:
            raise FrontierRefused(
                f"crawl {crawl!r} is half imported, from another export: import that to the end, or delete "
                f"it with `scrapy dq clear --all`. Nothing was changed"
            )
        if home[b"shards"] != b"0>%d" % len(frontiers):
            raise FrontierRefused(
                f"crawl {crawl!r} is half imported with DQ_SHARDS = {home[b'shards'][2:].decode()}: use "
                f"this number. Nothing was changed"
            )
    for number, meta in enumerate(metas):
        if b"epoch" in meta and meta.get(b"imported") != id_bytes:
            where = f"shard {number} of crawl" if number else "crawl"
            raise FrontierRefused(
                f"{where} {crawl!r} already exists: delete it with `scrapy dq clear --all`, "
                f"or choose another name with DQ_CRAWL. Nothing was changed"
            )
    return metas


def _meta_of_new(header: Header, shape: Shape) -> dict[bytes, bytes]:
    fields = {
        "run": str(header.run), "schema": keys.schema_of(shape.shards), "order": shape.order.value,
        "seen_kind": shape.seen.value, "fingerprinter": header.fingerprinter, "spider": header.spider,
        "partition_by": header.partition_by,
        "seen_since": str(header.seen_since_ms if shape.seen is Seen.EXPIRING else 0), "imported": header.id,
    }  # fmt: skip
    kept = {b"phase": b"open", b"cleared": b"0"}
    kept |= {name.encode(): value for name, value in header.kept.items()}
    return kept | {name.encode(): value.encode("utf-8", "replace") for name, value in fields.items()}


class _Loading:
    def __init__(
        self, new: NewCrawl, header: Header, shape: Shape, priority_of: Callable[[bytes], int]
    ) -> None:
        self._new, self._header, self._shape, self._priority_of = new, header, shape, priority_of
        self._failed: dict[int, int] = defaultdict(int)
        """By shard: the number of records of failed requests."""
        self.entries = self.tokens = 0

    async def take(self, part: Part) -> None:
        """Store the items of a part, each in its shard."""
        kind, items, label = part.kind, part.items, part.kind
        if kind in ENTRIES:
            self.entries += len(items)
            await self._forget_messages(items)
            items = [self._as_new(each) for each in items]
        elif kind == parts.SEEN:
            if self._header.seen is Seen.EXPIRING:
                items = [item for item in items if item[0] >= self._header.seen_since_ms]
            if self._header.seen is not self._shape.seen:
                label, items = "fingerprints", [item[-1:] for item in items]
            self.tokens += len(items)
        found: dict[int, list[Any]] = defaultdict(list)
        for item in items:
            for to in self._shards_of(part, item):
                found[to].append(item)
        for to, here in found.items():
            if kind == FAILED:
                self._failed[to] += len(here)
            if kind == WAITING:
                label, fields = "backlog", self._lists_of(here)
            elif kind in ENTRIES:
                fields = [field for each in here for field in records.stored(kind, each, self._shape.order)]
            else:
                fields = [field for item in here for field in item]
            await self._new.store(to, label, fields)

    def _lists_of(self, entries: Sequence[Entry]) -> list[Any]:
        """Return rank, partition and elements of each list, in one flat list."""
        lists: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        for each in entries:
            lists[each.rank, each.partition] += records.stored(WAITING, each, self._shape.order)
        return [
            field for (rank, partition), elements in lists.items() for field in (rank, partition, elements)
        ]

    async def _forget_messages(self, entries: Sequence[Entry]) -> None:
        """Acknowledge the messages of streams from which *entries* were made.

        If the new crawl has the name of the old one, the messages are pending in the consumer group of that
        name, and workers would read them again.
        """
        if messages := {apart(each.payload)[0] for each in entries} - {b""}:
            await self._new.store(HOME, "messages", sorted(messages))

    def _as_new(self, entry: Entry) -> Entry:
        """Return an entry as the new crawl stores it: with its rank in the new order, without its message."""
        (_, payload), rank = apart(entry.payload), entry.rank
        if not self._shape.order.by_priority:
            rank = 0
        elif not self._header.order.by_priority:
            rank = -clamped(self._priority_of(payload)) * 4
        is_same = payload is entry.payload and rank == entry.rank
        return entry if is_same else entry._replace(payload=payload, rank=rank)

    async def end(self) -> None:
        elsewhere = sum(self._failed.values()) - self._failed[HOME]
        failed = max(self._failed[HOME], self._header.failed - elsewhere)
        await self._new.end(self._header.done, failed, self._header.gone)

    def _shards_of(self, part: Part, item: Any) -> Sequence[int]:
        """Return the shards that get an item of a part."""
        kind, before, after = part.kind, self._header.shards, self._shape.shards
        if kind in ENTRIES:
            # Without a partition, the entry may go to any shard, because its token is stored separately.
            return (_home_of(item.partition, item.entry_id, after),)
        if kind in _OF_PARTITIONS:
            partition = item[kind in (parts.BLOCKED, parts.EARLIEST)]
            # All old shards have the limits from the settings. But for each partition, only the items in its
            # own shard were in force.
            is_in_force = shard_of(partition, b"", before) == part.shard
            return (_home_of(partition, b"", after),) if is_in_force else ()
        if kind == parts.ADOPTED:  # each shard has all adopted fingerprints
            return range(after) if part.shard == HOME else ()
        if kind in TOKENS:
            is_whole = kind != parts.SEEN or self._header.seen is not Seen.COMPACT
            if is_whole and self._header.partition_by == "none":
                return (shard_of(b"", item[-1], after),)
            return shards_for_all_of(part.shard, before, after)
        return (HOME,)


def _home_of(partition: bytes, entry_id: bytes, shards: int) -> int:
    """Return the shard of a partition; claimed start payloads are at home."""
    return HOME if partition == CLAIMED else shard_of(partition, entry_id, shards)


def shards_for_all_of(shard: int, before: int, after: int) -> range:
    """Return all new shards to which partitions of an old *shard* go.

    A fingerprint does not name the partition of its request, so each of these shards gets a copy of all
    fingerprints of the old shard.
    """
    common = math.gcd(before, after)
    return range(shard % common, after, common)
