"""Python's garbage collector, in a process that crawls."""

from __future__ import annotations

import gc

_crawls = 0
_frozen = False


def freeze() -> None:
    """Exempt all existing objects from garbage collection, until the last crawl of the process ends.

    Most of these objects are modules, classes and settings. They are four fifths of all objects of a crawl.
    Every full collection would look at all of them, which takes up to a fifth of a worker's time. Python
    still frees an exempt object when its last reference is gone, unless the object is part of a cycle. Call
    `release` once for each call of this function.
    """
    global _crawls, _frozen
    _crawls += 1
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def release() -> None:
    """Record that a crawl has ended. After the end of the last crawl, no object is exempt."""
    global _crawls
    _crawls -= 1
    if not _crawls:
        thaw()


def thaw() -> bool:
    """End all exemptions until the next `freeze`; return whether there were any.

    The functions of `gc` that search for objects, such as `get_referrers`, do not find exempt objects.
    """
    global _frozen
    was, _frozen = _frozen, False
    if was:
        gc.unfreeze()
    return was
