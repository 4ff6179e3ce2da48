"""Read the history of a crawl: samples of its counts, curves from them, and events."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgpack

from scrapy_dq.backend.health import format_bytes
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.shards import shards_of
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.words import named, unanswered
from scrapy_dq.text import count_of, named_run, printable

T = TypeVar("T")
MAX_EVENTS = 500
MAX_SAMPLES = 1_080
MAX_MINUTES = 2_880
"""Maximum numbers of stored events, of samples that are taken each 10 s, and of those taken each minute.

Source: lua/lib/journal.lua, lua/lib/samples.lua
"""
MAX_TEXT = 80
MAX_POINTS = 360
CURVES = ("at", "pages_per_s", "left", "failed", "memory_bytes", "workers")
"""The meaning of each number in a point of the page's curves. An unknown number is None."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts of a crawl at one moment. The last four are sums over all workers since the run began."""

    at: float
    """Seconds since 1970 by the clock of Redis."""
    run: int
    done: int
    failed: int
    dead: int
    waiting: int
    delayed: int
    in_flight: int
    workers: int
    seen: int
    memory_bytes: int
    """Used memory of the whole Redis; 0: unknown."""
    exchanges: int
    exchange_s: float
    """Sum of the times from sending an exchange until its answer."""
    errors: int
    """Calls without a usable answer."""
    outage_s: float
    """Time without Redis, of all workers together."""


_SUMMED = (
    "done", "failed", "dead", "waiting", "delayed", "in_flight", "seen", "exchanges", "exchange_s", "errors",
    "outage_s",
)  # fmt: skip
"""Counts that are added over shards. Workers and memory are not added: all shards have the same workers, and
the memory is the use of home's Redis."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of a crawl between two samples; None: unknown, because the samples belong to two runs."""

    pages_per_s: float | None = None
    failed_per_s: float | None = None
    exchange_ms: float | None = None
    """Mean time of an exchange; also None if there was no exchange."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a crawl."""

    at: float
    """Seconds since 1970 by the clock of Redis; the last time of a repeated event."""
    run: int
    kind: str
    """Kind of event: see `describe`. Other versions may write other kinds."""
    who: str
    """The id of a worker, or `user@host` of the user who gave a command; empty: unknown."""
    count: int
    """By kind, for example leases, requests, milliseconds of an outage, or how often the event happened."""
    about: str
    shards: tuple[int, ...] = (HOME,)
    """Shards that have recorded the event."""


def read_samples(client: Any, crawl: str, *, minutes: bool = False) -> list[Sample]:
    """Return the samples of home, oldest first, with sums over all shards; blocking.

    Each sum adds the shards' samples of about the same time.

    Args:
        client: a `redis` client that decodes nothing.
        minutes: return one sample per minute, for two days; else one per 10 s, for three hours.
    Raises:
        redis.exceptions.RedisError: Redis does not reply, or a key has another type.
    """
    name, kept = ("minutes", MAX_MINUTES) if minutes else ("samples", MAX_SAMPLES)

    def read(client: Any, shard: Shard) -> list[Sample]:
        return _read(client, keys.prefix(shard) + name, kept, parse_sample)

    home, *others = shards_of(client, crawl).each(read)
    apart_s = 60.0 if minutes else 10.0
    for samples in others:
        times = [sample.at for sample in samples]
        for index, sample in enumerate(home):
            at = bisect_right(times, sample.at + apart_s) - 1
            if at >= 0 and samples[at].run == sample.run:
                home[index] = replace(sample, **{
                    name: getattr(sample, name) + getattr(samples[at], name) for name in _SUMMED
                })  # fmt: skip
    return home


def whole_history(client: Any, crawl: str) -> list[Sample]:
    """Return all stored samples, one per minute; for a crawl younger than an hour, one per 10 s.

    Raises:
        As `read_samples`.
    """
    found = read_samples(client, crawl, minutes=True)
    return found if len(found) >= 60 else read_samples(client, crawl)


def read_curves(place: Place, *, minutes: bool) -> dict[str, Any]:
    """Return points of the stored samples, oldest first, and the events, newest first.

    Args:
        minutes: cover two days; else three hours.
    Raises:
        As `read_samples`.
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
            {"at": event.at, "run": event.run, "kind": event.kind, "said": describe(event), "who": event.who}
            for event in reversed(events)
        ],
    }


def _points(samples: Sequence[Sample]) -> Iterator[list[float | None]]:
    """Yield at most MAX_POINTS, each with the mean rate and the last counts of some adjacent samples."""
    found = list(zip(samples, paces(samples), strict=True))
    step = -(-len(found) // MAX_POINTS) or 1
    for begin in range(0, len(found), step):
        part = found[begin : begin + step]
        last, rate = part[-1][0], mean([pace.pages_per_s for _, pace in part])
        yield [
            last.at, None if rate is None else round(rate, 2), last.waiting + last.delayed + last.in_flight,
            last.failed + last.dead, last.memory_bytes or None, last.workers,
        ]  # fmt: skip


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values, or None if all are unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def read_events(client: Any, crawl: str) -> list[Event]:
    """Return the stored events, oldest first; blocking. A fact that several shards record is one event.

    Raises:
        As `read_samples`.
    """
    home, *others = shards_of(client, crawl).each(events_in_shard)
    if not others:
        return home
    elsewhere = (event for events in others for event in events if event.kind not in _OF_HOME)
    return _each_fact_once(sorted((*home, *elsewhere), key=lambda event: event.at))


def events_in_shard(client: Any, shard: Shard) -> list[Event]:
    """Return the events that one shard has recorded; see `read_events`."""
    found = _read(client, keys.prefix(shard) + "journal", MAX_EVENTS, _event)
    return [replace(event, shards=(shard.number,)) for event in found]


_OF_HOME = ("began", "finished", "joined", "left", "limits", "waits")
"""Kinds of events of the run, and of events that happen in each shard alike. Home records all of them, so the
records of other shards are left out."""
_OF_SHARDS = ("died", "returned", "outage", "damaged")
"""Kinds of events that may happen in only some of the shards."""
_MEMBER = re.compile(r"(.*)-[0-9a-f]{12}")
"""A worker's id, with the part that is the same in all shards as its group. The ids of one process end
differently in each shard. Source: frontier/worker/identity.py"""
_SAME_FACT_S = 60.0
"""Seconds within which all shards record a common fact, such as the death of a worker."""


def _each_fact_once(events: Iterable[Event]) -> list[Event]:
    """Merge events if several shards have recorded the same fact. *events* begin with the oldest one."""
    groups: list[list[Event]] = []
    newest: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        group = newest.get(_fact_of(event))
        if group and _is_near(group[0], event) and all(event.shards != each.shards for each in group):
            group.append(event)
        else:
            newest[_fact_of(event)] = group = [event]
            groups.append(group)
    return [_merged(*group) for group in groups]


def _merged(first: Event, *others: Event) -> Event:
    total = max if first.kind == "outage" else sum
    counts = [first.count, *(each.count for each in others)]
    return replace(first, count=total(counts), shards=sum((each.shards for each in others), first.shards))


def is_known(event: Event, known: Iterable[Event]) -> bool:
    """Return whether an event in *known* is about the same fact, but was merged from other shards."""
    return any(
        _is_near(before, event)
        and {*before.shards} != {*event.shards}
        and _fact_of(before) == _fact_of(event)
        for before in known
    )


def _fact_of(event: Event) -> tuple[Any, ...]:
    # For an outage, each shard records the worker that was back first. This worker may differ between shards.
    process = "" if event.kind == "outage" else _MEMBER.sub(r"\1", event.who)
    return event.run, event.kind, process, "" if event.kind == "returned" else event.about


def _is_near(one: Event, other: Event) -> bool:
    return abs(other.at - one.at) <= _SAME_FACT_S


def paces(samples: Sequence[Sample]) -> Iterator[Pace]:
    """Yield the speed of the crawl between each sample and the previous one."""
    # The first sample is compared with itself, so its pace is unknown.
    return map(_pace, [*samples[:1], *samples], samples)


def _pace(before: Sample, now: Sample) -> Pace:
    passed = now.at - before.at
    if before.run != now.run or passed <= 0:
        return Pace()
    # A count may fall after a roll-back of Redis, or a retry of failed requests.
    done, failed = (max(0, getattr(now, name) - getattr(before, name)) for name in ("done", "failed"))
    exchanges = now.exchanges - before.exchanges
    mean_ms = max(0.0, now.exchange_s - before.exchange_s) * 1000 / exchanges if exchanges > 0 else None
    return Pace((done + failed) / passed, failed / passed, mean_ms)


Curve = tuple[list["float | None"], Callable[[float], str]]
"""A value for each sample, None if unknown; and a function that turns a value into text."""


def curves_of(samples: Sequence[Sample]) -> dict[str, Curve]:
    """Return the curves for terminals and reports by name, except curves without a known value."""
    rates = list(paces(samples))
    found: dict[str, Curve] = {
        "pages/s": ([pace.pages_per_s for pace in rates], lambda value: f"{value:,.1f}"),
        "waiting": ([each.waiting + each.delayed for each in samples], lambda value: f"{value:,.0f}"),
        "failed/s": ([pace.failed_per_s for pace in rates], lambda value: f"{value:,.2f}"),
        "workers": ([each.workers for each in samples], lambda value: f"{value:,.0f}"),
        "memory": ([each.memory_bytes or None for each in samples], lambda value: format_bytes(int(value))),
    }
    return {name: each for name, each in found.items() if any(value is not None for value in each[0])}


def extent(curve: Curve) -> str:
    """Return the last and the largest known value of a curve, as text."""
    values, text = curve
    known = [value for value in values if value is not None]
    return f"{text(known[-1])}, at most {text(max(known))}"


def describe(event: Event) -> str:
    """Describe an event for people, without a full stop; name its shards if home is not among them."""
    in_others = event.kind in _OF_SHARDS and HOME not in event.shards
    return _sentence(event) + (f" ({named(event.shards)})" if in_others else "")


def _sentence(event: Event) -> str:
    count, leases = event.count, count_of(event.count, "lease")
    times = f" ({count:,} times)" if count > 1 else ""
    reason = f" ({event.about})" if event.about else ""
    run = named_run("the run", event.about)
    words = {
        "began": f"{run} began",
        "finished": f"{run} finished{times}",
        "joined": "a worker joined",
        "left": "a worker left" + reason + (f"; {leases} given back" if count else ""),
        "died": f"a worker died with {leases}",
        "returned": f"a worker registered again, with {leases}; its former id: {event.about}",
        "waits": f"{count_of(count, 'worker waits', 'workers wait')} for Redis: {event.about}",
        "outage": f"Redis gave no usable answer for {count / 1000:,.1f} s",
        "damaged": f"{count:,} requests or other keys were found deleted or evicted",
        "pause": f"paused{times}",
        "drain": f"draining{times}",
        "resume": f"resumed{times}",
        "stop": f"the workers were asked to stop{times}",
        "complete": f"the run may end although a start() is incomplete{times}",
        "limit": f"limits changed{times}: {event.about}",
        "limits": f"a worker joined with other limits, which apply to all from now on: {event.about}",
        "retry": f"{count_of(count, 'request')} put back into the backlog",
        "forget": f"{count_of(count, 'fingerprint')} forgotten",
        "drop": f"{count_of(count, 'request')} dropped: {event.about}",
    }
    return words.get(event.kind) or f"{event.kind} {count:,} {event.about}".strip()


def _read(client: Any, name: str, most: int, parse: Callable[[bytes], T]) -> list[T]:
    found = []
    for record in client.lrange(name, -most, -1):
        with suppress(ValueError):  # a later version may write other records
            found.append(parse(record))
    return found


def _varints(packed: bytes) -> Iterator[int]:
    """Yield the numbers that pack_numbers in lua/lib/samples.lua wrote."""
    number = shift = 0
    for byte in packed:
        number += (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


def parse_sample(record: bytes) -> Sample:
    """Decode a record of lua/lib/samples.lua.

    Raises:
        ValueError: a later version wrote the record.
    """
    if record[:1] != b"\1":
        raise ValueError("no sample of this version")
    run, second, hundredths, *counts, kib, exchanges, exchange_ms, errors, outage_ms = _varints(record[1:])
    done, failed, dead, waiting, delayed, in_flight, workers, seen = counts
    return Sample(
        second + hundredths / 100, run, done, failed, dead, waiting, delayed, in_flight, workers, seen,
        kib * 1024, exchanges, exchange_ms / 1000, errors, outage_ms / 1000,
    )  # fmt: skip


def _event(record: bytes) -> Event:
    """Decode a record of lua/lib/journal.lua; see `parse_sample`."""
    run, at_ms, kind, who, count, about = msgpack.unpackb(record, raw=True)
    who_text, about_text = (printable(text.decode("utf-8", "replace"), MAX_TEXT) for text in (who, about))
    return Event(at_ms / 1000, run, kind.decode(), who_text, count, about_text)
