"""Convert the seen set of a crawl, shard by shard, to another kind: exact, expiring, compact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import FrontierRefused, Order, Seen
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import id_text, refuse

STEP = 500
"""Most fingerprints in one call: a script blocks Redis while it runs."""


def convert(client: Any, shard: keys.Shard, to: Seen, dead: Sequence[str]) -> Iterator[int]:
    """Convert one shard in small steps; yield how many fingerprints are left after each, finally 0; blocking.

    During a conversion no worker can join. If it is interrupted, a second call continues it.

    Args:
        client: a `redis` client that decodes nothing.
        dead: ids of members that are dead; any other member prevents the conversion.
    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: the conversion is not possible; the message says why.
    """
    while left := convert_some(client, shard, to, dead):
        yield left
    yield 0


def convert_some(client: Any, shard: keys.Shard, to: Seen, dead: Sequence[str]) -> int:
    """Convert at most STEP fingerprints and return how many are left. Source: transitions/convert.lua"""
    packed = msgpack.packb(list(dead), unicode_errors="surrogateescape")
    script = Script("convert", Order.FIFO)
    reply = script.call_blocking(client, keys.fixed(shard), to.value, STEP, packed)
    refuse(reply)
    if reply[0] == b"OK":
        return int(reply[2])
    if reply[0] == b"LIVE":
        raise FrontierRefused(f"worker {id_text(reply[1])} has joined meanwhile: nothing was changed")
    if reply[0] == b"UNDER_WAY":
        from_, _, begun = reply[1].decode("utf-8", "replace").partition(">")
        raise FrontierRefused(
            f"it is half converted from {from_} to {begun}: finish that first, with --to {begun}"
        )
    if reply[0] == b"ONE_WAY":
        raise FrontierRefused(
            f"it is {reply[1].decode('utf-8', 'replace')}, and cannot be converted: it does not hold whole "
            f"fingerprints. To start from scratch, use SCHEDULER_FLUSH_ON_START"
        )
    raise FrontierRefused(f"there is no crawl {shard.crawl!r} any more")
