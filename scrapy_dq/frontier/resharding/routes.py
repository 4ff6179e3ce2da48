"""Where each part of a crawl goes when its number of shards changes."""

from __future__ import annotations

import math
from typing import NamedTuple

from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Seen
from scrapy_dq.frontier.worker.routing import shard_of

CLAIMED = b"\1"
"""The partition of start payloads (lua/lib/state.lua); they stay at home."""


class Routes(NamedTuple):
    """For a crawl in *before* shards that will be in *after*."""

    before: int
    after: int
    partitioned: bool
    """Entries have partitions; without them, an entry is found by its token."""
    seen: Seen

    def of_entry(self, partition: bytes, entry_id: bytes) -> int:
        """Return the shard of an entry."""
        # Without a partition, any shard will do: its token, which is stored elsewhere, decides no more.
        return HOME if partition == CLAIMED else shard_of(partition, entry_id, self.after)

    def of_partition(self, partition: bytes, now: int) -> int:
        """Return the shard for what is known of a partition in shard *now*."""
        # Limits from the settings are in all shards; those that were changed by hand, where it lives.
        lives_here = shard_of(partition, b"", self.before) == now
        return self.of_entry(partition, b"") if lives_here else now

    def knows_token(self, label: str) -> bool:
        """Tell whether the tokens in a key tell their shard: none names its partition."""
        whole = label != "seen" or self.seen is not Seen.COMPACT
        return whole and not self.partitioned and label != "adopted"

    def of_token(self, token: bytes) -> int:
        """Return the shard of a token of an entry without a partition."""
        return shard_of(b"", token, self.after)

    def of_tokens(self, label: str, now: int) -> list[int]:
        """Return all shards in which a token of shard *now* may be looked up."""
        if label == "adopted":  # those are in all shards
            return list(range(self.before, self.after)) if now == HOME else []
        common = math.gcd(self.before, self.after)
        return list(range(now % common, self.after, common))
