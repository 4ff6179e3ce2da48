"""Reads the properties of a whole crawl, and detects changes in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.archive.parts import KEPT, Header
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused, Order, Seen
from scrapy_dq.frontier.reader import Reader
from scrapy_dq.frontier.scripts import at_node
from scrapy_dq.frontier.wire import half_moved, refuse_other_schema

_SEQUENCE, _WAITING, _IN_FLIGHT, _DONE, _FAILED, _OFFSET, _DELAYED, _SEEN = 0, 1, 2, 3, 4, 7, 9, 11
"""Indexes in the counts of a shard. Source: lua/lib/state.lua"""
_NO_COUNTS = [0] * 12
_MARKED = (_SEQUENCE, _WAITING, _IN_FLIGHT, _DONE, _FAILED, _DELAYED, _SEEN)
"""The sequence, and the counts of entries and tokens."""


async def change_marker(frontiers: Sequence[Frontier]) -> list[Any]:
    """Return a value. If the value of a later call differs, the crawl has changed between the calls."""
    found = []
    for frontier in frontiers:
        meta = await meta_of(frontier)
        counts = counts_of(meta)
        members = await Reader(frontier.client, frontier.name).ask("smembers", b"members")
        # A worker that joined and left may have moved entries without a change of any count.
        state = [meta.get(name) for name in (b"epoch", b"run", b"phase", b"events")]
        found.append([*state, *(counts[n] for n in _MARKED), sorted(members)])
    return found


async def header_of(frontiers: Sequence[Frontier], fields: Sequence[str] = KEPT) -> Header:
    """Return the properties of the whole crawl.

    Args:
        frontiers: all shards of the crawl, home first.
        fields: the fields of home's meta for the header; never_sent is the sum over all shards.
    Raises:
        FrontierRefused: there is no crawl, it is incomplete, or another version has stored it.
    """
    metas = [await meta_of(each) for each in frontiers]
    home, crawl = metas[HOME], frontiers[HOME].crawl
    if b"epoch" not in home:
        raise FrontierRefused(f"there is no crawl {crawl!r}")
    refuse_other_schema(crawl, home.get(b"schema"))
    for number, meta in enumerate(metas):
        if meta.get(b"epoch") != home[b"epoch"]:
            raise FrontierRefused(f"shard {number} of crawl {crawl!r} is gone, with its waiting requests")
        behind = meta.get(b"run") != home.get(b"run") or (number and meta.get(b"cleared") == b"1")
        if behind and home.get(b"phase") == b"open":
            raise FrontierRefused(
                f"shard {number} of crawl {crawl!r} has not begun the run of home: start a worker, stop it, "
                f"and repeat the command"
            )
        if meta.get(b"shards", b"").startswith(b"0>"):
            raise FrontierRefused(half_moved(meta[b"shards"]))
    # If no order is stored, a program that pushes requests has begun the crawl, and no spider has joined.
    order, seen = Order(_text(home, "order") or "fifo"), Seen(_text(home, "seen_kind") or "exact")
    with as_unavailable():
        seconds, micros = await frontiers[HOME].client.time()
    counts = [counts_of(meta) for meta in metas]
    since = _number(home, "seen_since")
    stored = home | {b"never_sent": b"%d" % sum(_number(meta, "never_sent") for meta in metas)}
    entries = 0
    for frontier, each in zip(frontiers, counts, strict=True):
        reader = Reader(frontier.client, frontier.name)
        kept = await reader.ask("llen", b"failed") + await reader.ask("hlen", b"dead")
        entries += each[_WAITING] + each[_IN_FLIGHT] + each[_DELAYED] + kept
    return Header(
        id=uuid4().hex, crawl=crawl, at_ms=seconds * 1000 + micros // 1000, order=order, seen=seen,
        shards=len(frontiers), partition_by=_text(home, "partition_by"),
        fingerprinter=_text(home, "fingerprinter"), spider=_text(home, "spider"),
        run=_number(home, "run"),
        sequence=max(each[_SEQUENCE] for each in counts), done=sum(each[_DONE] for each in counts),
        failed=sum(each[_FAILED] for each in counts), gone=_number(home, "gone"),
        seen_since_ms=since and since - counts[HOME][_OFFSET], entries=entries,
        tokens=sum(max(0, each[_SEEN]) for each in counts),
        kept={name: stored[name.encode()] for name in fields if name.encode() in stored},
    )  # fmt: skip


async def meta_of(frontier: Frontier) -> dict[bytes, bytes]:
    """Return the meta of a shard; in a cluster, this call also finds the node of the shard."""
    client, name = frontier.client, keys.meta(frontier.name)
    with as_unavailable():
        return dict(await at_node(client, lambda: client.hgetall(name)))


def counts_of(meta: dict[bytes, bytes]) -> list[int]:
    """Return the counts of a shard (lua/lib/state.lua): sequence, waiting, in flight, done, failed, ..."""
    return [*map(int, meta[b"counts"].split())] if b"counts" in meta else _NO_COUNTS


def _text(meta: dict[bytes, bytes], name: str) -> str:
    return meta.get(name.encode(), b"").decode("utf-8", "replace")


def _number(meta: dict[bytes, bytes], name: str) -> int:
    return int(meta.get(name.encode(), 0))
