"""Functions that other processes run with a given Queue. Spawned processes import this module by name."""

from __future__ import annotations

import os
import threading
from typing import Any


def double_until_none(q: Any, results: Any) -> None:
    """Put the double of each item of *q*, with the pid, into *results*. End without closing the Queue."""
    # The thread is not a daemon, so the process ends only after this thread.
    threading.Thread(target=_double, args=(q, results)).start()


def _double(q: Any, results: Any) -> None:
    while (item := q.get()) is not None:
        results.put((2 * item, os.getpid()))
        q.task_done()
    q.task_done()
