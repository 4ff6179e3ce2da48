"""A Queue's thread with its event loop, and its behaviour when the process ends or forks."""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from multiprocessing import util
from typing import Any

from scrapy_dq.queue.calls import ShutDown

logger = logging.getLogger(__name__)
CLOSING_S = 10.0
"""Seconds that the end of a process waits for each of its queues, beyond the time limit of that queue."""


# `_open` contains members. Their threads have to end before the process ends. `_forkable` contains queues.
_open: set[Any] = set()
_forkable: weakref.WeakSet[Any] = weakref.WeakSet()
_in_child: Any = None
_inherited: list[Any] = []
"""In a child, the parent's members. They are never garbage-collected, which would remove their event loops
from the epoll that both processes share."""


def opened(obj: Any) -> None:
    """Register a member, so that it is closed at the end of this process."""
    _open.add(obj)


def closed(obj: Any) -> None:
    """Record that a member is closed."""
    _open.discard(obj)


def watch(obj: Any) -> None:
    """Register a queue.

    Each forked child of this process calls *obj*.forget(), and closes its queues at its end.
    """
    _forkable.add(obj)
    # If this is a child that was started with *obj*, register now, because the main thread may end before any
    # queue is opened.
    util.register_after_fork(obj, _close_at_end_of_child)
    if multiprocessing.parent_process() is not None:
        _close_at_end_of_child(obj)


def _close_at_end_of_child(_: Any) -> None:
    # A child of multiprocessing ends without calling the functions of atexit.
    global _in_child
    if _in_child is None or not _in_child.still_active():
        _in_child = util.Finalize(None, _close_last, exitpriority=10)


def _close_last() -> None:
    # A child of multiprocessing waits for its threads only after this call, and they may still use queues.
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    _close_all()


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        each.begin_close()
    for each in list(_open):
        each.await_closed()


def _after_fork() -> None:
    _inherited.extend(_open)
    _open.clear()
    for each in list(_forkable):
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class LoopThread:
    """Runs one coroutine to its end in a daemon thread.

    It does not use asyncio.run(), which starts another thread at its end. Python 3.12 forbids new
    threads during its shutdown.
    """

    def __init__(self, live: Callable[[], Coroutine[Any, Any, None]], last: Callable[[], None]) -> None:
        """
        Args:
            live: the coroutine; it calls `stop_accepting` just before it returns.
            last: always called in the thread at the very end.
        """
        self.opened: Future[None] = Future()
        """*live* sets a result when it is ready for calls, or an exception if it never will be ready."""
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
        """Execute a call in this thread; callable from any thread.

        Raises:
            ShutDown: the thread accepts no more calls.
        """
        with self._gate:
            if not self._accepts:
                raise ShutDown
            self._loop.call_soon_threadsafe(call, *args)

    async def stop_accepting(self) -> None:
        """Refuse further calls, and execute the submitted ones."""
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
