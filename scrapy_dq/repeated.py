"""Work that repeats at intervals beside a crawl, and never disturbs the crawl."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from scrapy_dq.frontier.model import FrontierError, FrontierUnavailable

logger = logging.getLogger(__name__)


class Repeated:
    """Calls a coroutine function at intervals, until `stop`; logs its errors."""

    def __init__(
        self,
        problem: str,
        call: Callable[[], Awaitable[None]],
        every_s: float,
        *,
        first_s: float | None = None,
    ) -> None:
        """
        Args:
            problem: the consequence of a failed call, for the log.
            first_s: the pause before the first call; None: the pause is *every_s*.
        """
        self._problem = problem
        self._call = call
        self._every_s = every_s
        self._first_s = every_s if first_s is None else first_s
        self._stopped = False
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def _repeat(self) -> None:
        pause_s, last_error = self._first_s, ""
        # The flag is needed, because before Python 3.12 wait_for() loses a cancellation that arrives at the
        # same time as an answer.
        while not self._stopped:
            await asyncio.sleep(pause_s)
            pause_s = self._every_s
            try:
                await self._call()
            except FrontierUnavailable:
                pass  # the worker reports outages
            except FrontierError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    logger.error("%s: %s", self._problem, error)
            except Exception:
                logger.exception("Unexpected error, trying again. %s", self._problem)

    async def call_once(self, timeout_s: float) -> None:
        """Make a last call, which takes no longer than *timeout_s*, and stop."""
        try:
            await asyncio.wait_for(self._call(), timeout_s)
        except (FrontierError, asyncio.TimeoutError) as error:
            logger.debug("The last call was not answered: %r. %s", error, self._problem)
        except Exception:  # the worker leaves in any case
            logger.exception("Unexpected error in the last call. %s", self._problem)
        self.stop()

    def stop(self) -> None:
        """Make no more calls."""
        self._stopped = True
        self._task.cancel()
