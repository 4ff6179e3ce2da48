"""One crawl, looked at repeatedly: its status, its workers with their rates, and the words for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_dq.inspection.status import Progress
from scrapy_dq.inspection.words import (
    LONGEST_NAME,
    TROUBLED,
    awaiting,
    examined,
    fine_span,
    memory,
    missing,
    phase_of,
    span,
)
from scrapy_dq.inspection.workers import MOST_READ
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.inspection.place import Place

MOST_WORKERS = 100


class CrawlWatch:
    """Looks at a crawl; rates, and whether workers are silent, are those of the last 5 s."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._progress = Progress(place)

    def look(self) -> dict[str, Any]:
        """Return all that the page of a crawl shows, without anything that is not printable.

        Raises:
            NoSuchCrawl, FrontierRefused, redis.exceptions.RedisError: it cannot be read.
        """
        overview = self._place.overview(hint=False, most_members=MOST_READ)
        status = self._progress.status(overview, self._place.now())
        rows = self._progress.rows
        rows.sort(key=lambda row: row["state"] not in TROUBLED)
        for kind in ("largest", "slowest", "blocked"):
            status[f"{kind}_partitions"] = [_partition(each) for each in status[f"{kind}_partitions"]]
        if turn := status["turn"]:
            status["turn"] = turn | {"partition": printable(turn["partition"], LONGEST_NAME)}
        return status | {
            "worker_rows": [_worker(row) for row in rows[:MOST_WORKERS]],
            "words": {
                "phase": phase_of(status),
                "left": "" if status["left_s"] is None else span(status["left_s"]),
                "awaiting": list(awaiting(status)),
                "memory": memory(status),
                "examined": examined(status),
                "missing": list(missing(status)),
            },
        }


def _worker(row: dict[str, Any]) -> dict[str, Any]:
    since_s = row["since_s"]
    return row | {
        "id": printable(row["id"], LONGEST_NAME),
        "host": printable(row["host"], LONGEST_NAME),
        "since": "" if since_s is None else span(since_s),
    }


def _partition(each: dict[str, Any]) -> dict[str, Any]:
    shown = printable(each["partition"], LONGEST_NAME)
    return each | {
        "partition": shown or "(no name)",
        "name": each["partition"] if each["partition"] == shown else None,
        "takes": span(each["takes_s"]),
        "delay": fine_span(each["delay_s"]),
        "blocked": fine_span(each["blocked_s"]),
    }
