"""The figures of one crawl, read repeatedly, and what has to be remembered for them."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.overview import described, peek
from scrapy_dq.frontier.admin.shards import Shards, count_of
from scrapy_dq.frontier.errors import is_answer
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.inspection.history import events_in_shard, parse_sample
from scrapy_dq.inspection.status import waits_of
from scrapy_dq.inspection.workers import MOST_READ, WAIT_S, WorkersWatch
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.overview import Overview
    from scrapy_dq.inspection.history import Sample

LONGEST_LABEL = 100
FINISHED_LATER_S = 60.0
"""A finished crawl is read that much later than its turn, if not all are read each time."""
ON_PURPOSE = (
    "max_pages", "domain_budget", "stopped", "cancelled", "closespider_timeout", "closespider_itemcount",
    "closespider_pagecount", "closespider_pagecount_no_item",
)  # fmt: skip
"""Close reasons of workers that leave requests behind because the user wants that."""
_COMES_AND_GOES = ("began", "joined", "left", "died", "returned", "stop")
_PARTITIONS = {"ready": "rotation", "suspects": "suspects", "resting": "resting", "saturated": "saturated"}


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one crawl."""

    overview: Overview
    done: int
    failed: int
    """Of this run, in which neither falls as far as this process sees: a retry lowers the stored count."""
    workers: Mapping[str, int]
    """By state."""
    waiting_workers: int
    """For Redis; see `waits_of`."""
    partitions: Mapping[str, int]
    """By state."""
    died: int
    reclaimed: int
    """Leases of those that died. Both of this run, as far as its journal reaches when it is read first."""
    stopped: bool
    """The last worker left for a reason of ON_PURPOSE, or a user gave `stop` after that."""
    info: Mapping[str, str]
    """The spider, the kind of `seen`, the name of the run, and why its last worker left (`end`)."""
    exchanges: int = 0
    exchange_s: float = 0.0
    errors: int = 0
    outage_s: float = 0.0
    """Of the newest samples of this run, over all shards."""


@dataclass(frozen=True, slots=True)
class Row:
    """A crawl, and its newest figures."""

    crawl: str
    """Its name, printable and short."""
    at: float
    """When they were read, by this process's monotonic clock."""
    measured: Measured | None
    """None: it cannot be read."""


class MeasuredCrawl:
    """A crawl that is read repeatedly."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.row = Row(label_of(name), 0.0, None)
        self.due = 0.0
        self._first_at = 0.0
        self._run = ("", -1)
        self._described: dict[str, str] = {}
        self._workers = WorkersWatch()
        self._done, self._failed = _Rising(), _Rising()
        self._journals: dict[int, bytes] = {}
        """The last event of each shard."""
        self._deaths: dict[int, set[tuple[float, str]]] = {}
        """Of each shard."""
        self._died = self._reclaimed = 0
        self._stopped, self._end = False, ""
        self._samples: dict[int, Sample] = {}
        """The newest of each shard, also of one that does not answer now: their sums never fall."""

    def look(self, client: Any) -> bool:
        """Read it; return whether it exists."""
        self.due = at = time.monotonic()
        self._first_at = self._first_at or at
        unreadable = Row(self.row.crawl, at, None)
        try:
            shards = Shards(self.name, count_of(client, self.name) or 1, lambda number: client)
            overview = peek(shards, self.name, most_members=MOST_READ)
            if overview.phase == "absent":
                self.row = Row(self.row.crawl, 0.0, None)
                return False
            if (overview.epoch, overview.run) != self._run:
                self._begin(client, overview)
            self.row = Row(self.row.crawl, at, self._measure(shards, overview))
            if overview.phase == "finished":
                self.due += FINISHED_LATER_S
        except Exception as error:
            if not is_answer(error):
                raise
            self.row = unreadable  # this user may not read it: the others can be read
        return True

    def missed(self) -> None:
        """Note that it could not be read."""
        self.row = Row(self.row.crawl, self.due, None)

    @property
    def complete(self) -> bool:
        """Whether it is absent, or was read, and its workers for long enough."""
        has_workers = self.row.measured is not None and self.row.measured.overview.members
        return bool(self.due) and (not has_workers or self.row.at - self._first_at >= WAIT_S)

    def _begin(self, client: Any, overview: Overview) -> None:
        self._described = described(client, self.name)
        self._done, self._failed = _Rising(), _Rising()
        self._journals, self._deaths, self._died, self._reclaimed = {}, {}, 0, 0
        self._samples, self._stopped, self._end = {}, False, ""
        self._run = (overview.epoch, overview.run)

    def _measure(self, shards: Shards, overview: Overview) -> Measured:
        parts = list(shards.each(lambda client, shard: self._look_at(client, shard, overview.run)))
        rows = self._workers.look(overview)
        states = Counter(row["state"] for row in rows)
        states["unknown"] += max(0, overview.census.workers - len(overview.members))
        sizes = [sum(each) for each in zip(*parts, strict=True)]
        samples, whole = self._samples.values(), not (overview.unreachable or overview.apart)
        return Measured(
            overview,
            self._done.now(overview.census.done, whole),
            self._failed.now(overview.census.failed, whole),
            states,
            sum(wait["workers"] for wait in waits_of(rows)),
            dict(zip(_PARTITIONS, sizes, strict=True)),
            self._died,
            self._reclaimed,
            self._stopped,
            {
                name: printable(value, LONGEST_LABEL)
                for name, value in (
                    ("spider", self._described["spider"]),
                    ("seen_kind", self._described["seen_kind"]),
                    ("run_name", overview.run_name),
                    ("end", "" if overview.census.workers else self._end),
                )
            },
            sum(sample.exchanges for sample in samples),
            sum(sample.exchange_s for sample in samples),
            sum(sample.errors for sample in samples),
            sum(sample.outage_s for sample in samples),
        )

    def _look_at(self, client: Any, shard: Shard, run: int) -> list[int]:
        """Return how many partitions of a shard are in which state; keep its newest sample of this run."""
        prefix = keys.prefix(shard)
        with client.pipeline(transaction=False) as pipeline:
            for name in _PARTITIONS.values():
                pipeline.zcard(prefix + name)
            pipeline.lindex(prefix + "samples", -1)
            pipeline.lindex(prefix + "journal", -1)
            *sizes, record, journal = pipeline.execute()
        if journal and journal != self._journals.get(shard.number):
            self._read_events(client, shard, run)
            self._journals[shard.number] = journal
        with suppress(ValueError):  # there is none, or a later version has written it
            sample = parse_sample(record or b"")
            if sample.run == run:
                self._samples[shard.number] = sample
        return [int(size) for size in sizes]

    def _read_events(self, client: Any, shard: Shard, run: int) -> None:
        """Count the deaths of this run; note whether its last worker left on purpose."""
        events = [each for each in events_in_shard(client, shard) if each.run == run]
        if shard.number == HOME:
            last = next((each for each in reversed(events) if each.kind in _COMES_AND_GOES), None)
            self._stopped = last is not None and (last.kind == "stop" or last.about in ON_PURPOSE)
            self._end = last.about if last and last.kind == "left" else ""
        deaths = {(each.at, each.who): each for each in events if each.kind == "died"}
        for death in deaths.keys() - self._deaths.get(shard.number, set()):
            self._died += shard.number == HOME  # who has died is missed in every shard
            self._reclaimed += deaths[death].count
        self._deaths[shard.number] = set(deaths)


class _Rising:
    """A count that never falls, as the stored one does if requests are retried, or Redis is rolled back."""

    def __init__(self) -> None:
        self._last = self._fallen = 0

    def now(self, count: int, whole: bool) -> int:
        """Return the count; *whole*: it is that of all shards."""
        if not whole:
            count = max(count, self._last)
        self._fallen += max(0, self._last - count)
        self._last = count
        return count + self._fallen


def label_of(crawl: str) -> str:
    """Return a printable, short name of a crawl; one that is not the name itself ends with a hash of it."""
    shown = printable(crawl, LONGEST_LABEL)
    if shown == crawl:
        return shown
    return f"{shown}~{hashlib.sha256(crawl.encode('utf-8', 'replace')).hexdigest()[:12]}"
