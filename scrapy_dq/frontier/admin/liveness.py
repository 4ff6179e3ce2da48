"""Check from outside whether a worker of a crawl is live, before an operation that requires that none is."""

from __future__ import annotations

import asyncio
import logging
import time

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.worker.heartbeat import Observer
from scrapy_dq.frontier.worker.identity import certainly_dead, own_identity

logger = logging.getLogger(__name__)
LOOK_S = 1.0


async def find_alive(frontier: Frontier, ttl_s: float, purpose: str, dead: dict[str, int | None]) -> str:
    """Return the printable id of a live worker; empty: all members are dead.

    Waits up to *ttl_s* seconds for heartbeats if workers of other machines are registered.

    Args:
        purpose: the setting or command that asks, for the log.
        dead: ids of dead workers, each with its heartbeat (None: of no interest); further ones are added. One
            whose heartbeat has moved since was only frozen, and is live.
    """
    own = own_identity()
    observer = Observer(ttl_s, LOOK_S)
    beats: dict[str, int] = {}
    told = False
    while True:
        members = await frontier.members()
        dead.update((m.worker_id, None) for m in members if certainly_dead(m.identity, own))
        unsure = {m.worker_id: m.beat for m in members if m.worker_id not in dead}
        known = beats | dead
        moving = [m.worker_id for m in members if known.get(m.worker_id) not in (None, m.beat)]
        if moving or not unsure:
            return ascii(moving[0])[1:-1] if moving else ""
        if not told:
            logger.info(
                "%s: watching for up to %.0f s whether %s is alive", purpose, ttl_s,
                ascii(", ".join(sorted(unsure)))[1:-1],
            )  # fmt: skip
            told = True
        beats = unsure
        dead.update((each, unsure[each]) for each in observer.observe(unsure, time.monotonic())[1])
        await asyncio.sleep(LOOK_S)
