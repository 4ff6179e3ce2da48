"""Steer a crawl from outside while it runs, for command lines and programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Hold, Order, fits_a_partition
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import limit_args, parse_limit, refuse


@dataclass(frozen=True)
class PartitionLimits:
    """What one partition may have now, all workers together."""

    delay_s: float
    concurrency: int
    """In flight; 0: no limit."""
    blocked_s: float
    """For how long it is left alone."""


def limit(
    client: Any,
    crawl: str,
    partition: str,
    *,
    delay_s: float | None = None,
    concurrency: int | None = None,
    block_s: float | None = None,
) -> PartitionLimits | None:
    """Change what one partition may have; all workers go by it from their next exchange on. Blocking.

    It holds until the run is finished, or until a worker joins whose settings differ from those in force.
    With no limit given, nothing is changed.

    Args:
        client: a `redis` client that decodes nothing, say from `scrapy_dq.backend.connection.connect_url`.
        partition: as a rule a host name; one that has nothing yet is fine.
        delay_s: seconds between two requests; 0: none; negative: as the settings say for the whole crawl.
        concurrency: requests in flight; 0: no limit; negative: as the settings say.
        block_s: leave the partition alone for so long; 0: not any more.
    Returns:
        What holds now; None: there is no such crawl.
    Raises:
        ValueError: no partition can have this name.
        redis.exceptions.RedisError: no reply.
        FrontierRefused: a key of the crawl has a foreign type.
    """
    if not fits_a_partition(partition):
        raise ValueError(f"{partition[:100]!a} is too long for a partition's name, or has control characters")
    args = limit_args(partition.encode(), delay_s, concurrency, block_s)
    reply = Script("limit", Order.FIFO).call_blocking(client, keys.meta(crawl), *args)
    refuse(reply)
    found = parse_limit(reply)
    return None if found is None else PartitionLimits(*found)


def wake(client: Any, crawl: str) -> None:
    """Have workers that are quiet, as nothing waited for them, look again within a second or two. Blocking.

    Raises:
        As of `steer`.
    """
    refuse(Script("steer", Order.FIFO).call_blocking(client, keys.meta(crawl), "wake"))


class Word(str, Enum):
    """What can be said to all workers of a crawl."""

    PAUSE = "pause"
    DRAIN = "drain"
    RESUME = "resume"
    STOP = "stop"
    COMPLETE = "complete"
    """A `start()` that was broken off is as good as done: the run may be finished without it."""


def steer(client: Any, crawl: str, word: Word) -> Hold | None:
    """Say *word* to all workers; each hears it within two seconds, if it hears anything. Blocking.

    `Hold` says what pause and drain do; they hold until the run is finished, or `resume`. To stop is said to
    those that are registered now: they close as on SIGTERM.

    Args:
        client: a `redis` client that decodes nothing, say from `scrapy_dq.backend.connection.connect_url`.
    Returns:
        What holds now; None: there is no such crawl.
    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: a key of the crawl has a foreign type.
    Source: transitions/steer.lua
    """
    reply = Script("steer", Order.FIFO).call_blocking(client, keys.meta(crawl), word.value)
    refuse(reply)
    return None if reply[0] != b"OK" else Hold(reply[2].decode())
