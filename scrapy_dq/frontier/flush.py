"""Start afresh: delete a crawl, but never under a worker that lives."""

from __future__ import annotations

import asyncio
import logging
import time

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.heartbeat import Observer
from scrapy_dq.frontier.identity import certainly_dead, own_identity
from scrapy_dq.frontier.model import Census, FrontierRefused

logger = logging.getLogger(__name__)
LOOK_S = 1.0


async def flush(frontier: Frontier, ttl_s: float) -> Census:
    """Delete everything of the crawl and return what there was.

    Waits up to *ttl_s* if workers of other machines are registered, to see whether they beat.

    Raises:
        FrontierRefused: a worker lives; nothing was deleted.
    """
    own = own_identity()
    observer = Observer(ttl_s, LOOK_S)
    dead: set[str] = set()
    beats: dict[str, int] = {}
    told = False
    while True:
        members = await frontier.members()
        dead.update(m.worker_id for m in members if certainly_dead(m.identity, own))
        unsure = {m.worker_id: m.beat for m in members if m.worker_id not in dead}
        moving = [i for i, beat in unsure.items() if i in beats and beats[i] != beat]
        if moving:
            raise _alive(frontier.crawl, moving[0])
        if not unsure:
            live, census = await frontier.flush(sorted(dead))
            if not live:
                return census
            continue  # somebody joined in between: look at them too
        if not told:
            logger.info(
                "SCHEDULER_FLUSH_ON_START: watching for up to %.0f s whether %s is alive",
                ttl_s,
                ", ".join(sorted(unsure)),
            )
            told = True
        beats = unsure
        dead.update(observer.observe(unsure, time.monotonic())[1])
        await asyncio.sleep(LOOK_S)


def _alive(crawl: str, worker_id: str) -> FrontierRefused:
    return FrontierRefused(
        f"SCHEDULER_FLUSH_ON_START would delete crawl {crawl!r} under worker {worker_id}, which is alive. "
        f"Stop that worker first, choose another crawl name with DQ_CRAWL, or leave the setting out to "
        f"join it"
    )
