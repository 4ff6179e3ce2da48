"""The worker of a process: one worker, or one per shard behind the same interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import MAX_LEASES, Identity
from scrapy_dq.frontier.worker.listener import Listener
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.frontier.worker.pace import Pace
from scrapy_dq.frontier.worker.worker import Worker


def worker_of(
    frontiers: Sequence[Frontier],
    crawl: Identity,
    options: WorkerOptions,
    listener: Listener,
    *,
    connect: Callable[[int], Any],
    capacity: Callable[[], int],
    limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
    pace: Callable[[int], Pace] = lambda number: Pace(),
) -> Worker:
    """Return the worker of this process in a crawl.

    Args:
        frontiers: the frontiers of all shards; the first one is home.
        connect: returns a client of `redis.asyncio` for the heartbeat in the frontier with this number;
            called in the heartbeat's thread.
        pace: returns the pace of the exchanges with the frontier with this number.

    For the other arguments, see `Worker`.
    """
    if len(frontiers) == 1:
        return Worker(
            frontiers[0], crawl, options, listener, connect=lambda: connect(0), capacity=capacity,
            limit=limit, pace=pace(0),
        )  # fmt: skip
    from scrapy_dq.sharding.worker import ShardedWorker  # a crawl with one frontier does not load it

    return ShardedWorker(
        frontiers, crawl, options, listener, connect=connect, capacity=capacity, limit=limit, pace=pace
    )
