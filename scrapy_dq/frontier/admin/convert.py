"""Make another kind of what a crawl has seen: exact, expiring, compact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import FrontierRefused, Order, Seen
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import id_text, refuse

STEP = 500
"""Fingerprints of one call: a script holds Redis while it runs."""


def convert(client: Any, crawl: str, to: Seen, dead: Sequence[str]) -> Iterator[int]:
    """Convert in small steps; yield how many are left after each, the last time 0. Blocking.

    While it is under way nobody can join. If it breaks off, to do it again goes on with what is left.

    Args:
        client: a `redis` client that decodes nothing.
        dead: ids of members that are known to be dead; another one that is registered is in the way.
    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: it cannot be done; the message says why.
    """
    while left := convert_some(client, crawl, to, dead):
        yield left
    yield 0


def convert_some(client: Any, crawl: str, to: Seen, dead: Sequence[str]) -> int:
    """Convert at most STEP fingerprints and return how many are left. Source: transitions/convert.lua"""
    packed = msgpack.packb(list(dead), unicode_errors="surrogateescape")
    script = Script("convert", Order.FIFO)
    reply = script.call_blocking(client, keys.meta(crawl), to.value, STEP, packed)
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
            f"it is {reply[1].decode('utf-8', 'replace')}, and nothing else can be made of that: it does not "
            f"hold whole fingerprints. To begin afresh, SCHEDULER_FLUSH_ON_START"
        )
    raise FrontierRefused(f"there is no crawl {crawl!r} any more")
