"""All crawls of a Redis: found and looked at a part at a time, however many keys it has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier.admin.crawls import CrawlSearch
from scrapy_dq.frontier.admin.overview import Overview, peek
from scrapy_dq.frontier.admin.shards import in_cluster
from scrapy_dq.frontier.errors import describe, explain, is_answer, is_no_answer
from scrapy_dq.inspection.status import COUNTS, Progress, left, settled
from scrapy_dq.inspection.words import phase_of, uncounted
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.inspection.place import Place

MOST_CRAWLS = 500
PART = 20
"""Crawls that one look reads."""
LONGEST_S = 3.0
"""No look begins to read a further crawl after so long: in a cluster, some nodes may not answer."""
SEARCH_S = 0.01
"""How long a look searches for further ones."""


class CrawlsWatch:
    """Looks at all crawls of a Redis."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._search = CrawlSearch()
        self._watched: dict[str, _Watched] = {}

    def look(self) -> dict[str, Any]:
        """Return the crawls that were found so far, with the newest counts of each.

        Raises:
            redis.exceptions.RedisError: no reply.
        """
        for name in self._search.go_on(self._place.nodes, budget_s=SEARCH_S):
            if name not in self._watched and len(self._watched) < MOST_CRAWLS:
                self._watched[name] = _Watched(self._place, name)
        by_age = sorted(self._watched.values(), key=lambda each: each.at)
        until = time.monotonic() + LONGEST_S
        for each in by_age[:PART]:
            if not each.look():
                del self._watched[each.name]
            if time.monotonic() >= until:
                break
        rows = [self._watched[name].row for name in sorted(self._watched)]
        return {
            "redis": self._place.target,
            "at": round(time.time(), 3),
            "crawls": rows,
            "searched": self._search.complete,
            "full": len(self._watched) >= MOST_CRAWLS,
        }


@dataclass(frozen=True)
class Old:
    """A crawl whose run is finished."""

    place: Place
    overview: Overview
    ended: float
    """When, in seconds since 1970 by the clock of Redis."""


def finished_before(place: Place, age_s: float) -> Iterator[Old]:
    """Yield the crawls that have been finished for at least *age_s* seconds, and that this user may read.

    All keys of the Redis are examined. A crawl that a `retry` has opened again is not finished.
    """
    latest = place.now() - age_s
    for name in CrawlSearch().all_names(place.nodes):
        of_it = replace(place, config=replace(place.config, crawl=name))
        try:
            overview = peek(place.client, name)
        except Exception as error:
            reason_of_one(error, place.client)
            continue
        if overview.phase == "finished" and 0 < overview.finished_at <= latest:
            yield Old(of_it, overview, overview.finished_at)


class _Watched:
    """One of them, and its newest row."""

    def __init__(self, place: Place, name: str) -> None:
        self.name = name
        self.at = 0.0
        self.row: dict[str, Any] = {"crawl": name, "shown": printable(name, 200)}
        self._place = replace(place, config=replace(place.config, crawl=name))
        self._progress = Progress(self._place)

    def look(self) -> bool:
        """Look at it; return whether it still exists."""
        self.at = time.monotonic()
        row: dict[str, Any] = {"crawl": self.name, "shown": self.row["shown"]}
        try:
            overview = peek(self._place.client, self.name, most_members=0)
        except Exception as error:
            self.row = row | {"error": reason_of_one(error, self._place.client)}
            return True
        if overview.phase == "absent":
            return False
        self._progress.note(overview)
        counts = {name: asdict(overview.census)[name] for name in COUNTS}
        row |= {"phase": overview.phase, "hold": overview.hold.value, "run": overview.run, **counts}
        rate = self._progress.rate() if overview.phase == "open" else None
        self.row = row | {
            "words": {"phase": "; ".join((phase_of(row), *uncounted(overview.unreachable, overview.apart)))},
            "settled": settled(counts),
            "left": left(counts),
            "pages_per_s": None if rate is None else round(rate, 1),
        }
        return True


def reason_of_one(error: Exception, client: Any) -> str:
    """Return why one crawl cannot be read, for people; raise *error* if none can be."""
    if is_answer(error):
        return printable(describe(error))
    if not (in_cluster(client) and is_no_answer(error)):
        raise error
    return printable(explain(error))  # the nodes of the others may answer
