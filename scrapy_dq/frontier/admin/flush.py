"""Delete a crawl, but not while a worker is live, unless this is requested explicitly."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_dq.frontier.admin.liveness import find_alive
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Flushed, FrontierRefused


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
) -> Flushed:
    """Delete everything of the crawl, whatever is stored, and return what was deleted.

    Waits up to *ttl_s* seconds for heartbeats if workers of other machines are registered.

    Args:
        purpose: the setting or command that requests it, for the log.
        refused: returns the error message, given the crawl's name and the id of a live worker.
    Raises:
        FrontierRefused: a worker is live; nothing was deleted.
    """
    dead: set[str] = set()
    while True:
        await need_nobody(frontier, ttl_s, purpose, refused, dead)
        flushed = await frontier.flush(sorted(dead))
        if not flushed.joined:
            return flushed
        # A worker has joined meanwhile: check it, too.


async def need_nobody(
    frontier: Frontier, ttl_s: float, purpose: str, refused: Callable[[str, str], str], dead: set[str]
) -> None:
    """Raise FrontierRefused if a worker is live; else add all members to *dead*."""
    alive = await find_alive(frontier, ttl_s, purpose, dead)
    if alive:
        raise FrontierRefused(refused(frontier.crawl, alive))


async def flush_under_workers(frontier: Frontier) -> Flushed:
    """Delete everything of the crawl, even if workers are live, and return what was deleted.

    Live workers find the frontier gone, and close with reason frontier_lost.
    """
    registered: set[str] = set()
    while True:
        registered |= {member.worker_id for member in await frontier.members(anyhow=True)}
        flushed = await frontier.flush(sorted(registered))
        if not flushed.joined:
            return flushed
