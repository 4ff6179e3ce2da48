"""Controls a running crawl, for commands and programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from scrapy_dq.frontier.admin.shards import command, shards_of
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.frontier.model import Hold, fits_partition
from scrapy_dq.frontier.wire import by_bytes, whole_ms

MAX_DELAY_S = 86_400
MAX_CONCURRENCY = 1_000_000
MAX_BLOCK_S = 31_536_000
"""The greatest limits that a user may set."""


@dataclass(frozen=True)
class PartitionLimits:
    """The current limits of one partition, over all workers."""

    delay_s: float
    """Seconds between two requests; 0: no delay."""
    concurrency: int
    """Maximum number of requests in flight; 0: no limit."""
    blocked_s: float
    """Remaining seconds of a block; 0: no block."""
    budget: int = 0
    """Maximum number of requests per run or day, including requests in flight; 0: no limit."""
    spent: int = 0
    """Number of done and failed requests that count against the budget."""


def limit(
    client: Any,
    crawl: str,
    partition: str,
    *,
    delay_s: float | None = None,
    concurrency: int | None = None,
    block_s: float | None = None,
    budget: int | None = None,
    by: str = "",
) -> PartitionLimits | None:
    """Change the limits of one partition; all workers obey from their next exchange on. Blocking.

    The change lasts until the run is finished, or until a worker with other limits in its settings joins.
    A call without any limit changes nothing.

    Args:
        client: a `redis` client that decodes nothing, e.g. from `scrapy_dq.backend.connection.connect_url`.
        partition: usually a host name; it may have no entries yet.
        delay_s: seconds between two requests; 0: no delay; negative: the crawl's setting.
        concurrency: maximum number of requests in flight; 0: no limit; negative: the crawl's setting.
        budget: maximum number of requests per run or day (see `PartitionLimits`); 0: no limit; negative: the
            crawl's setting.
        block_s: block the partition for this many seconds; 0: lift a block.
        by: the caller's name for the journal of the crawl, which keeps at most 80 bytes of it.
    Returns:
        The limits in force now; None: there is no such crawl.
    Raises:
        ValueError: *partition* is not a valid name.
        redis.exceptions.RedisError: no reply.
        FrontierRefused: a key of the crawl has a foreign type.
    """
    if not fits_partition(partition):
        raise ValueError(f"{partition[:100]!a} is too long for a partition's name, or has control characters")
    delay_ms = -1 if delay_s is None else whole_ms(delay_s) if delay_s >= 0 else -2
    slots, most = (-1 if n is None else n if n >= 0 else -2 for n in (concurrency, budget))
    block_ms = -1 if block_s is None else max(0, whole_ms(block_s))
    client, shard = shards_of(client, crawl).of_partition(partition)
    args = partition.encode(), delay_ms, slots, block_ms, by_bytes(by), most
    found = command(client, shard, "limit", *args)
    if found is None:
        return None
    delay_ms, concurrency, blocked_ms, budget, spent = found
    return PartitionLimits(delay_ms / 1000, int(concurrency), blocked_ms / 1000, int(budget), int(spent))


def wake(client: Any, crawl: str) -> None:
    """Make idle workers exchange again within a second or two. Blocking.

    Raises:
        See `steer`.
    """
    command(client, Shard(crawl, HOME), "steer", "wake", b"")


class Command(str, Enum):
    """A command for all workers of a crawl."""

    PAUSE = "pause"
    DRAIN = "drain"
    RESUME = "resume"
    STOP = "stop"
    COMPLETE = "complete"
    """Interrupted `start()` methods count as complete, so that the run may finish without them. The run is
    finished immediately if nothing else is left and no worker is registered."""


def steer(client: Any, crawl: str, action: Command, by: str = "") -> Hold | None:
    """Send *action* to all workers. Each worker that reaches Redis gets it within two seconds. Blocking.

    `Hold` describes pause and drain, which last until the run is finished, or until `resume`. A stop
    closes each worker that is registered at this moment, as SIGTERM does.

    Args:
        client: a `redis` client that decodes nothing, e.g. from `scrapy_dq.backend.connection.connect_url`.
        by: see `limit`.
    Returns:
        The hold that is in force now; None: there is no such crawl.
    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: a key of the crawl has a foreign type.
    Source: transitions/steer.lua
    """
    found = command(client, Shard(crawl, HOME), "steer", action.value, by_bytes(by))
    return None if found is None else Hold(found[1].decode("utf-8", "replace"))
