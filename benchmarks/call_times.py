"""Computes figures about the calls that a process has recorded: quantiles, and the longest call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median
from typing import Any

from benchmarks.outage_crawl import Watched
from benchmarks.timed import BESIDE, CALLED, COLLECTION, LOOP, STEPS, Row

QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "99.9 %": 0.999, "99.99 %": 0.9999, "longest": 1.0}


def summary(watched: Watched) -> dict[str, Any]:
    """Return the figures for the page from a worker's records, with times in seconds."""
    collections = watched.rows.get(COLLECTION, [])
    methods = {name: watched.rows.get(name, []) for name in (*CALLED, *BESIDE, STEPS)}
    every = sorted(chain.from_iterable(methods[name] for name in CALLED + BESIDE))
    taken = sorted(row[1] for row in every)
    loop = watched.rows[LOOP]
    return {
        "pages": watched.pages,
        "quantiles": {name: _quantile(taken, part) for name, part in QUANTILES.items()},
        "methods": {
            name: {
                "calls": len(rows),
                "median": median([row[1] for row in rows]),
                "99.9 %": _quantile(sorted(row[1] for row in rows), 0.999),
                "longest": longest(rows, collections),
            }
            for name, rows in methods.items()
            if rows
        },
        "longest": longest(every, collections),
        "each_second": _each_second(every),
        "loop": max(row[1] for row in loop),
        "collection": max((row[1] for row in collections), default=0),
        "windows": {
            way: {
                "seconds": end - begin,
                "longest": longest(_within(every, begin, end), collections),
                "loop": max(row[1] for row in _within(loop, begin, end)),
            }
            for way, (begin, end) in watched.windows.items()
        },
    }


def longest(rows: Iterable[Row], collections: Sequence[Row]) -> list[float]:
    """Return four durations in seconds, three of them about the longest call.

    They are the time of this call, its CPU time, the time of garbage collections in it, and, over all calls,
    the largest CPU time of a call less the time of its garbage collections.

    Args:
        collections: the garbage collections, oldest first.
    """
    starts = [row[0] for row in collections]

    def collecting(row: Row) -> float:
        first, last = bisect_left(starts, row[0]), bisect_left(starts, row[0] + row[1])
        return sum(collection[1] for collection in collections[first:last])

    rows = list(rows)
    whole = max(rows, key=lambda row: row[1])
    return [whole[1], whole[2], collecting(whole), max(row[2] - collecting(row) for row in rows)]


def _within(rows: Iterable[Row], begin: float, end: float) -> list[Row]:
    """Return the calls that were running at *begin*, and the calls that began after it and before *end*."""
    return [row for row in rows if row[0] < end and row[0] + row[1] >= begin]


def _quantile(taken: Sequence[float], part: float) -> float:
    return taken[min(int(len(taken) * part), len(taken) - 1)]


def _each_second(rows: Sequence[Row]) -> list[float]:
    """Return the longest call of each second."""
    found: dict[int, float] = {}
    for began, took, _ in rows:
        second = int(began - rows[0][0])
        found[second] = max(found.get(second, 0), took)
    return [found.get(second, 0) for second in range(max(found) + 1)]
