"""Python's garbage collector, in a process that crawls."""

from __future__ import annotations

import gc

_frozen = False


def freeze_start() -> None:
    """Exempt all objects of this moment from garbage collection, until the process ends; once in a process.

    They are mostly modules, classes and settings, four of five objects of a crawl, and every full collection
    would look at all of them, which takes a fifth of a worker's time. What dies is freed as ever, unless it
    is part of a cycle.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()
