"""What a Queue does when its process ends, or forks."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
import weakref
from multiprocessing import util
from typing import Any, Protocol

CLOSING_S = 10.0
"""How long the end of a process waits for its queues beyond the time limit of each."""


class Closes(Protocol):
    """An object with a thread that has to end before the process does."""

    def begin_close(self) -> None: ...
    def await_closed(self) -> None: ...


class Forgets(Protocol):
    """An object to reset in a child process, which has none of its threads and connections."""

    def forget(self) -> None: ...


_open: set[Closes] = set()
_forkable: weakref.WeakSet[Any] = weakref.WeakSet()
_in_child: Any = None
_inherited: list[Closes] = []
"""The parent's objects, in a child. Kept for ever: collecting one would remove its event loop from the epoll
that both processes share."""


def opened(what: Closes) -> None:
    """Close *what* at the end of this process."""
    _open.add(what)


def closed(what: Closes) -> None:
    """Do not close *what* at the end of this process."""
    _open.discard(what)


def watch(what: Forgets) -> None:
    """Call *what*.forget() in each child process forked from this one, and close open queues at its end."""
    _forkable.add(what)
    # In a child that was started with it, the main thread may end before anything is opened.
    util.register_after_fork(what, _close_at_end_of_child)
    if multiprocessing.parent_process() is not None:
        _close_at_end_of_child(what)


def _close_at_end_of_child(_: Forgets) -> None:
    # A child of multiprocessing ends without atexit.
    global _in_child
    if _in_child is None or not _in_child.still_active():
        _in_child = util.Finalize(None, _close_last, exitpriority=10)


def _close_last() -> None:
    # A child of multiprocessing waits for its threads only after this, and they may still use queues.
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
