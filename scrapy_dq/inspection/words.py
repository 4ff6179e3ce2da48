"""Put durations, times and phases of a crawl into words, the same for terminals and the web page."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from scrapy_dq.backend.health import format_bytes
from scrapy_dq.text import count_of, named_run, printable

LONGEST_NAME = 200
"""Maximum number of characters of a name, because a link may have a long host."""


def when(at: float) -> str:
    """Return a time (seconds since 1970) as text, in this host's time zone."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """Return a duration as text, for people."""
    whole = round(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def precise_span(seconds: float) -> str:
    """Return a duration as text, with more digits than `span` if it is short; "" for 0."""
    if not seconds:
        return ""
    return f"{seconds:.3g} s" if seconds < 10 else span(seconds)


def phase_of(status: dict[str, Any]) -> str:
    """Return the phase, and whether the crawl is paused or draining."""
    return ", ".join(filter(None, (status["phase"], status.get("hold"))))


def run_of(status: dict[str, Any]) -> str:
    """Return the number of the run, and its name if the user gave it one."""
    return named_run(f"run {status['run']}", status["run_name"])


UNHEALTHY = ("dead", "silent", "stalled", "fenced")
"""The states of workers that do no work."""


def workers(status: dict[str, Any]) -> str:
    """Return the number of workers, and how many of them do nothing: `2 (dead)`, `3 (1 dead)`."""
    total, states = status["workers"], status.get("worker_states", {})
    unhealthy = {state: states[state] for state in UNHEALTHY if states.get(state)}
    parts = [state if count == total else f"{count:,} {state}" for state, count in unhealthy.items()]
    return f"{total:,}" + (f" ({', '.join(parts)})" if parts else "")


def awaited(partition: str, wait_s: float | None) -> str:
    """Return what a worker without leases waits for; see `Snapshot.turn`."""
    shown = printable(partition, LONGEST_NAME) or "(no name)"
    if wait_s is None:
        return f"for a lease or budget of {shown}"
    return f"{precise_span(wait_s) or '0 s'} for the turn of {shown}"


def awaiting(status: dict[str, Any]) -> Iterator[str]:
    """Yield the number of workers that wait without leases, and the reason, if there are any."""
    if (turn := status.get("turn")) and (count := turn["workers"]):
        waiting_ones = count_of(count, "worker waits", "workers wait")
        yield f"{waiting_ones} {awaited(turn['partition'], turn['wait_s'])}"


def speed(status: dict[str, Any]) -> str:
    """Return pages per second and the time left; empty if the speed was not measured."""
    rate, left_s = status["pages_per_s"], status["left_s"]
    if rate is None:
        return ""
    return f"{rate:,.1f} pages/s" + (f"; {span(left_s)} for all known requests" if left_s is not None else "")


def memory(status: dict[str, Any]) -> str:
    """Return the memory that Redis uses; empty if unknown."""
    used, limit = status["redis_memory_bytes"], status["redis_maxmemory_bytes"]
    if used is None:
        return ""
    return f"Redis uses {format_bytes(used)}" + (f" of {format_bytes(limit)}" if limit else "")


def missing(status: dict[str, Any]) -> Iterator[str]:
    """Yield problems of the run or of its Redis."""
    yield from (waiting(each) for each in status.get("waits", ()))
    yield from (f"Redis refuses writes: {text}" for text in status.get("redis_refuses", ()))
    yield from uncounted(status.get("unreachable_shards", ()), status.get("apart_shards", ()))
    if status.get("gone"):
        yield f"{status['gone']:,} requests or other keys were deleted or evicted during the run"
    if status.get("incomplete"):
        yield f"{status['incomplete']:,} start() incomplete, and none with the same arguments has completed"
    if status.get("declined"):
        yield f"{status['declined']:,} requests wait for a worker that has the code for them"
    if status.get("unserved"):
        yield f"{status['unserved']:,} requests became dead letters: no worker had the code for them"


def waiting(wait: dict[str, Any]) -> str:
    """Return which workers wait, since when and why; see `Snapshot.waits`."""
    workers = count_of(wait["workers"], "worker waits", "workers wait")
    return f"{workers} since {when(wait['since'])}: {wait['why']}"


def unanswered(shards: Collection[int]) -> Iterator[str]:
    """Yield a sentence about *shards* that did not answer, if any."""
    if shards:
        yield f"no answer from {named(shards)}: the data there is neither shown nor counted"


def uncounted(unreachable: Collection[int], apart: Collection[int]) -> Iterator[str]:
    """Yield a sentence about shards that are not counted, if any; see `Overview`."""
    yield from unanswered(unreachable)
    if apart:
        yield f"no data of this run in {named(apart)}: it was lost, rolled back, or not stored yet"


def named(shards: Collection[int]) -> str:
    """Return the names of some shards: their numbers."""
    return f"shard{'s' * (len(shards) > 1)} {', '.join(map(str, sorted(shards)))}"


def examined(status: dict[str, Any]) -> str:
    """Return how many partitions were examined to find the largest and slowest."""
    total, examined_count = status["partitions"], status["partitions_looked_at"]
    return f"of {total:,}" if examined_count >= total else f"of {examined_count:,} examined, of {total:,}"
