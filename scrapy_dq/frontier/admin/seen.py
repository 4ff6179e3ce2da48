"""Tells whether a fingerprint was seen, and forgets fingerprints. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.shards import command, shards_of
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import by_bytes


def is_seen(client: Any, crawl: str, fingerprint: bytes, partition: bytes, known_as: bytes) -> bool:
    """Tell whether a put with this fingerprint would be a duplicate.

    Args:
        client: a `redis` client that decodes nothing, or Shards.
        known_as: the fingerprint of the same request in an adopted crawl of scrapy-redis.
    Raises:
        redis.exceptions.RedisError: no reply, or a key of the crawl has a foreign type.
    Source: transitions/known.lua
    """
    shards = list(shards_of(client, crawl))
    client, shard = shards[shard_of(partition, fingerprint, len(shards))]
    return bool(Script("known").call_blocking(client, keys.fixed(shard), fingerprint, known_as))


MAX_FINGERPRINTS = 1_000
"""Maximum number of fingerprints in one call, because a script blocks Redis while it runs."""


def forget(client: Any, crawl: str, fingerprints: Sequence[tuple[bytes, bytes]], by: str = "") -> int | None:
    """Forget the fingerprints of at most 1,000 requests; blocking.

    Live workers receive the command with their next exchange.

    Args:
        client: a `redis` client that decodes nothing.
        fingerprints: for each request, a pair: its fingerprint, and its fingerprint in another scheduler,
            whose crawl may have been adopted.
        by: the caller's name for the journal of the crawl.
    Returns:
        The number of requests that had been seen before this call; None: there is no such crawl.
    Raises:
        redis.exceptions.RedisError: a shard does not reply; some fingerprints may be forgotten.
        FrontierRefused: a key of the crawl has a foreign type.
    Source: transitions/forget.lua
    """
    args = [msgpack.packb([pair[i] for pair in fingerprints], use_bin_type=False) for i in (0, 1)]

    def forget_in_shard(client: Any, shard: keys.Shard) -> set[int] | None:
        found = command(client, shard, "forget", *args, by_bytes(by))
        return None if found is None else set(found[0])

    # The shard of a request depends on its partition, which the fingerprint does not contain. After a move,
    # several shards may have the fingerprint.
    known, *others = shards_of(client, crawl).each(forget_in_shard, strict=True)
    return None if known is None else len(known.union(*filter(None, others)))
