"""What other processes do with a Queue that they are given; spawned ones import it by this name."""

from __future__ import annotations

import os
from typing import Any


def double_until_none(q: Any, results: Any) -> None:
    """Put the double of each item of *q* into *results*, and the pid; end without closing anything."""
    while (item := q.get()) is not None:
        results.put((2 * item, os.getpid()))
        q.task_done()
    q.task_done()
