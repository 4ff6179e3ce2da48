"""Metrics for Prometheus: figures of all crawls of a Redis, or of one crawl, which a `CrawlList` reads."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import core, generate_latest
from prometheus_client.registry import Collector

from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.crawls import CrawlList, Crawls, Row
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.snapshot import Snapshot
from scrapy_dq.inspection.totals import Totals
from scrapy_dq.text import printable

LONGEST_LABEL = 100
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES: dict[str, tuple[str, Callable[[Snapshot, Totals], float]]] = {
    "dq_dead_letters": ("Dead letters", lambda crawl, _: crawl.overview.census.dead),
    "dq_seen_requests": ("Fingerprints that were seen", lambda crawl, _: crawl.overview.census.seen),
    "dq_gone": (
        "Requests of this run, or keys, that were deleted",
        lambda crawl, _: crawl.overview.census.gone,
    ),
    "dq_on_hold": ("1: the crawl is paused or draining", lambda crawl, _: bool(crawl.overview.hold.value)),
    "dq_stopped": (
        "1: the last worker to leave did so on purpose, as at max_pages or a stop",
        lambda _, totals: totals.stopped,
    ),
    "dq_workers_waiting": (
        "Workers that report an outage of Redis which lets their heartbeats pass",
        lambda crawl, _: sum(wait["workers"] for wait in crawl.waits),
    ),
    "dq_unreachable_shards": (
        "Shards that are not counted: they did not answer, or have no data of this run",
        lambda crawl, _: len(crawl.overview.unreachable) + len(crawl.overview.apart),
    ),
    "dq_run_number": ("The number of the run", lambda crawl, _: crawl.overview.run),
    "dq_run_began_timestamp_seconds": ("When the run began", lambda crawl, _: crawl.overview.began_at),
    "dq_run_finished_timestamp_seconds": (
        "When the last finished run ended; 0: unknown, or no run has finished",
        lambda crawl, _: crawl.overview.finished_at,
    ),
}
_COUNTERS: dict[str, tuple[str, Callable[[Totals], float]]] = {
    "dq_requests_done": ("Requests of this run that are done", lambda each: each.done),
    "dq_requests_failed": ("Requests of this run that failed for good", lambda each: each.failed),
    "dq_workers_died": ("Workers of this run that died", lambda each: each.died),
    "dq_leases_reclaimed": ("Leases of the workers that died", lambda each: each.reclaimed),
    "dq_redis_errors": ("Calls of this run's workers without a usable answer", lambda each: each.errors),
    "dq_outage_seconds": ("Their time without Redis, in outages that are over", lambda each: each.outage_s),
}
_WORKER_STATES = ("alive", "running", "unknown", "silent", "stalled", "dead", "fenced")
"""All states of workers in inspection/snapshot.py."""
_BY_STATE: dict[str, tuple[str, Callable[[Snapshot, Totals], Mapping[str, float]]]] = {
    "dq_requests": (
        "Requests that are not settled",
        lambda crawl, _: {state: crawl.counts[state] for state in ("waiting", "delayed", "in_flight")},
    ),
    "dq_workers": (
        "Registered workers",
        lambda crawl, _: dict.fromkeys(_WORKER_STATES, 0) | crawl.worker_states,
    ),
    "dq_partitions": ("Partitions with something waiting", lambda _, totals: totals.partitions),
    "dq_phase": (
        "1: the run is open, or finished",
        lambda crawl, _: {state: crawl.overview.phase == state for state in ("open", "finished")},
    ),
}


class Metrics:
    """The metrics of the crawls of a Redis, for any caller, in any thread."""

    def __init__(self, crawls: CrawlList) -> None:
        self.crawls = crawls

    def text(self, place: Place | None) -> bytes:
        """Return the metrics in the text format of Prometheus, of type CONTENT_TYPE; blocking.

        Args:
            place: any crawl of the Redis; None: Redis is not usable.
        """
        return generate_latest(_Families(self._families(place)))

    def samples(self, place: Place | None) -> list[dict[str, Any]]:
        """Return the same metrics as a list: the name, labels and value of each sample."""
        return [
            {"name": sample.name, "labels": sample.labels, "value": float(sample.value)}
            for family in self._families(place)
            for sample in family.samples
        ]

    def _families(self, place: Place | None) -> list[core.Metric]:
        """Return all metrics; without an answer from Redis, only dq_up and dq_scrape_seconds."""
        began = time.monotonic()
        try:
            found = self.crawls.refresh(place) if place else None
        except FrontierError:
            found = None
        took_s = time.monotonic() - began
        return [
            core.GaugeMetricFamily(
                "dq_up", "0: Redis has not answered, and nothing else is known", bool(found)
            ),
            core.GaugeMetricFamily("dq_scrape_seconds", "Time that reading from Redis took", took_s),
            *(_of_redis(found) if found else ()),
        ]


class _Families(Collector):
    def __init__(self, families: list[core.Metric]) -> None:
        self._families = families

    def collect(self) -> list[core.Metric]:
        return self._families


def _of_redis(found: Crawls) -> Iterator[core.Metric]:
    rows, info = [row for row in found.rows if row.asked_at], found.info or {}
    for name, about, value in (
        ("dq_crawls", "Crawls that were found, at most 500", len(rows)),
        ("dq_redis_memory_bytes", "Used memory of Redis", info.get("used_memory")),
        ("dq_redis_maxmemory_bytes", "0: no limit", info.get("maxmemory")),
        ("dq_redis_writable", "0: Redis refuses writes", found.writable),
    ):
        if value is not None:
            yield core.GaugeMetricFamily(name, about, value)
    now = time.monotonic()
    for name, about, value_of in (
        ("dq_crawl_up", "0: the crawl's keys cannot be read", lambda row: row.snapshot is not None),
        ("dq_age_seconds", "How old the figures of the crawl are", lambda row: max(0.0, now - row.asked_at)),
    ):
        yield _family(
            core.GaugeMetricFamily, name, about, [([label_of(row.crawl)], value_of(row)) for row in rows]
        )
    yield from _of_crawls(rows)


def _of_crawls(rows: Sequence[Row]) -> Iterator[core.Metric]:
    read = [
        ([label_of(row.crawl)], row.snapshot, row.snapshot.totals)
        for row in rows
        if row.snapshot and row.snapshot.totals
    ]
    for name, (about, value) in _GAUGES.items():
        series = [(label, value(crawl, totals)) for label, crawl, totals in read]
        yield _family(core.GaugeMetricFamily, name, about, series)
    for name, (about, count) in _COUNTERS.items():
        yield _family(
            core.CounterMetricFamily, name, about, [(label, count(totals)) for label, _, totals in read]
        )
    for name, (about, values) in _BY_STATE.items():
        series = [
            ([*label, state], number)
            for label, crawl, totals in read
            for state, number in values(crawl, totals).items()
        ]
        yield _family(core.GaugeMetricFamily, name, about, series, "state")
    about = "Time until the answers to exchanges of this run"
    times = [(label, totals.exchanges, totals.exchange_s) for label, _, totals in read]
    yield _family(core.SummaryMetricFamily, "dq_exchange_duration_seconds", about, times)
    infos = [(label, _info(crawl, totals)) for label, crawl, totals in read]
    yield _family(core.InfoMetricFamily, "dq_run", "The settings with which the run began", infos)


def _family(kind: Any, name: str, about: str, series: Sequence[tuple[Any, ...]], *labels: str) -> Any:
    """Return a family of metrics. Each element of *series* has the labels of one sample, then its values."""
    family = kind(name, about, labels=["crawl", *labels])
    for each in series:
        family.add_metric(*each)
    return family


def _info(crawl: Snapshot, totals: Totals) -> dict[str, str]:
    info = {
        "spider": totals.spider, "seen_kind": totals.seen_kind, "run_name": crawl.overview.run_name,
        "end": totals.end,
    }  # fmt: skip
    return {name: printable(value, LONGEST_LABEL) for name, value in info.items()}


def label_of(crawl: str) -> str:
    """Return a short, printable name of a crawl; a changed name ends with a hash of the original."""
    shown = printable(crawl, LONGEST_LABEL)
    if shown == crawl:
        return shown
    return f"{shown}~{hashlib.sha256(crawl.encode('utf-8', 'replace')).hexdigest()[:12]}"
