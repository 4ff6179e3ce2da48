"""Scans all keys of this Redis for the keys of some shards, and so also finds keys that no index names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.errors import as_unavailable

SCAN_STEP = 1_000
"""Approximate number of keys that Redis examines in one SCAN."""


class Found(NamedTuple):
    """The names of some keys, without their prefix and split into parts. Each list is flat."""

    lists: list[bytes]
    """Rank, partition, ... from `backlog:<rank>:<partition>`."""
    workers: list[bytes]
    """The ids from `worker:<id>` and `in-flight:<id>`."""
    buckets: list[bytes]
    """Generation, n, ... from `seen:<generation>:<n>`."""


async def scan(client: Any, shards: Sequence[keys.Shard]) -> AsyncIterator[dict[keys.Shard, Found]]:
    """Yield lists, workers and buckets of one crawl's shards, in parts.

    Yields a part after each SCAN, even if the part is empty. A key may come twice, or be gone already.

    Args:
        client: a `redis.asyncio` client for the node of these shards.
    Raises:
        FrontierUnavailable: Redis is not available; the remaining keys were not scanned.
    """
    known, cursor = {keys.prefix(shard).encode(): shard for shard in shards}, -1
    # The pattern also matches keys of other crawls, if their names begin with the name of this crawl.
    pattern = keys.prefix(shards[0] if len(shards) == 1 else shards[0].crawl).removesuffix("}:") + "*"
    while cursor:
        with as_unavailable():
            cursor, names = await client.scan(max(0, cursor), match=pattern, count=SCAN_STEP)
        of_shards: dict[keys.Shard, list[bytes]] = {}
        for name in names:
            tag, end, rest = name.partition(b"}:")
            if (shard := known.get(tag + end)) is not None:
                of_shards.setdefault(shard, []).append(rest)
        yield {shard: _found(rests) for shard, rests in of_shards.items()}


def _found(names: Iterable[bytes]) -> Found:
    lists: list[bytes] = []
    workers: dict[bytes, None] = {}
    buckets: list[bytes] = []
    for name in names:
        kind, _, rest = name.partition(b":")
        if kind in (b"worker", b"in-flight"):
            workers[rest] = None
        elif kind in (b"backlog", b"seen"):
            first, _, second = rest.partition(b":")
            (lists if kind == b"backlog" else buckets).extend((first, second))
    return Found(lists, list(workers), buckets)
