"""Checks from outside that no worker of a crawl is live, for operations that require this."""

from __future__ import annotations

import asyncio
import logging
import time

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.frontier.worker.heartbeat import Observer
from scrapy_dq.frontier.worker.identity import certainly_dead, own_identity

logger = logging.getLogger(__name__)
POLL_S = 1.0


async def require_no_live_worker(
    frontier: Frontier, ttl_s: float, purpose: str, refused: str, dead: dict[str, int | None]
) -> None:
    """Require that all members are dead.

    Waits up to *ttl_s* seconds for heartbeats if workers of other machines are registered.

    Args:
        purpose: the setting or command that requires this, for the log.
        refused: the end of the error message, after "worker ID of crawl NAME is alive".
        dead: ids of dead workers, each with its last heartbeat (None: its process is gone). This call adds
            the dead workers that it finds. If the heartbeat of such a worker has changed since, the worker
            was only frozen, and counts as live.
    Raises:
        FrontierRefused: a worker is live.
    """
    own = own_identity()
    observer = Observer(ttl_s, POLL_S)
    beats: dict[str, int] = {}
    logged = False
    while True:
        members = await frontier.members()
        dead.update((m.worker_id, None) for m in members if certainly_dead(m.identity, own))
        maybe_alive = {m.worker_id: m.beat for m in members if m.worker_id not in dead}
        known = beats | dead
        moving = [m.worker_id for m in members if known.get(m.worker_id) not in (None, m.beat)]
        if moving:
            alive = ascii(moving[0])[1:-1]
            raise FrontierRefused(f"worker {alive} of crawl {frontier.crawl!r} is alive{refused}")
        if not maybe_alive:
            return
        if not logged:
            logger.info(
                "%s: watching for up to %.0f s whether %s is alive", purpose, ttl_s,
                ascii(", ".join(sorted(maybe_alive)))[1:-1],
            )  # fmt: skip
            logged = True
        beats = maybe_alive
        dead.update((each, maybe_alive[each]) for each in observer.observe(maybe_alive, time.monotonic())[1])
        await asyncio.sleep(POLL_S)
