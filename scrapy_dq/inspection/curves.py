"""The history of a crawl as curves of as many points as a picture has room for, and its events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scrapy_dq.inspection.history import paces, read_events, read_samples, said
from scrapy_dq.inspection.words import unanswered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy_dq.inspection.history import Pace, Sample
    from scrapy_dq.inspection.place import Place

MOST_POINTS = 360
CURVES = ("at", "pages_per_s", "left", "failed", "memory_bytes", "workers")
"""The numbers of a point; None: unknown."""


def read_curves(place: Place, *, minutes: bool) -> dict[str, Any]:
    """Return points of the samples that are kept, oldest first, and the events, newest first.

    Args:
        minutes: of two days; else of three hours.
    Raises:
        redis.exceptions.RedisError: no reply, or another type of key.
    """
    place.ask_all()
    samples = read_samples(place.shards, place.crawl, minutes=minutes)
    events = read_events(place.shards, place.crawl)
    return {
        "at": round(time.time(), 3),
        "curves": CURVES,
        "points": list(_points(samples)),
        "missing": list(unanswered(place.shards.unreachable)),
        "events": [
            {"at": event.at, "run": event.run, "kind": event.kind, "said": said(event), "who": event.who}
            for event in reversed(events)
        ],
    }


def _points(samples: Sequence[Sample]) -> Iterator[list[float | None]]:
    """Yield at most MOST_POINTS: of some samples beside each other, the mean rate, and the last counts."""
    found = list(zip(samples, paces(samples), strict=True))
    step = -(-len(found) // MOST_POINTS) or 1
    for begin in range(0, len(found), step):
        part = found[begin : begin + step]
        last = part[-1][0]
        yield [
            last.at, _mean([pace for _, pace in part]), last.waiting + last.delayed + last.in_flight,
            last.failed + last.dead, last.memory_bytes or None, last.workers,
        ]  # fmt: skip


def _mean(some: Sequence[Pace]) -> float | None:
    known = [pace.pages_per_s for pace in some if pace.pages_per_s is not None]
    return round(sum(known) / len(known), 2) if known else None
