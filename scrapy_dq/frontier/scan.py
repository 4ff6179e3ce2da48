"""Finds the keys of a crawl that no index names, by scanning all keys of this Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.errors import as_unavailable

SCAN_STEP = 1_000
"""Keys that Redis examines in one SCAN."""


class Found(NamedTuple):
    """Some of the keys that exist, without their prefix."""

    lists: list[bytes]
    """Of `backlog:<rank>:<partition>`: rank, partition, ..."""
    workers: list[bytes]
    """Of `worker:<id>` and `in-flight:<id>`: the ids."""
    buckets: list[bytes]
    """Of `seen:<generation>:<n>`: generation, n, ..."""


async def scan(client: Any, shard: keys.Shard) -> AsyncIterator[Found]:
    """Yield the lists, workers and buckets, in parts; one may come twice, or be gone by then.

    Yields a part after each SCAN, even if it is empty.

    Args:
        client: of `redis.asyncio`.
    Raises:
        FrontierUnavailable: Redis is not available; the rest is unknown.
    """
    prefix, cursor = keys.prefix(shard), -1
    while cursor:
        with as_unavailable():
            cursor, names = await client.scan(max(0, cursor), match=f"{prefix}*", count=SCAN_STEP)
        lists: list[bytes] = []
        workers: dict[bytes, None] = {}
        buckets: list[bytes] = []
        for name in names:
            kind, _, rest = name[len(prefix) :].partition(b":")
            if kind in (b"worker", b"in-flight"):
                workers[rest] = None
            elif kind in (b"backlog", b"seen"):
                first, _, second = rest.partition(b":")
                (lists if kind == b"backlog" else buckets).extend((first, second))
        yield Found(lists, list(workers), buckets)
