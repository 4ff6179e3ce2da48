"""Start afresh: delete a crawl, but never under a worker that lives, unless it is said so."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_dq.frontier.admin.liveness import find_alive
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Census, FrontierRefused


def _refused_at_start(crawl: str, worker_id: str) -> str:
    return (
        f"SCHEDULER_FLUSH_ON_START would delete crawl {crawl!r} under worker {worker_id}, which is alive. "
        f"Stop that worker first, choose another crawl name with DQ_CRAWL, or leave the setting out to "
        f"join it"
    )


async def flush(
    frontier: Frontier,
    ttl_s: float,
    purpose: str = "SCHEDULER_FLUSH_ON_START",
    refused: Callable[[str, str], str] = _refused_at_start,
) -> Census:
    """Delete everything of the crawl and return what there was.

    Waits up to *ttl_s* if workers of other machines are registered, to see whether they beat.

    Args:
        purpose: who wants it, for the log.
        refused: makes the message of the names of the crawl and of a worker that lives.
    Raises:
        FrontierRefused: a worker lives; nothing was deleted.
    """
    dead: set[str] = set()
    while True:
        await need_nobody(frontier, ttl_s, purpose, refused, dead)
        joined, census = await frontier.flush(sorted(dead))
        if not joined:
            return census
        # Somebody joined in between: look at them too.


async def need_nobody(
    frontier: Frontier, ttl_s: float, purpose: str, refused: Callable[[str, str], str], dead: set[str]
) -> None:
    """Raise FrontierRefused if a worker lives; else add all that are registered to *dead*."""
    alive = await find_alive(frontier, ttl_s, purpose, dead)
    if alive:
        raise FrontierRefused(refused(frontier.crawl, alive))


async def flush_under_workers(frontier: Frontier) -> Census:
    """Delete everything of the crawl, whoever works on it, and return what there was.

    Workers that live find it gone, and close with reason frontier_lost.
    """
    registered: set[str] = set()
    while True:
        registered |= {member.worker_id for member in await frontier.members()}
        joined, census = await frontier.flush(sorted(registered))
        if not joined:
            return census
