"""Whether a fingerprint was seen, and how it is forgotten. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.shards import shards_of
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import by_bytes, refuse

_FIRST = 1024
"""Source of all about buckets: lua/seen/seen_compact.lua"""


def is_seen(client: Any, crawl: str, fingerprint: bytes, partition: bytes, known_as: bytes) -> bool:
    """Tell whether a put with this fingerprint would be a duplicate.

    Args:
        client: a `redis` client that decodes nothing, or Shards.
        known_as: its fingerprint in a crawl of scrapy-redis that was adopted.
    Raises:
        redis.exceptions.RedisError: no reply, or a key of the crawl has a foreign type.
    """
    shards = list(shards_of(client, crawl))
    client, shard = shards[shard_of(partition, fingerprint, len(shards))]
    kind, since = client.hmget(keys.meta(shard), "seen_kind", "seen_since")
    prefix = keys.prefix(shard)
    if _has(client, prefix + "seen", (kind or b"exact").decode(), fingerprint, int(since or 0)):
        return True
    return bool(client.sismember(prefix + "adopted", known_as))


def _has(client: Any, name: str, kind: str, fingerprint: bytes, since: int) -> bool:
    if kind == Seen.EXPIRING.value:
        at = client.zscore(name, fingerprint)
        return at is not None and at >= since
    if kind == Seen.COMPACT.value:
        generation, buckets = client.hmget(name, "generation", "buckets")
        if generation is None:
            return False
        number, member = _bucket_of(fingerprint, int(buckets))
        return bool(client.sismember(b"%s:%s:%d" % (name.encode(), generation, number), member))
    return bool(client.sismember(name, fingerprint))


def _bucket_of(token: bytes, buckets: int) -> tuple[int, bytes]:
    """Return the number of a token's bucket, and the member that is stored there."""
    digest = sha1(token).hexdigest()
    bits, last = int(digest[:4], 16), int(digest[12:20], 16) % 10**9
    first, rounds = bits % _FIRST, 1 << ((buckets // _FIRST).bit_length() - 1)
    number = first + _FIRST * (last % (2 * rounds))
    if number >= buckets:
        number -= _FIRST * rounds
    sign = b"-" if bits >= 32768 else b""
    return number, b"%s%d%09d%09d" % (sign, bits // _FIRST % 8 + 1, int(digest[4:12], 16) % 10**9, last)


MAX_FINGERPRINTS = 1_000
"""Most in one call: a script blocks Redis while it runs."""


def forget(client: Any, crawl: str, fingerprints: Sequence[tuple[bytes, bytes]], by: str = "") -> int | None:
    """Forget at most MAX_FINGERPRINTS requests; blocking.

    Live workers are notified by their next exchange.

    Args:
        client: a `redis` client that decodes nothing.
        fingerprints: pairs: the fingerprint of a request, and its fingerprint in another scheduler, whose
            crawl may have been adopted.
        by: who has them forgotten, for the journal of the crawl.
    Returns:
        How many of them were seen; None: there is no such crawl.
    Raises:
        redis.exceptions.RedisError: no reply of one of the shards; some may be forgotten.
        FrontierRefused: a key of the crawl has a foreign type.
    Source: transitions/forget.lua
    """
    args = [msgpack.packb([pair[i] for pair in fingerprints], use_bin_type=False) for i in (0, 1)]

    def forget_in_shard(client: Any, shard: keys.Shard) -> set[int] | None:
        reply = Script("forget").call_blocking(client, keys.fixed(shard), *args, by_bytes(by))
        refuse(reply)
        return set(reply[1]) if reply[0] == b"OK" else None

    # Where one was put depends on its partition, which its fingerprint does not tell. After a move,
    # several shards may have it.
    known, *others = shards_of(client, crawl).each(forget_in_shard, strict=True)
    return None if known is None else len(known.union(*filter(None, others)))
