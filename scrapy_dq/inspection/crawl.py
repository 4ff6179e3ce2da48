"""One crawl, looked at repeatedly: its status, its workers with their rates, and the words for both."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from scrapy_dq.inspection.status import RATE_OVER_S, Progress
from scrapy_dq.inspection.words import examined, fine_span, memory, missing, phase_of, span
from scrapy_dq.inspection.workers import WAIT_S, workers_of
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.frontier.model import Member
    from scrapy_dq.inspection.place import Place

MOST_WORKERS = 100
LONGEST_NAME = 200
"""Characters of a name that somebody else may have written."""
_TROUBLED = ("dead", "silent", "stalled", "fenced")


class CrawlWatch:
    """Looks at a crawl; rates, and whether workers are silent, are those of the last 5 s."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._progress = Progress(place)
        self._looks: deque[tuple[float, dict[str, Member]]] = deque()

    def look(self) -> dict[str, Any]:
        """Return all that the page of a crawl shows, without anything that is not printable.

        Raises:
            NoSuchCrawl, FrontierRefused, redis.exceptions.RedisError: it cannot be read.
        """
        overview = self._place.overview(hint=False)
        status = self._progress.status(overview)
        rows = self._workers(overview.members)
        states = Counter(row["state"] for row in rows)
        rows.sort(key=lambda row: row["state"] not in _TROUBLED)
        for kind in ("largest", "slowest", "blocked"):
            status[f"{kind}_partitions"] = [_partition(each) for each in status[f"{kind}_partitions"]]
        return status | {
            "worker_rows": [_worker(row) for row in rows[:MOST_WORKERS]],
            "worker_states": dict(states),
            "words": {
                "phase": phase_of(status),
                "left": "" if status["left_s"] is None else span(status["left_s"]),
                "memory": memory(status),
                "examined": examined(status),
                "missing": list(missing(status)),
            },
        }

    def _workers(self, members: list[Member]) -> list[dict[str, Any]]:
        now = time.monotonic()
        while len(self._looks) > 1 and now - self._looks[1][0] >= RATE_OVER_S:
            self._looks.popleft()
        self._looks.append((now, {member.worker_id: member for member in members}))
        first_at, before = self._looks[0]
        passed_s = now - first_at
        # The first look has nothing to compare with.
        return workers_of(
            members, before if passed_s else {}, passed_s, self._place.now(), watched=passed_s >= WAIT_S
        )


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
