"""Metrics for Prometheus: the figures of all crawls of a Redis, or of one, by one reader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from scrapy_dq.inspection.measured import Measured
from scrapy_dq.inspection.measures import Measures, MeasuresWatch

if TYPE_CHECKING:
    from scrapy_dq.inspection.place import Place

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES: dict[str, tuple[str, Callable[[Measured], float]]] = {
    "dq_dead_letters": ("Dead letters", lambda each: each.overview.census.dead),
    "dq_seen_requests": ("Fingerprints that were seen", lambda each: each.overview.census.seen),
    "dq_gone": ("Requests of this run, or keys, that were deleted", lambda each: each.overview.census.gone),
    "dq_on_hold": ("1: the crawl is paused or draining", lambda each: bool(each.overview.hold.value)),
    "dq_stopped": (
        "1: the last worker to leave did so on purpose, as at max_pages or a stop",
        lambda each: each.stopped,
    ),
    "dq_workers_waiting": (
        "Workers that report an outage of Redis which lets their heartbeats pass",
        lambda each: each.waiting_workers,
    ),
    "dq_unreachable_shards": (
        "Shards that did not answer, or have nothing of this run: what is there is not counted",
        lambda each: len(each.overview.unreachable) + len(each.overview.apart),
    ),
    "dq_run_number": ("The number of the run", lambda each: each.overview.run),
    "dq_run_began_timestamp_seconds": ("When the run began", lambda each: each.overview.began_at),
    "dq_run_finished_timestamp_seconds": (
        "When this run, or if it is open an earlier one, finished last; 0: unknown, or none has",
        lambda each: each.overview.finished_at,
    ),
}
_COUNTERS: dict[str, tuple[str, Callable[[Measured], float]]] = {
    "dq_requests_done": ("Requests of this run that are done", lambda each: each.done),
    "dq_requests_failed": ("Requests of this run that failed for good", lambda each: each.failed),
    "dq_workers_died": ("Workers of this run that died", lambda each: each.died),
    "dq_leases_reclaimed": ("Leases of the workers that died", lambda each: each.reclaimed),
    "dq_redis_errors": ("Calls of this run's workers without a usable answer", lambda each: each.errors),
    "dq_outage_seconds": ("Their time without Redis, in outages that are over", lambda each: each.outage_s),
}
_WORKER_STATES = ("alive", "running", "unknown", "silent", "stalled", "dead", "fenced")
"""All that inspection/workers.py has."""
_BY_STATE: dict[str, tuple[str, Callable[[Measured], Mapping[str, float]]]] = {
    "dq_requests": (
        "Requests that are not settled",
        lambda each: {
            state: getattr(each.overview.census, state) for state in ("waiting", "delayed", "in_flight")
        },
    ),
    "dq_workers": (
        "Registered workers",
        lambda each: {state: each.workers.get(state, 0) for state in _WORKER_STATES},
    ),
    "dq_partitions": ("Partitions with something waiting", lambda each: each.partitions),
    "dq_phase": (
        "1: the run is open, or finished",
        lambda each: {state: each.overview.phase == state for state in ("open", "finished")},
    ),
}


class Metrics:
    """The metrics of the crawls of a Redis, for whoever asks, in whatever thread."""

    def __init__(self, crawl: str = "") -> None:
        """*crawl*: the only one; empty: all."""
        self._watch = MeasuresWatch(crawl)

    @property
    def complete(self) -> bool:
        """Whether everything that there is has been read, and workers for long enough to be judged."""
        return self._watch.complete

    def text(self, place: Place | None) -> bytes:
        """Return the metrics in the text format of Prometheus, of type CONTENT_TYPE; blocking.

        Args:
            place: any crawl of the Redis; None: it is not usable.
        """
        registry = CollectorRegistry()
        registry.register(_Found(self._watch.look(place)))
        return generate_latest(registry)

    def samples(self, place: Place | None) -> list[dict[str, Any]]:
        """Return the same as name, labels and value of each sample."""
        found = families(self._watch.look(place))
        return [
            {"name": sample.name, "labels": sample.labels, "value": float(sample.value)}
            for family in found
            for sample in family.samples
        ]


class _Found(Collector):
    def __init__(self, found: Measures) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return families(self._found)


def families(found: Measures) -> Iterator[Metric]:
    """Yield all metrics; without an answer of Redis, those that say so."""
    yield GaugeMetricFamily("dq_up", "0: Redis has not answered, and nothing else is known", found.up)
    yield GaugeMetricFamily("dq_scrape_seconds", "Time that reading from Redis took", found.took_s)
    if not found.up:
        return
    yield GaugeMetricFamily("dq_crawls", "Crawls that were found, at most 500", len(found.crawls))
    if found.memory_bytes is not None:
        yield GaugeMetricFamily("dq_redis_memory_bytes", "Used memory of Redis", found.memory_bytes)
    if found.maxmemory_bytes is not None:
        yield GaugeMetricFamily("dq_redis_maxmemory_bytes", "0: no limit", found.maxmemory_bytes)
    if found.writable is not None:
        yield GaugeMetricFamily("dq_redis_writable", "0: Redis refuses writes", found.writable)
    readable = GaugeMetricFamily("dq_crawl_up", "0: the crawl's keys cannot be read", labels=["crawl"])
    age = GaugeMetricFamily("dq_age_seconds", "How old the figures of the crawl are", labels=["crawl"])
    now = time.monotonic()
    for row in found.crawls:
        readable.add_metric([row.crawl], row.measured is not None)
        age.add_metric([row.crawl], max(0.0, now - row.at))
    yield from (readable, age)
    yield from _of_crawls([(row.crawl, row.measured) for row in found.crawls if row.measured])


def _of_crawls(crawls: Sequence[tuple[str, Measured]]) -> Iterator[Metric]:
    for name, (about, value) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, about, labels=["crawl"])
        for crawl, each in crawls:
            gauge.add_metric([crawl], value(each))
        yield gauge
    for name, (about, value) in _COUNTERS.items():
        counter = CounterMetricFamily(name, about, labels=["crawl"])
        for crawl, each in crawls:
            counter.add_metric([crawl], value(each))
        yield counter
    for name, (about, values) in _BY_STATE.items():
        states = GaugeMetricFamily(name, about, labels=["crawl", "state"])
        for crawl, each in crawls:
            for state, count in values(each).items():
                states.add_metric([crawl, state], count)
        yield states
    exchanges = SummaryMetricFamily(
        "dq_exchange_duration_seconds", "Time until the answers to exchanges of this run", labels=["crawl"]
    )
    info = InfoMetricFamily("dq_run", "What the run was begun with", labels=["crawl"])
    for crawl, each in crawls:
        exchanges.add_metric([crawl], each.exchanges, each.exchange_s)
        info.add_metric([crawl], dict(each.info))
    yield from (exchanges, info)
