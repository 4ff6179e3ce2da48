"""An event loop in a thread of its own, which other threads can call."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from scrapy_dq.queue.calls import ShutDown

logger = logging.getLogger(__name__)


class LoopThread:
    """Runs one coroutine to its end in a daemon thread.

    Not asyncio.run(): that starts another thread at its end, which Python 3.12 forbids during shutdown.
    """

    def __init__(self, live: Callable[[], Coroutine[Any, Any, None]], last: Callable[[], None]) -> None:
        """
        Args:
            live: the coroutine; it calls `stop_accepting` just before it returns.
            last: called in the thread at the very end, in any case.
        """
        self.opened: Future[None] = Future()
        """Set by *live* when it is ready for calls, or set to the exception if it never will be."""
        self.ended = threading.Event()
        self._live = live
        self._last = last
        self._gate = threading.RLock()
        self._accepts = True
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="scrapy-dq-queue", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, call: Callable[..., object], *args: Any) -> None:
        """Have the thread make a call; from any thread.

        Raises:
            ShutDown: the thread accepts no calls any more.
        """
        with self._gate:
            if not self._accepts:
                raise ShutDown
            self._loop.call_soon_threadsafe(call, *args)

    async def stop_accepting(self) -> None:
        """Refuse further calls, and make those already submitted."""
        with self._gate:
            self._accepts = False
        await asyncio.sleep(0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except Exception as error:
            logger.exception("The thread of a Queue has ended unexpectedly")
            if not self.opened.done():
                self.opened.set_exception(error)
        finally:
            with self._gate:
                self._accepts = False
            try:
                self._end_tasks()
                self._last()
            finally:
                self._loop.close()
                self.ended.set()

    def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
