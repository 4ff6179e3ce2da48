"""Start afresh: delete a crawl, but never under a worker that lives."""

from __future__ import annotations

from scrapy_dq.frontier.alive import find_alive
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Census, FrontierRefused


async def flush(frontier: Frontier, ttl_s: float) -> Census:
    """Delete everything of the crawl and return what there was.

    Waits up to *ttl_s* if workers of other machines are registered, to see whether they beat.

    Raises:
        FrontierRefused: a worker lives; nothing was deleted.
    """
    dead: set[str] = set()
    while True:
        alive = await find_alive(frontier, ttl_s, "SCHEDULER_FLUSH_ON_START", dead)
        if alive:
            raise _alive(frontier.crawl, alive)
        joined, census = await frontier.flush(sorted(dead))
        if not joined:
            return census
        # Somebody joined in between: look at them too.


def _alive(crawl: str, worker_id: str) -> FrontierRefused:
    return FrontierRefused(
        f"SCHEDULER_FLUSH_ON_START would delete crawl {crawl!r} under worker {worker_id}, which is alive. "
        f"Stop that worker first, choose another crawl name with DQ_CRAWL, or leave the setting out to "
        f"join it"
    )
