"""Python's garbage collector, in a process that crawls."""

from __future__ import annotations

import gc

_crawls = 0
_frozen = False


def freeze() -> None:
    """Exempt all objects of this moment from garbage collection, until the last crawl of the process ends.

    They are mostly modules, classes and settings, four of five objects of a crawl, and every full collection
    would look at all of them, which takes up to a fifth of a worker's time. What dies is freed as ever,
    unless it is part of a cycle. Call `release` once for each call.
    """
    global _crawls, _frozen
    _crawls += 1
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def release() -> None:
    """Note that a crawl has ended; after the last one nothing is exempt."""
    global _crawls
    _crawls -= 1
    if not _crawls:
        thaw()


def thaw() -> bool:
    """Exempt nothing, until the next `freeze`; return whether anything was exempt.

    The functions of `gc` that look for objects find no exempt one.
    """
    global _frozen
    was, _frozen = _frozen, False
    if was:
        gc.unfreeze()
    return was
