"""Drops the waiting entries of one partition, because its site is a trap or is not wanted any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from scrapy_dq.frontier import keys, records
from scrapy_dq.frontier.admin.shards import command, shards_of
from scrapy_dq.frontier.reader import Reader, drained
from scrapy_dq.frontier.records import DECLINED, DELAYED
from scrapy_dq.frontier.wire import by_bytes

STEP = 1_000
"""Maximum number of entries in one call, because a script blocks Redis while it runs."""


def waiting_in(client: Any, crawl: str, partition: str) -> int:
    """Return how many entries of a partition wait, not counting delayed and declined ones; blocking.

    Args:
        client: a `redis` client that decodes nothing, or Shards.
    Raises:
        redis.exceptions.RedisError: no reply, or a key of the crawl has a foreign type.
    """
    client, shard = shards_of(client, crawl).of_partition(partition)
    prefix, name = keys.prefix(shard).encode(), partition.encode()
    lists = drained(Reader(client, shard).lists([name]))
    waiting = sum(client.llen(prefix + each.name) for found in lists for each in found)
    first, last = b"[%s\0" % name, b"(%s\1" % name
    sets = sum(client.zlexcount(prefix + each, first, last) for each in (b"returned", b"quarantine"))
    return int(waiting + sets)


def drop(
    client: Any,
    crawl: str,
    partition: str,
    by: str = "",
    dropped: Callable[[int], object] = lambda count: None,
) -> int | None:
    """Drop all waiting and delayed entries of a partition; their fingerprints stay seen. Blocking.

    Workers finish, fail or release entries in flight as usual. Entries that workers release or put during the
    call may stay.

    Args:
        client: a `redis` client that decodes nothing, or Shards.
        by: the caller's name for the journal of the crawl.
        dropped: called after each step, with the number of entries that the step has dropped.
    Returns:
        The number of dropped entries; None: there is no such crawl.
    Raises:
        redis.exceptions.RedisError: no reply; some entries may be dropped, and a repeat drops the rest.
        FrontierRefused: a key of the crawl has a foreign type, or the crawl is half moved.
    Source: transitions/drop.lua
    """
    client, shard = shards_of(client, crawl).of_partition(partition)
    total, left, name = 0, True, partition.encode()

    def step(most: int, apart: str = "delayed", members: Sequence[bytes] = ()) -> None:
        nonlocal total, left
        packed = msgpack.packb(list(members), use_bin_type=False)
        found = command(client, shard, "drop", name, most, apart, packed, by_bytes(by))
        if found is None:
            raise _Absent
        total, left = total + found[0], bool(found[1])
        dropped(found[0])

    try:
        before = -1
        while left and total > before:
            before = total
            step(STEP)
        for apart in (DELAYED, DECLINED):
            for page in drained(Reader(client, shard).pages(apart.encode())):
                found = [each for each, _ in page if records.member(apart, each).partition == name]
                for at in range(0, len(found), STEP):
                    step(0, apart, found[at : at + STEP])
    except _Absent:
        return None
    return total


class _Absent(Exception):
    """There is no such crawl."""
