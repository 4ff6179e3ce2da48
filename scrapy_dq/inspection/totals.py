"""The figures of a crawl that only metrics show: counts that never fall, deaths, partitions by state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.overview import Overview, described
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.inspection.history import Event, Sample, events_in_shard, parse_sample
from scrapy_dq.inspection.place import Place

ON_PURPOSE = (
    "max_pages", "domain_budget", "stopped", "cancelled", "closespider_timeout", "closespider_itemcount",
    "closespider_pagecount", "closespider_pagecount_no_item",
)  # fmt: skip
"""Close reasons of workers that leave requests behind because the user wants that."""
_COMES_AND_GOES = ("began", "joined", "left", "died", "returned", "stop")
_SUMMED = ("exchanges", "exchange_s", "errors", "outage_s")
_PARTITIONS = {"ready": "rotation", "suspects": "suspects", "resting": "resting", "saturated": "saturated"}


@dataclass(frozen=True)
class Totals:
    """The sums of one run, as far as this process has watched it."""

    done: int
    failed: int
    """Neither falls, as the stored counts do if failed requests are retried."""
    partitions: Mapping[str, int]
    """With something waiting, by state."""
    died: int
    reclaimed: int
    """Leases of the workers that died. Both as far as the journal reaches when it is read first."""
    stopped: bool
    """The last worker left for a reason of ON_PURPOSE, or a user gave `stop` after that."""
    end: str
    """Why the last worker left; empty: it did not, or there are workers."""
    spider: str
    seen_kind: str
    exchanges: int
    exchange_s: float
    errors: int
    outage_s: float
    """Of the newest samples, over all shards."""


class TotalsReader:
    """Reads the totals of one crawl repeatedly, and remembers figures that Redis has dropped since."""

    def __init__(self) -> None:
        self._run = _Run("", -1, {})

    def read(self, place: Place, overview: Overview) -> Totals:
        """Return the totals.

        Args:
            overview: of this crawl, read just now.
        Raises:
            redis.exceptions.RedisError: no reply of home, or another type of key.
        """
        run = self._run
        if (run.epoch, run.number) != (overview.epoch, overview.run):
            run = self._run = _Run(overview.epoch, overview.run, described(place.client, place.crawl))
        parts = list(place.shards.each(run.read_shard, strict=False))
        samples, census = run.samples.values(), overview.census
        whole = not (overview.unreachable or overview.apart)
        return Totals(
            run.done.now(census.done, whole),
            run.failed.now(census.failed, whole),
            {state: sum(part[state] for part in parts) for state in _PARTITIONS},
            sum(shard == HOME for shard, _ in run.deaths),  # who has died is missed in every shard
            sum(run.deaths.values()),
            run.stopped,
            "" if census.workers else run.end,
            run.described["spider"],
            run.described["seen_kind"],
            *(sum(getattr(sample, name) for sample in samples) for name in _SUMMED),
        )


class _Rising:
    """A count that never falls, as the stored one does if requests are retried, or Redis is rolled back."""

    def __init__(self) -> None:
        self._last = self._fallen = 0

    def now(self, count: int, whole: bool) -> int:
        """Return the count; *whole*: it is the sum of all shards."""
        if not whole:
            count = max(count, self._last)
        self._fallen += max(0, self._last - count)
        self._last = count
        return count + self._fallen


@dataclass
class _Run:
    """The memory of one run."""

    epoch: str
    number: int
    described: dict[str, str]
    done: _Rising = field(default_factory=_Rising)
    failed: _Rising = field(default_factory=_Rising)
    newest_event: dict[int, bytes] = field(default_factory=dict)
    """By shard: only if it changes, the journal is read."""
    deaths: dict[tuple[int, str], int] = field(default_factory=dict)
    """Leases of each worker that died, by shard and worker, also after the journal has dropped the event."""
    samples: dict[int, Sample] = field(default_factory=dict)
    """The newest of each shard, also of one that does not answer now: their sums never fall."""
    stopped: bool = False
    end: str = ""

    def read_shard(self, client: Any, shard: Shard) -> dict[str, int]:
        """Return how many partitions of a shard are in which state; remember its newest sample and deaths."""
        prefix = keys.prefix(shard)
        with client.pipeline(transaction=False) as pipeline:
            for name in _PARTITIONS.values():
                pipeline.zcard(prefix + name)
            pipeline.lindex(prefix + "samples", -1)
            pipeline.lindex(prefix + "journal", -1)
            *sizes, record, newest = pipeline.execute()
        if newest and newest != self.newest_event.get(shard.number):
            self._note(shard, [each for each in events_in_shard(client, shard) if each.run == self.number])
            self.newest_event[shard.number] = newest
        with suppress(ValueError):  # there is none, or a later version has written it
            sample = parse_sample(record or b"")
            if sample.run == self.number:
                self.samples[shard.number] = sample
        return dict(zip(_PARTITIONS, map(int, sizes), strict=True))

    def _note(self, shard: Shard, events: Iterable[Event]) -> None:
        """Note deaths, and whether the last worker left on purpose: events of this run, oldest first."""
        for event in events:
            if event.kind == "died":
                self.deaths[shard.number, event.who] = event.count
            if shard.number == HOME and event.kind in _COMES_AND_GOES:
                self.stopped = event.kind == "stop" or event.about in ON_PURPOSE
                self.end = event.about if event.kind == "left" else ""
