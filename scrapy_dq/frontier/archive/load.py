"""Parts -> a new crawl, in any order, kind of seen and number of shards.

It is a change from 0 shards: until it is complete no worker can join. An interrupted one is continued by the
same parts in the same order: elements of lists are counted, as in a reshard, and all else is a set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import TOKENS, Header, Part
from scrapy_dq.frontier.archive.records import Item, Writer
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.messages import apart
from scrapy_dq.frontier.model import FrontierRefused, Order, Seen
from scrapy_dq.frontier.resharding.routes import Routes
from scrapy_dq.frontier.resharding.shard_change import ShardChange, end_again, meta_of
from scrapy_dq.frontier.resharding.transfer import Transfer
from scrapy_dq.frontier.worker.routing import shard_of

_PART, _PART_BYTES = 500, 1_048_576
"""Elements of lists in one call, about: there may be a million lists of one element."""
_FILE = 0
"""The old shard of all that arrives."""
_OF_ALL = (
    b"epoch", b"run", b"phase", b"schema", b"order", b"seen_kind", b"fingerprinter", b"spider",
    b"partition_by", b"seen_since", b"spider_args", b"run_name", b"keep_seen", b"limits_set",
    b"began",
)  # fmt: skip
"""What is in the meta of each shard; the rest is in that of home."""


@dataclass(frozen=True)
class Target:
    """What the new crawl is."""

    order: Order
    seen: Seen


@dataclass
class Loaded:
    """What a call has done."""

    continued: bool = False
    """An interrupted one was."""
    before: bool = False
    """The same was loaded before, completely: nothing was done."""
    entries: int = 0
    tokens: int = 0
    """How many entries and fingerprints were given; expired ones are not counted."""
    doubts: list[str] = field(default_factory=list)
    """Why it is not certain that everything is on disk; a sentence without a full stop each."""


async def load(
    frontiers: Sequence[Frontier],
    header: Header,
    given: AsyncIterator[Part],
    target: Target,
    *,
    priority_of: Callable[[bytes], int],
    progress: Callable[[int], object] = lambda count: None,
) -> Loaded:
    """Store a crawl that does not exist; the next call continues one that was interrupted.

    Args:
        frontiers: of all shards that it will have, home first.
        given: all its parts, always in the same order.
        priority_of: returns the priority of a payload, if the order of the old crawl knew none.
        progress: called with the number of further entries and fingerprints.
    Raises:
        FrontierUnavailable: a shard does not answer: repeat the call.
        FrontierRefused: the crawl exists, is half of something else, or was rolled back meanwhile.
    """
    if header.seen is Seen.COMPACT and target.seen is not Seen.COMPACT and header.tokens:
        raise FrontierRefused(
            "what was seen is compact, and does not hold whole fingerprints: it cannot become "
            f"{target.seen.value}. Set DQ_SEEN = 'compact'"
        )
    metas = [await meta_of(each) for each in frontiers]
    home, count = metas[HOME], len(frontiers)
    change, id_ = b"0>%d" % count, header.id.encode()
    done = Loaded(continued=home.get(b"shards") == change and home.get(b"imported") == id_)
    if home.get(b"imported") == id_ and b">" not in home.get(b"shards", b""):
        await end_again(frontiers, metas)
        done.before = True
        return done
    _refuse_if_there_is_one(frontiers, metas, done.continued, id_)
    meta = _meta_of_new(header, target, count, home.get(b"epoch") or uuid4().hex.encode())
    if done.continued and any(home.get(each) != meta[each] for each in (b"order", b"seen_kind")):
        raise FrontierRefused(
            f"crawl {frontiers[HOME].crawl!r} is half imported with another DQ_ORDER or DQ_SEEN: "
            f"continue with those. Nothing was changed"
        )
    at_home = [name for name in meta if name not in _OF_ALL]
    shards = ShardChange(frontiers, 0, count, meta, _OF_ALL, at_home, header.id)
    await shards.begin(metas, header.sequence)
    loading = _Loading(
        shards.transfer, header, target, count, Writer(header.order, target.order, priority_of)
    )
    await loading.begin(frontiers)
    async for part in given:
        await loading.take(part)
        if part.kind == parts.SEEN or part.kind in parts.ENTRIES:
            progress(len(part.items))
    await loading.end()
    await shards.transfer.on_disk(range(count))
    await shards.end()
    done.doubts, done.entries, done.tokens = shards.transfer.doubts, loading.entries, loading.tokens
    return done


def _refuse_if_there_is_one(
    frontiers: Sequence[Frontier], metas: Sequence[dict[bytes, bytes]], continued: bool, id_: bytes
) -> None:
    home, crawl = metas[HOME], frontiers[HOME].crawl
    if home.get(b"shards", b"").startswith(b"0>") and not continued:
        if home.get(b"imported") != id_:
            raise FrontierRefused(
                f"crawl {crawl!r} is half imported, from another export: import that to the end, or delete "
                f"it with `scrapy dq clear`. Nothing was changed"
            )
        raise FrontierRefused(
            f"crawl {crawl!r} is half imported with DQ_SHARDS = {home[b'shards'][2:].decode()}: continue "
            f"with that. Nothing was changed"
        )
    for number, meta in enumerate(metas):
        begun = meta.get(b"imported") == id_ and b">" in meta.get(b"shards", b"")
        if b"epoch" in meta and not (begun or (continued and meta[b"epoch"] == home[b"epoch"])):
            where = f"shard {number} of crawl" if number else "crawl"
            raise FrontierRefused(
                f"{where} {crawl!r} exists, and an import only makes new ones: delete it with `scrapy dq "
                f"clear`, or choose another name with DQ_CRAWL. Nothing was changed"
            )


def _meta_of_new(header: Header, target: Target, shards: int, epoch: bytes) -> dict[bytes, bytes]:
    said = {
        "epoch": epoch.decode(), "run": str(header.run), "phase": "open", "schema": keys.schema_of(shards),
        "order": target.order.value, "seen_kind": target.seen.value, "fingerprinter": header.fingerprinter,
        "spider": header.spider, "partition_by": header.partition_by,
        "seen_since": str(header.seen_since_ms if target.seen is Seen.EXPIRING else 0), "imported": header.id,
    }  # fmt: skip
    kept = {name.encode(): value for name, value in header.kept.items()}
    return kept | {name.encode(): value.encode("utf-8", "replace") for name, value in said.items()}


class _Loading:
    def __init__(
        self, transfer: Transfer, header: Header, target: Target, shards: int, writer: Writer
    ) -> None:
        self._transfer, self._writer = transfer, writer
        self._header, self._target, self._shards = header, target, shards
        self._routes = Routes(header.shards, shards, header.partition_by != "none", header.seen)
        self._had: dict[int, int] = {}
        """By shard: how many elements of lists had arrived before this call."""
        self._sent: dict[int, int] = defaultdict(int)
        """By shard: how many of them were there until now."""
        self._failed = self.entries = self.tokens = 0
        self._lists: dict[int, list[Any]] = defaultdict(list)
        """By shard: what transitions/arrive.lua takes of lists that were not sent yet."""
        self._elements: dict[int, int] = defaultdict(int)
        self._bytes: dict[int, int] = defaultdict(int)
        """By shard: how many elements these have, and bytes."""

    async def begin(self, frontiers: Sequence[Frontier]) -> None:
        for number, frontier in enumerate(frontiers):
            self._had[number] = int((await meta_of(frontier)).get(b"reshard:from %d" % _FILE, 0))

    async def take(self, part: Part) -> None:
        """Store a part; elements of lists some parts later."""
        # A file may hold any number of items in one.
        for at in range(0, len(part.items), _PART):
            await self._take(part._replace(items=part.items[at : at + _PART]))

    async def _take(self, part: Part) -> None:
        if part.kind in parts.ENTRIES:
            self.entries += len(part.items)
            part = await self._without_messages(part)
        if part.kind != parts.WAITING:
            await self._send_lists()
        if part.kind in TOKENS:
            await self._take_tokens(part)
        elif part.kind == parts.WAITING:
            await self._take_waiting(part)
        elif part.kind == parts.FAILED:
            self._failed += len(part.items)
            for to, items in self._by_shard(part):
                await self._append(to, "failed", [self._writer.failed(*item) for item in items], len(items))
        else:
            stored = partial(self._writer.stored, part.kind)
            for to, items in self._by_shard(part):
                await self._arrive(to, part.kind, [each for item in items for each in stored(item)])

    async def _without_messages(self, part: Part) -> Part:
        """Acknowledge the messages of streams that entries were made from, and return these without them.

        If the new crawl has the name of the old one, these are pending in its group, and would be read again.
        """
        at = -2 if part.kind in (parts.FAILED, parts.DEAD) else -1
        split = [apart(item[at]) for item in part.items]
        if messages := sorted({message for message, _ in split if message}):
            await self._arrive(HOME, "messages", messages)
        items = [(*item[:at], payload, *item[len(item) + at + 1 :])
                 for item, (_, payload) in zip(part.items, split, strict=True)]  # fmt: skip
        return part._replace(items=items)

    async def end(self) -> None:
        await self._send_lists()
        sums = [self._header.done, max(0, self._header.failed - self._failed), self._header.gone]
        await self._arrive(HOME, "sums", sums)

    async def _arrive(self, to: int, label: str, items: list[Any]) -> None:
        await self._transfer.arrive(to, _FILE, label, items)

    async def _append(self, to: int, label: str, items: list[Any], count: int) -> None:
        """Add *count* elements to lists, unless an interrupted call has."""
        first = self._sent[to]
        self._sent[to] += count
        if self._sent[to] > self._had[to]:
            await self._transfer.arrive(to, _FILE, label, items, first)

    async def _send_lists(self, *, part: bool = False) -> None:
        """Send the lists that wait; *part*: to shards for which they make a call of the usual size."""
        for to, count in list(self._elements.items()):
            if not part or count >= _PART or self._bytes[to] >= _PART_BYTES:
                del self._elements[to], self._bytes[to]
                await self._append(to, "backlog", self._lists.pop(to), count)

    def _by_shard(self, part: Part) -> Iterator[tuple[int, list[Item]]]:
        found: dict[int, list[Item]] = defaultdict(list)
        partition_at, id_at = {
            parts.LIMITS: (0, None), parts.BLOCKED: (1, None), parts.RETURNED: (0, 3),
            parts.QUARANTINE: (0, 3), parts.DELAYED: (2, 3), parts.FAILED: (-1, 0), parts.DEAD: (-1, 0),
        }[part.kind]  # fmt: skip
        for item in part.items:
            partition = item[partition_at]
            # Limits of the settings are in all shards; those that are in force, where the partition lives.
            if id_at is not None or shard_of(partition, b"", self._header.shards) == part.shard:
                found[self._routes.of_entry(partition, b"" if id_at is None else item[id_at])].append(item)
        yield from found.items()

    async def _take_tokens(self, part: Part) -> None:
        kind, label, items = self._target.seen, part.kind, part.items
        if label == parts.SEEN and self._header.seen is Seen.EXPIRING:
            items = [item for item in items if item[0] >= self._header.seen_since_ms]
        if label == parts.SEEN and kind is not self._header.seen:
            label, items = "fingerprints", [item[-1:] for item in items]
        self.tokens += len(items) if part.kind == parts.SEEN else 0
        found: dict[int, list[Any]] = defaultdict(list)
        for item in items:
            for to in self._shards_of_token(part, item[-1]):
                found[to] += item
        for to, each in found.items():
            await self._arrive(to, label, each)

    def _shards_of_token(self, part: Part, token: bytes) -> Sequence[int]:
        if part.kind == parts.ADOPTED:  # those are in all shards
            return range(self._shards) if part.shard == HOME else ()
        if self._routes.knows_token(part.kind):
            return (self._routes.of_token(token),)
        return self._routes.of_tokens(part.kind, part.shard)

    async def _take_waiting(self, part: Part) -> None:
        found: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        for rank, sequence, entry_id, payload in part.items:
            to = self._routes.of_entry(part.partition, entry_id)
            rank, element = self._writer.element(rank, sequence, entry_id, payload)
            found[to, rank].append(element)
        for (to, rank), elements in found.items():
            self._lists[to] += (rank, part.partition, elements)
            self._elements[to] += len(elements)
            self._bytes[to] += sum(map(len, elements))
        await self._send_lists(part=True)
