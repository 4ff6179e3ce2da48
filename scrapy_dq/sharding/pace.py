"""When exchanges with several shards are due, and how many leases each of them requests."""

from __future__ import annotations

from math import ceil

from scrapy_dq.frontier.worker import pace
from scrapy_dq.frontier.worker.pace import Timing

SPREAD_S, MAX_SPREAD_S = 0.025, 0.5
"""Additional seconds that a move waits for each shard after the first, and the maximum of their sum. Each
shard gets only a part of the moves, and each exchange has a fixed cost, so longer waits save exchanges."""
MAX_SLOW_S = 2.0
"""Maximum number of seconds that moves wait so that moves of the next lease in their shard can join the same
exchange, and that an idle worker waits before it asks a shard again."""


def timing_of(shards: int) -> Timing:
    """Return when exchanges with each shard are due, for a crawl with *shards* shards (at least 2)."""
    longer_s = min(SPREAD_S * (shards - 1), MAX_SPREAD_S)
    return Timing(
        pace.LINGER_S + longer_s, pace.IDLE_FIRST_S + longer_s,
        min(pace.IDLE_LONGEST_S * shards, MAX_SLOW_S), pace.MEMORY_S * shards, MAX_SLOW_S,
    )  # fmt: skip


def share(free: int, running: int, part: float) -> int:
    """Return how many leases of one shard can run here at the same time, at least 1.

    Args:
        free: how many more leases, from all shards, can run here.
        running: how many leases of this shard are running.
        part: this shard's part of all waiting entries, 0 to 1.
    """
    # Not 0, because an empty shard may have got entries since its last answer.
    return max(1, running + max(min(1, free), ceil(free * part)))
