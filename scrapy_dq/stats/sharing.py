"""When a worker tells the frontier what its SharedStats have counted."""

from __future__ import annotations

import asyncio
import logging

from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable
from scrapy_dq.frontier.wire import pack_tally
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.stats.collector import SharedStats

logger = logging.getLogger(__name__)
MAX_DELTAS = 500
"""Of one trip: bounds how long it holds Redis."""
LAST_S = 1.0
"""How long the end of a crawl waits for its last tally."""


class StatsSharing:
    """One coroutine that tells every *interval_s*; a tally that got no reply is told again, and counts once.

    CRASH: what was not told is not counted, that of one interval at most.
    """

    def __init__(self, stats: SharedStats, frontier: Frontier, worker: Worker, interval_s: float) -> None:
        self._stats = stats
        self._frontier = frontier
        self._worker = worker
        self._interval_s = interval_s
        self._source = worker.id  # for good: a repeat after the worker has registered anew is a repeat, too
        self._number = 0
        self._unanswered: bytes | None = None
        self._turn = asyncio.Lock()
        self._telling = asyncio.create_task(self._tell_on(), name=f"scrapy-dq stats {worker.id}")

    async def _tell_on(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.tell()
            except FrontierUnavailable:
                pass  # the worker tells of outages; the same is told again
            except FrontierError as error:
                logger.error("Stats are not shared any more: %s", error)
                return
            except Exception:
                logger.exception("Unexpected error while stats were shared; trying again")

    async def tell(self) -> None:
        """Tell all that has been counted so far.

        Raises:
            FrontierError: the next call repeats what was not answered.
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
                    return  # Redis came back older than this run: the worker registers anew first
                self._unanswered = None

    async def end(self) -> None:
        """Tell once more, with no great patience, and stop."""
        self._telling.cancel()
        try:
            await asyncio.wait_for(self.tell(), LAST_S)
        except (FrontierError, asyncio.TimeoutError) as error:
            logger.debug("The last tally was not answered: %r", error)
        except Exception:
            logger.exception("Unexpected error in the last tally")  # the worker has to leave in any case
