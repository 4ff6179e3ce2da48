"""A worker's reports of its SharedStats to the frontier."""

from __future__ import annotations

import asyncio
import logging

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable
from scrapy_dq.frontier.wire import pack_tally
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.stats.collector import SharedStats

logger = logging.getLogger(__name__)
EVERY_S = 5.0
"""A worker that is killed loses what it has counted since; one trip to Redis in this time costs nothing."""
MAX_DELTAS = 500
"""Limit of one trip, which bounds how long it blocks Redis."""
LAST_S = 1.0
"""How long the end of a crawl waits for the last tally."""


class StatsSharing:
    """One coroutine that sends a tally every EVERY_S; without a reply it is repeated, and counts once.

    CRASH: what was not sent is not counted: at most one interval.
    """

    def __init__(self, stats: SharedStats, frontier: Frontier, worker: Worker) -> None:
        self._stats = stats
        self._frontier = frontier
        self._worker = worker
        self._source = worker.id  # stays the same after a rejoin, so that a repeat is recognised
        self._number = 0
        self._unanswered: bytes | None = None
        self._turn = asyncio.Lock()
        self._telling = asyncio.create_task(self._tell_on(), name=f"scrapy-dq stats {worker.id}")

    async def _tell_on(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.tell()
            except FrontierUnavailable:
                pass  # the worker reports outages; the same tally is sent again
            except FrontierError as error:
                logger.error("Stats are not shared any more: %s", error)
                return
            except Exception:
                logger.exception("Unexpected error while stats were shared; trying again")

    async def tell(self) -> None:
        """Send all that has been counted so far.

        Raises:
            FrontierError: the next call repeats the tally that got no reply.
        """
        async with self._turn:
            while True:
                if self._unanswered is None:
                    deltas = self._stats.take_deltas(MAX_DELTAS)
                    if not deltas:
                        return
                    self._number += 1
                    self._unanswered = pack_tally(deltas)
                worker = self._worker
                status = await self._frontier.tally(
                    self._source, worker.epoch, worker.run, self._number, self._unanswered
                )
                if status == "RESYNC":
                    return  # Redis was rolled back to before this run: the worker has to rejoin first
                self._unanswered = None

    async def end(self) -> None:
        """Send a last tally, within LAST_S, and stop."""
        self._telling.cancel()
        try:
            await asyncio.wait_for(self.tell(), LAST_S)
        except (FrontierError, asyncio.TimeoutError) as error:
            logger.debug("The last tally was not answered: %r", error)
        except Exception:
            logger.exception("Unexpected error in the last tally")  # the worker has to leave in any case
