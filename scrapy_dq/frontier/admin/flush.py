"""Deletes a crawl. While a worker is live, it deletes the crawl only if the user forces it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest

from scrapy_dq.frontier.admin.liveness import require_no_live_worker
from scrapy_dq.frontier.admin.shards import node_of
from scrapy_dq.frontier.answers import Flushed
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import CrawlReplaced
from scrapy_dq.frontier.scan import scan

logger = logging.getLogger(__name__)
PURGE_S = 10.0
"""Maximum number of seconds for which a starting worker that has deleted a crawl searches this Redis for
keys of the crawl that no index names. This is enough for about ten million keys."""


_AT_START = (
    ": SCHEDULER_FLUSH_ON_START would delete the crawl under it. Stop that worker first, choose another "
    "crawl name with DQ_CRAWL, or leave the setting out to join it"
)


async def flush(
    frontier: Frontier,
    ttl_s: float,
    purpose: str = "SCHEDULER_FLUSH_ON_START",
    refused: str = _AT_START,
    dead: dict[str, int | None] | None = None,
) -> Flushed:
    """Delete the home shard, even if its data is invalid, and return the result.

    Waits up to *ttl_s* seconds for heartbeats if workers of other machines are registered.

    Args:
        purpose: the setting or command that requests the deletion, for the log.
        refused: the end of the error message, after "worker ID of crawl NAME is alive".
        dead: the dead workers that an earlier `require_no_live_worker` has found.
    Raises:
        FrontierRefused: a worker is live; nothing was deleted.
    """
    dead = {} if dead is None else dead
    while True:
        await require_no_live_worker(frontier, ttl_s, purpose, refused, dead)
        flushed = await frontier.flush(sorted(dead))
        if not flushed.joined:
            return flushed
        # Another worker has joined since the check, so check again.


async def flush_all(
    delete: Callable[[Frontier], Awaitable[Flushed]],
    of_shard: Callable[[int], Awaitable[Frontier]],
    shards: int,
    budget_s: float = math.inf,
) -> list[Flushed]:
    """Delete the crawl in all its shards, and return the result for each shard.

    Home is deleted first, because without home there is no crawl. After an interruption, `scrapy dq clear
    --all` deletes the rest, because it finds the other shards by their names.

    Args:
        delete: deletes home: `flush`, or a call that forces the deletion.
        of_shard: returns the frontier of a shard.
        shards: the number of shards; home may know of more.
        budget_s: for how many seconds to search all keys of this Redis for the crawl's keys that no index
            names.
    """
    frontiers = [await of_shard(number) for number in range(shards)]
    epochs = [await each.epoch() for each in frontiers[1:]]
    first = await delete(frontiers[HOME])
    frontiers += [await of_shard(number) for number in range(shards, first.shards)]
    flushed = [first, *await flush_others(frontiers[1:], epochs)]
    if not any(each.left for each in flushed) and await purge(frontiers, budget_s) < 0:
        logger.warning(
            "Crawl %r is deleted. Keys of it that no index names may be left: the search of this Redis did "
            "not end within %.0f s. `scrapy dq clear --all` searches all keys",
            frontiers[HOME].crawl, budget_s,
        )  # fmt: skip
    return flushed


async def flush_others(others: Sequence[Frontier], epochs: Sequence[bytes]) -> list[Flushed]:
    """Delete the other shards of a crawl whose home was deleted, and return the results.

    Without home, these shards belong to no crawl, even if a worker is still alive there. If another crawl has
    begun in a shard since, that shard stays.

    Args:
        epochs: the epochs that these shards had before home was deleted. If there are more shards than
            epochs, the further shards are deleted whatever their epochs are.
    """
    found = []
    for other, epoch in zip_longest(others, epochs):
        try:
            found.append(await other.flush([], force=True, epoch=epoch))
        except CrawlReplaced:
            logger.warning("Crawl %r has just begun again: one of its shards was not deleted", other.crawl)
    return found


async def purge(frontiers: Sequence[Frontier], budget_s: float = math.inf) -> int:
    """Delete the keys of flushed shards that no index named; return their number, or -1 if the time was up.

    Raises:
        FrontierError: some keys may be left; repeat the call.
    """
    until, deleted = time.monotonic() + budget_s, 0
    of_nodes: dict[object, list[Frontier]] = {}
    for frontier in frontiers:
        of_nodes.setdefault(node_of(frontier.client), []).append(frontier)
    for here in of_nodes.values():
        named = {each.name: each for each in here}
        async for part in scan(here[0].client, list(named)):
            for name, found in part.items():
                if any(found):
                    deleted += await named[name].purge(found)
            if time.monotonic() >= until:
                return -1
    return deleted
