"""Compute the figures that only metrics show: counts that never fall, deaths, partitions by state."""

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
"""Close reasons of workers that leave requests behind on purpose."""
_MEMBERSHIP_EVENTS = ("began", "joined", "left", "died", "returned", "stop")
_SUMMED = ("exchanges", "exchange_s", "errors", "outage_s")
_PARTITIONS = {"ready": "rotation", "suspects": "suspects", "resting": "resting", "saturated": "saturated"}


@dataclass(frozen=True)
class Totals:
    """The figures of one run. Its sums never fall while this process watches the run."""

    done: int
    failed: int
    """Unlike the stored counts, `done` and `failed` never fall when failed requests are retried."""
    partitions: Mapping[str, int]
    """Number of partitions with waiting requests, by state."""
    died: int
    reclaimed: int
    """Leases of the workers that died. `died` and `reclaimed` lack deaths that the journal has dropped before
    the first read."""
    stopped: bool
    """Whether the last worker left for a reason in ON_PURPOSE, or a user has sent `stop` after that."""
    end: str
    """Why the last worker left. It is empty if the last worker died, or if a worker is registered."""
    spider: str
    seen_kind: str
    exchanges: int
    exchange_s: float
    errors: int
    outage_s: float
    """Like `exchanges`, `exchange_s` and `errors`, the sum of the newest samples of all shards."""


class TotalsReader:
    """Reads the totals of one crawl repeatedly, and remembers figures that Redis no longer has."""

    def __init__(self) -> None:
        self._run = _Run("", -1, {})

    def read(self, place: Place, overview: Overview) -> Totals:
        """Return the totals.

        Args:
            overview: state of this crawl, read just now.
        Raises:
            redis.exceptions.RedisError: home does not reply, or a key has another type.
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
            sum(shard == HOME for shard, _ in run.deaths),  # every shard records a death
            sum(run.deaths.values()),
            run.stopped,
            "" if census.workers else run.end,
            run.described["spider"],
            run.described["seen_kind"],
            *(sum(getattr(sample, name) for sample in samples) for name in _SUMMED),
        )


class _Rising:
    """A count that never falls, although the stored count falls after a retry or a roll-back of Redis."""

    def __init__(self) -> None:
        self._last = self._fallen = 0

    def now(self, count: int, whole: bool) -> int:
        """Return the count that never falls.

        Args:
            count: the stored count.
            whole: whether *count* is the sum of all shards. If not, the counts of some shards are missing.
        """
        if not whole:
            count = max(count, self._last)
        self._fallen += max(0, self._last - count)
        self._last = count
        return count + self._fallen


@dataclass
class _Run:
    """The remembered figures of one run."""

    epoch: str
    number: int
    described: dict[str, str]
    done: _Rising = field(default_factory=_Rising)
    failed: _Rising = field(default_factory=_Rising)
    newest_event: dict[int, bytes] = field(default_factory=dict)
    """The newest record of each shard's journal, which is read again only if this record changes."""
    deaths: dict[tuple[int, str], int] = field(default_factory=dict)
    """Leases of each dead worker, by shard and worker. They stay here after the journal drops the event."""
    samples: dict[int, Sample] = field(default_factory=dict)
    """The newest sample of each shard. It stays while the shard does not answer, so the sums never fall."""
    stopped: bool = False
    end: str = ""

    def read_shard(self, client: Any, shard: Shard) -> dict[str, int]:
        """Return the number of a shard's partitions by state; remember its newest sample and deaths."""
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
        with suppress(ValueError):  # no sample, or one of a later version
            sample = parse_sample(record or b"")
            if sample.run == self.number:
                self.samples[shard.number] = sample
        return dict(zip(_PARTITIONS, map(int, sizes), strict=True))

    def _note(self, shard: Shard, events: Iterable[Event]) -> None:
        """Record deaths and the end of the last worker, from events of this run, oldest first."""
        for event in events:
            if event.kind == "died":
                self.deaths[shard.number, event.who] = event.count
            if shard.number == HOME and event.kind in _MEMBERSHIP_EVENTS:
                self.stopped = event.kind == "stop" or event.about in ON_PURPOSE
                self.end = event.about if event.kind == "left" else ""
