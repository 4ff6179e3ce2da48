"""Find and read all crawls of a Redis. One read of them is called a look.

Each look reads a limited part, however many keys Redis has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scrapy_dq.backend.health import refusals
from scrapy_dq.frontier.admin.backlog import info_of
from scrapy_dq.frontier.admin.crawls import CrawlSearch
from scrapy_dq.frontier.admin.overview import Overview, peek
from scrapy_dq.frontier.admin.shards import in_cluster
from scrapy_dq.frontier.errors import as_unavailable, describe, explain, is_answer, is_no_answer
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.snapshot import EVERY_S, MAX_MEMBERS_READ, WAIT_S, Snapshot, Watcher
from scrapy_dq.text import printable

MAX_CRAWLS = 500
PART = 15
"""Maximum number of crawls that one look reads. A crawl costs Redis 0.16 ms, and 0.008 ms for each worker."""
LONGEST_S = 3.0
"""Seconds after which a look reads no further crawl, because some nodes of a cluster may not answer."""
FINISHED_LATER_S = 60.0
"""Seconds by which a finished crawl is read later than others, if one look cannot read all crawls."""
SEARCH_S = 0.01
"""Seconds for which a look searches for further crawls."""


@dataclass(frozen=True)
class Row:
    """A crawl, and its newest snapshot."""

    crawl: str
    asked_at: float = 0.0
    """Time of the last read, by this process's monotonic clock; 0: never read."""
    snapshot: Snapshot | None = None
    """The snapshot, with totals; None if the crawl cannot be read, or was not read yet."""
    error: str = ""
    """Why the crawl cannot be read."""


@dataclass(frozen=True)
class Crawls:
    """The crawls that were found so far, and INFO of their Redis."""

    rows: Sequence[Row]
    """Sorted by name."""
    searched: bool
    """Whether all keys were examined."""
    info: dict[str, Any] | None
    """INFO of Redis; None: this user may not read it."""

    @property
    def full(self) -> bool:
        """Whether there may be more crawls than are listed."""
        return len(self.rows) >= MAX_CRAWLS

    @property
    def writable(self) -> bool | None:
        """Whether Redis accepts writes, according to its INFO; None: unknown."""
        return None if self.info is None else not refusals(self.info)


class CrawlList:
    """Watches the crawls of a Redis, for the page and the metrics, in any thread; one look at a time.

    A look takes a limited time of Redis, because it reads only PART crawls. It begins with the crawls that
    have been due for the longest time.
    """

    def __init__(self, only: str = "") -> None:
        """Watch the crawl with the name *only*, or all crawls if *only* is empty."""
        self._only = only
        self._listed: dict[str, _Listed] = {}
        self._search = CrawlSearch()
        self._newest: Crawls | FrontierError | None = None
        self._refreshed_at = 0.0
        self._lock = threading.Lock()

    def refresh(self, place: Place) -> Crawls:
        """Return the crawls; a call within EVERY_S after a look returns the result of that look.

        Args:
            place: any crawl in this Redis.
        Raises:
            FrontierUnavailable: Redis gave no usable answer.
        """
        with self._lock:
            began = time.monotonic()
            if self._newest is None or began - self._refreshed_at >= EVERY_S:
                try:
                    with as_unavailable():
                        self._newest = self._read(place)
                except FrontierError as error:
                    self._newest = error
                self._refreshed_at = time.monotonic()
            if isinstance(self._newest, FrontierError):
                raise self._newest
            return self._newest

    @property
    def complete(self) -> bool:
        """Whether each found crawl was read, and its workers were watched long enough."""
        return all(each.complete for each in self._listed.values())

    def find(self, place: Place, budget_s: float = SEARCH_S) -> None:
        """Search for crawls, for at most *budget_s* seconds.

        Raises:
            redis.exceptions.RedisError: no reply.
        """
        for name in [self._only] if self._only else self._search.scan_more(place.nodes, budget_s=budget_s):
            if name not in self._listed and len(self._listed) < MAX_CRAWLS:
                self._listed[name] = _Listed(place.of(name))

    def _read(self, place: Place) -> Crawls:
        self.find(place)
        until = time.monotonic() + LONGEST_S
        for each in sorted(self._listed.values(), key=lambda each: each.due)[:PART]:
            if not each.refresh(only=bool(self._only)):
                del self._listed[each.row.crawl]
            if time.monotonic() >= until:
                break
        rows = [self._listed[name].row for name in sorted(self._listed)]
        return Crawls(rows, self._search.complete, info_of(place.client))


class _Listed:
    """A crawl in the list."""

    def __init__(self, place: Place) -> None:
        self.row = Row(place.crawl)
        self.due = 0.0
        self._client = place.client
        self._watcher = Watcher(place, most_members=MAX_MEMBERS_READ)
        self._first_at = 0.0

    def refresh(self, *, only: bool) -> bool:
        """Read the crawl, and return whether it exists.

        Args:
            only: no other crawl is listed, so raise the error if Redis does not answer.
        """
        self.due = at = time.monotonic()
        self._first_at = self._first_at or at
        try:
            found = self._watcher.snapshot(totals=True)
        except Exception as error:
            if only and not is_answer(error):
                raise
            self.row = Row(self.row.crawl, at, error=reason_of_one(error, self._client))
            return True
        self.row = Row(self.row.crawl, at, found)
        if found.overview.phase == "finished":
            self.due += FINISHED_LATER_S
        return found.exists

    @property
    def complete(self) -> bool:
        found = self.row.snapshot
        has_workers = found is not None and found.overview.members
        return bool(self.due) and (not has_workers or self.row.asked_at - self._first_at >= WAIT_S)


def finished_before(place: Place, age_s: float) -> Iterator[tuple[Place, Overview]]:
    """Yield the crawls that can be read and that finished at least *age_s* seconds ago.

    This examines all keys of the Redis. A crawl that was reopened by a `retry` is not yielded.
    """
    latest = place.now() - age_s
    for name in CrawlSearch().all_names(place.nodes):
        crawl_place = replace(place, config=replace(place.config, crawl=name))
        try:
            overview = peek(place.client, name)
        except Exception as error:
            reason_of_one(error, place.client)
            continue
        if overview.phase == "finished" and 0 < overview.finished_at <= latest:
            yield crawl_place, overview


def reason_of_one(error: Exception, client: Any) -> str:
    """Return a text about why one crawl cannot be read; raise *error* if no crawl can be read."""
    if is_answer(error):
        return printable(describe(error))
    if not (in_cluster(client) and is_no_answer(error)):
        raise error
    return printable(explain(error))  # the nodes of other crawls may answer
