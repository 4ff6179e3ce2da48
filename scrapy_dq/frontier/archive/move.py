"""Moves a crawl without live workers: reads it like an export, loads it elsewhere, and then deletes it here.

If the command is killed, the same command continues the move. First, the command freezes the old crawl, so
that this crawl cannot change, and stores the plan of the move in its home, with the id of the load. When the
new crawl is complete and on disk, the command deletes the old one. Within one Redis, a crawl moves twice: to
another name, and then back to its own name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.flush import purge
from scrapy_dq.frontier.archive.dump import dump
from scrapy_dq.frontier.archive.header import header_of, meta_of
from scrapy_dq.frontier.archive.load import is_loaded, load, require_convertible, require_none
from scrapy_dq.frontier.archive.new_crawl import on_disk
from scrapy_dq.frontier.archive.parts import KEPT_BY_MOVE, MOVED, Shape
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused, Order, Seen
from scrapy_dq.frontier.reader import Reader
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import half_moved, id_text, refuse
from scrapy_dq.frontier.worker.audit import audit

BETWEEN = "~moving"
"""Between the two halves of a move in one Redis, the name of the crawl has this suffix."""
ShardOf = Callable[[int], Awaitable[Frontier]]
"""Returns the frontier of a shard of one crawl, by its number."""


@dataclass
class Moved:
    """The result of a move."""

    now: Shape
    was: Shape | None = None
    """The old shape. None: unknown, because an earlier call has deleted the old crawl."""
    entries: int = 0
    """Number of requests that this call has stored in the new crawl; 0: an earlier call has stored them."""
    tokens: int = 0
    """Number of fingerprints that this call has stored in the new crawl; 0: as for `entries`."""
    doubts: list[str] = field(default_factory=list)
    """Reasons why some data may not be on disk yet: sentences without a full stop."""


@dataclass(frozen=True)
class _Plan:
    """The plan of a move, which is stored in the home of the frozen crawl."""

    id: str
    """The id of the load."""
    to: str
    """The address of the new Redis; empty: the crawl stays in this Redis."""
    shape: Shape

    @classmethod
    def in_meta(cls, meta: dict[bytes, bytes]) -> _Plan | None:
        if not meta.get(b"shards", b"").endswith(b">0"):
            return None
        id_, to, order, seen, shards = json.loads(meta[b"moving"])
        return cls(id_, to, Shape(Order(order), Seen(seen), shards))

    def packed(self) -> str:
        shape = self.shape
        return json.dumps([self.id, self.to, shape.order.value, shape.seen.value, shape.shards])


@dataclass(frozen=True)
class Mover:
    """The arguments that both halves of a move have in common."""

    shape: Shape
    """The new shape. If an earlier command began a move to another shape, that move is completed instead."""
    priority_of: Callable[[bytes], int]
    """See `load`."""
    at_rest: Callable[[Sequence[Frontier], str, int], Awaitable[None]]
    """Called with all shards, epoch and run: it reclaims the leases of dead workers.

    It raises FrontierRefused if a worker is alive.
    """
    began: Callable[[int], object] = lambda count: None
    """Called before the reading begins, with the number of entries and fingerprints."""
    progress: Callable[[int], object] = lambda count: None
    """Called with the number of entries and fingerprints in each further part."""

    async def to_other_redis(self, source: ShardOf, target: ShardOf, to: str) -> Moved:
        """Move a crawl into another Redis; the next call continues an interrupted move.

        Args:
            to: the address of the new Redis, without a password.
        Raises:
            FrontierUnavailable: one of the two Redis servers does not answer. Repeat the call.
            FrontierRefused: the move is not possible; the message gives the reason.
        """
        home = await source(HOME)
        if b"epoch" not in await meta_of(home) and b"imported" in await meta_of(await target(HOME)):
            shape = await _shape_of(target)
            await _delete([home], b"", 1)  # an earlier call may have been killed before its end
            return Moved(shape)
        return await self._move(source, target, to)

    async def in_same_redis(self, source: ShardOf, between: ShardOf) -> Moved:
        """Give a crawl another shape in the same Redis; see `to_other_redis`.

        Args:
            between: returns the shards of the crawl that exists between the two halves.
        """
        first = Moved(self.shape)
        await (await between(HOME)).sweep(math.inf)  # an earlier call may have been killed before its end
        if not await _is_half_done(source, between):
            first = await self._move(source, between, "")
            if first.now == first.was:
                return first
        resumed = replace(self, shape=await _shape_of(between))
        second = await resumed._move(between, source, "", again=True)
        return replace(second, was=first.was, doubts=sorted({*first.doubts, *second.doubts}))

    async def _move(self, source: ShardOf, target: ShardOf, to: str, *, again: bool = False) -> Moved:
        """Move a crawl once; *again*: this is the second half of a move in one Redis, so keep the shape."""
        shape = await _shape_of(source)
        old = [await source(number) for number in range(shape.shards)]
        meta = await meta_of(old[HOME])
        begun = _Plan.in_meta(meta)
        if not begun and self.shape == shape and not (to or again):
            return Moved(shape, shape)
        plan = begun or _Plan(uuid4().hex, to, self.shape)
        if plan.to != to:
            where = f"with --to {plan.to}" if plan.to else "without --to"
            raise FrontierRefused(
                f"crawl {old[HOME].crawl!r} is half moved: repeat the command {where} to complete the move"
            )
        new = [await target(number) for number in range(plan.shape.shards)]
        if not begun:
            require_convertible(await header_of(old), plan.shape.seen)
            await require_none(new, "")
        moved = Moved(plan.shape)
        if not await is_loaded(new, plan.id):
            moved = await self._copy(old, meta, plan, new)
        await _delete(old, meta[b"epoch"], shape.shards)
        return moved

    async def _copy(
        self, old: Sequence[Frontier], meta: dict[bytes, bytes], plan: _Plan, new: Sequence[Frontier]
    ) -> Moved:
        epoch, run = meta[b"epoch"].decode(), int(meta[b"run"])
        await self.at_rest(old, epoch, run)
        await on_disk(old[HOME], lambda home: _freeze(home, epoch, len(old), plan))
        for frontier in old[1:]:
            await _freeze(frontier, epoch, len(old))
        for frontier in old:  # otherwise a list that is in no index would be deleted instead of moved
            await audit(frontier, epoch, run)
        header = replace(await header_of(old, KEPT_BY_MOVE), id=plan.id)
        self.began(header.entries + header.tokens)
        loaded = await load(
            new, header, dump(old, header, MOVED), plan.shape, priority_of=self.priority_of,
            progress=self.progress, whole=True,
        )  # fmt: skip
        return Moved(plan.shape, header.shape, loaded.entries, loaded.tokens, loaded.doubts)


async def _is_half_done(source: ShardOf, between: ShardOf) -> bool:
    """Tell whether the first half of a move is complete: the crawl is stored under its other name."""
    home, between_meta = await meta_of(await source(HOME)), await meta_of(await between(HOME))
    if b"epoch" not in between_meta or between_meta.get(b"shards", b"").startswith(b"0>"):
        return False
    plan = _Plan.in_meta(between_meta)
    return b"epoch" not in home or (plan is not None and home.get(b"imported") == plan.id.encode())


async def _shape_of(source: ShardOf) -> Shape:
    """Return the shape of a crawl.

    Raises:
        FrontierRefused: the crawl does not exist, or is half imported.
    """
    home = await source(HOME)
    meta = await meta_of(home)
    if b"epoch" not in meta:
        raise FrontierRefused(f"there is no crawl {home.crawl!r}")
    shards = meta.get(b"shards", b"1")
    if shards.startswith(b"0>"):
        raise FrontierRefused(half_moved(shards))
    order, seen = meta.get(b"order") or b"fifo", meta.get(b"seen_kind") or b"exact"
    return Shape(Order(order.decode()), Seen(seen.decode()), int(shards.partition(b">")[0]))


async def _freeze(
    frontier: Frontier,
    epoch: str | bytes,
    shards: int,
    plan: _Plan | None = None,
    messages: Sequence[bytes] = (),
) -> None:
    """Freeze a shard, so that only a deletion can change it; acknowledge *messages* of streams.

    Source: transitions/freeze.lua
    """
    script, own_plan = Script("freeze"), plan.packed() if plan else ""
    packed = msgpack.packb(list(messages), use_bin_type=False)
    with as_unavailable():
        reply = await script.call(frontier.client, keys.fixed(frontier.name), epoch, shards, own_plan, packed)
    refuse(reply)
    if reply[0] == b"LIVE":
        raise FrontierRefused(
            f"worker {id_text(reply[1])} has just joined crawl {frontier.crawl!r}: stop it, and repeat "
            f"the command"
        )
    if reply[0] != b"OK" or (plan and reply[1].decode() != own_plan):
        raise FrontierRefused(
            f"crawl {frontier.crawl!r} has just changed, or the same command runs elsewhere: repeat this one"
        )


async def _delete(old: Sequence[Frontier], epoch: bytes, shards: int) -> None:
    """Delete the old crawl after its copy is complete. Delete home last, because home stores the plan."""
    async for messages in Reader(old[HOME].client, old[HOME].name).pages(b"messages"):
        if messages:  # without messages, home may be deleted already, and have no epoch
            await _freeze(old[HOME], epoch, shards, messages=[message for message, _ in messages])
    for frontier in (*old[1:], old[HOME]):
        while (await frontier.flush([], force=True, epoch=epoch)).left:
            pass
    await purge(old)
