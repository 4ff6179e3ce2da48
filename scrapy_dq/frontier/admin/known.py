"""Whether a fingerprint was seen; changes nothing. Blocking."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.shards import shards_of
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.worker.routing import shard_of

_FIRST = 1024
"""Source of all about buckets: lua/seen/buckets.lua"""


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
