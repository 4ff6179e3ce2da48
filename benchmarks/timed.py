"""Schedulers that record how long each call of the engine took, and how late the event loop was."""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from pathlib import Path
from typing import Any

from scrapy import signals
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler

from scrapy_dq import Scheduler
from scrapy_dq.scheduling.ends import Ends

CALLED = ("enqueue_request", "next_request", "has_pending_requests")
"""Methods that the engine calls again and again."""
BESIDE = ("open", "close", "settled", "downloaded", "_sent")
"""Methods that the engine calls once, and methods of `Ends` that run in hooks of the engine.

The time of a coroutine ends at its first wait.
"""
STEPS, COLLECTION, LOOP = "steps", "garbage collection", "loop"
TICK_S = 0.005

Row = tuple[float, float, float]
"""The start of a call by `time.monotonic()`, its duration, and its CPU time, all in seconds."""


class Notes:
    """The records of one process. They are in memory during the crawl, and then in a file for each kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self._collection_began = 0.0

    def wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls *original* and records the call."""
        add = self._rows[name].extend

        @wraps(original)
        def method(*args: Any) -> Any:
            cpu, began = time.thread_time(), time.monotonic()
            try:
                return original(*args)
            finally:
                add((began, time.monotonic() - began, time.thread_time() - cpu))

        return method

    def listen(self) -> None:
        """Record garbage collections, and how late a timer of the event loop is."""
        gc.callbacks.append(self._collected)
        self._loop = asyncio.get_running_loop()
        self._tick(time.monotonic())

    def make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        """Make a task. Record each step of scrapy_dq's coroutines. Source: asyncio, loop.set_task_factory"""
        if "scrapy_dq" in getattr(getattr(coroutine, "cr_code", None), "co_filename", ""):
            coroutine = _Steps(coroutine, self)
        return asyncio.Task(coroutine, loop=loop, **options)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.monotonic()
        else:
            took = time.monotonic() - self._collection_began
            # In rows of collections, the generation is in the place of the CPU time.
            self._rows[COLLECTION].extend((self._collection_began, took, info["generation"]))

    def _tick(self, due: float) -> None:
        now = time.monotonic()
        self._rows[LOOP].extend((due, now - due, 0))
        self._loop.call_later(TICK_S, self._tick, now + TICK_S)

    def write(self) -> None:
        """Write all records."""
        for name, rows in self._rows.items():
            with (self._folder / f"{name}.rows").open("wb") as file:
                rows.tofile(file)


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are recorded. A step goes from one wait to the next."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], notes: Notes) -> None:
        self._coroutine = coroutine
        self._send = notes.wrap(STEPS, coroutine.send)
        self._throw = notes.wrap(STEPS, coroutine.throw)

    def send(self, value: Any) -> Any:
        """Continue. Source: collections.abc.Coroutine"""
        return self._send(value)

    def throw(self, *error: Any) -> Any:
        """Continue with an exception. Source: collections.abc.Coroutine"""
        return self._throw(*error)

    def close(self) -> None:
        """Close the coroutine. Source: collections.abc.Coroutine"""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the rows that a process has written into *folder*, by kind."""
    found = {}
    for path in folder.glob("*.rows"):
        flat = array("d", path.read_bytes())
        found[path.stem] = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    return found


class _Timed:
    """A mixin that times the methods of a scheduler. It comes before the scheduler's class."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """Build the scheduler, and wrap its methods. Source: scrapy/core/scheduler.py"""
        scheduler: Any = super().from_crawler(crawler)  # type: ignore[misc]
        notes = Notes(Path(crawler.settings["NOTES"]))
        original = scheduler.open

        def open_and_watch(spider: Any) -> Any:
            asyncio.get_running_loop().set_task_factory(notes.make_task)
            return original(spider)

        scheduler.open = open_and_watch
        for name in CALLED + BESIDE:
            of = Ends if hasattr(Ends, name) else scheduler  # the process has one crawl, so one Ends
            if hasattr(of, name):
                setattr(of, name, notes.wrap(name, getattr(of, name)))
        crawler.signals.connect(notes.listen, signals.spider_opened, weak=False)
        crawler.signals.connect(notes.write, signals.engine_stopped, weak=False)
        return scheduler


class TimedOurs(_Timed, Scheduler):
    """The scheduler of scrapy_dq, timed."""


class TimedMemory(_Timed, ScrapyScheduler):
    """Scrapy's scheduler, timed."""
