"""Virtual time: one queue of events for a schedule, and an event loop for each simulated process.

This module does not know Redis or crawls. Call `install` before the import of scrapy_dq, because some classes
of scrapy_dq bind `time.monotonic` and `random.uniform` as defaults.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any

BEGIN_S = 1_000_000.0
"""The time at which each schedule begins."""


class Endless(AssertionError):
    """A schedule has not ended within its time."""


class Thread:
    """A thread of a simulated process; its events wait while it is frozen."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.frozen_until = 0.0

    def freeze(self, seconds: float) -> None:
        """Delay all its events."""
        self.frozen_until = max(self.frozen_until, self.process.world.now + seconds)


class Process:
    """A simulated process with its event loop, heartbeat and clock; after a kill, it does nothing more."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.killed_at = float("inf")
        self.wall_offset_s = 0.0
        """How far its wall clock is ahead, in seconds."""
        self.main = Thread(self)
        self.heartbeat = Thread(self)
        self.loop = Loop(self)

    def kill(self) -> None:
        """End the process between two events: none of its code runs any more, not even a `finally`."""
        self.alive = False
        self.killed_at = self.world.now

    def freeze(self, seconds: float) -> None:
        """Delay all its events, as SIGSTOP does."""
        self.main.freeze(seconds)
        self.heartbeat.freeze(seconds)


class World:
    """The events of one schedule in order of their times; events of equal times in order of creation."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"{seed} world")  # independent of the faults, which are drawn elsewhere
        self.now = BEGIN_S
        self.running: Thread | None = None
        self.errors: list[BaseException] = []
        """Exceptions that events have raised, or that asyncio has reported."""
        self.over = False
        """Set this to end the schedule: no more events run."""
        self._events: list[tuple[float, int, Thread | None, Callable[[], Any]]] = []
        self._numbers = count()
        self.hosts = count()
        """Numbers for the hosts of workers."""

    def at(self, when: float, do: Callable[[], Any], thread: Thread | None = None) -> None:
        """Call *do* at *when* as an event of *thread*, or of no process if it is None."""
        now = self.now
        heappush(self._events, (when if when > now else now, next(self._numbers), thread, do))

    def run(self, until: float) -> None:
        """Run events until the schedule is over; raise Endless if it is not over at *until*."""
        queue, set_loop = self._events, events._set_running_loop
        while not self.over:
            if not queue or queue[0][0] > until:
                raise Endless(f"not at its end after {self.now - BEGIN_S:,.1f} s")
            when, number, thread, do = heappop(queue)
            if thread is None:
                self.now = when
                do()
            elif not thread.process.alive:
                continue
            elif when < thread.frozen_until:
                heappush(queue, (thread.frozen_until, number, thread, do))
            else:
                self.now = when
                self.running = thread
                set_loop(thread.process.loop)
                try:
                    do()
                except Exception as error:
                    self.errors.append(error)
                finally:
                    set_loop(None)
                    self.running = None

    def wall_s(self) -> float:
        """Return the wall clock of the running process."""
        return self.now + (self.running.process.wall_offset_s if self.running else 0.0)


class Handle:
    """A minimal and much cheaper replacement of asyncio's handle."""

    __slots__ = ("_args", "_callback", "_cancelled", "_when")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], when: float) -> None:
        self._callback = callback
        self._args = args
        self._when = when
        self._cancelled = False

    def run(self) -> None:
        if not self._cancelled:
            self._callback(*self._args)

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class Loop(asyncio.AbstractEventLoop):
    """A minimal event loop for asyncio that uses the events of a World."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: list[asyncio.Future[Any]] = []  # so that a killed process's tasks are never destroyed

    def time(self) -> float:
        return self._process.world.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        # The context is ignored, because no code here uses context variables.
        handle = Handle(callback, args, when)
        self._process.world.at(when, handle.run, self._process.main)
        return handle

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(0.0, callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._process.world.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **more)
        self._tasks.append(task)
        return task

    def unretrieved(self) -> list[BaseException]:
        """Return exceptions of its tasks that no code has retrieved."""
        lost = [task for task in self._tasks if getattr(task, "_log_traceback", False)]
        return [error for task in lost if (error := task.exception()) is not None]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._process.world.errors.append(context.get("exception") or RuntimeError(context["message"]))


_world: World | None = None


def world() -> World:
    """Return the world of the running schedule."""
    assert _world is not None
    return _world


def begin(seed: int) -> World:
    """Begin a schedule; from now on, this whole process uses its world's time and randomness."""
    global _world
    random.seed(seed)
    _world = World(seed)
    return _world


def end() -> None:
    """End the schedule; the process uses real time and randomness again."""
    global _world
    _world = None


def install() -> None:
    """Replace this process's clocks and randomness; before `begin` they behave like the real ones."""
    real_time, real_monotonic, urandom = time.time, time.monotonic, os.urandom
    time.time = lambda: real_time() if _world is None else _world.wall_s()
    time.monotonic = lambda: real_monotonic() if _world is None else _world.now
    os.urandom = lambda size: urandom(size) if _world is None else _world.random.randbytes(size)
