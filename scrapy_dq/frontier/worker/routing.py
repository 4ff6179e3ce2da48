"""In which shard an entry lives."""

from __future__ import annotations

from zlib import crc32


def shard_of(partition: bytes, token: bytes, shards: int) -> int:
    """Return the number of an entry's shard: by its partition; without one, by its token (fingerprint)."""
    return crc32(partition or token) % shards
