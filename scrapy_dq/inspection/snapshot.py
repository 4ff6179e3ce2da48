"""Take snapshots of a crawl, summed over all shards that answer; a watcher also measures rates."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from scrapy_dq.backend.health import refusals
from scrapy_dq.frontier.admin.backlog import Sizes, awaited_turn, info_of, sizes
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.answers import Member
from scrapy_dq.frontier.records import Entry
from scrapy_dq.frontier.worker.identity import certainly_dead, on_this_machine, own_identity
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.totals import Totals, TotalsReader
from scrapy_dq.inspection.words import UNHEALTHY
from scrapy_dq.text import printable

EVERY_S = 1.0
"""Seconds between two snapshots of a crawl that a user watches, in all interfaces."""
RATE_OVER_S = 5.0
"""Seconds that a rate covers. If two snapshots are further apart, the rate covers the time between them."""
WAIT_S = 2.5
"""Seconds after which an unchanged heartbeat counts as missing. A live heartbeat changes each second."""
TOP = 10
COUNTS = ("workers", "waiting", "delayed", "in_flight", "done", "failed", "dead", "seen")
MAX_MEMBERS_READ = 1_000
"""Maximum number of worker records that a page or a scrape reads. Another program could write many more."""
LONGEST_WAIT = 250
"""Maximum number of characters of the reason for which a worker waits."""
SIZES_PART = 50
"""The search for large partitions takes at most 1/50 of the time."""


@dataclass(frozen=True)
class Snapshot:
    """A crawl at one moment."""

    crawl: str
    redis: str
    at: float
    """Seconds since 1970."""
    asked_at: float
    """When the snapshot was requested, by this process's monotonic clock."""
    overview: Overview
    workers: list[dict[str, Any]]
    """One row for each worker whose record was read, by id: see `_rows`."""
    pages_per_s: float | None
    """Settled requests per second; None: unknown, or no run is open."""
    turn: Entry | None = None
    """The next entry, if a worker holds no lease and has to wait before it may lease this entry."""
    sizes: Sizes | None = None
    """The largest and slowest partitions."""
    info: dict[str, Any] = field(default_factory=dict)
    """INFO of home's Redis, if the user may read it."""
    totals: Totals | None = None

    @property
    def exists(self) -> bool:
        return self.overview.phase != "absent"

    @property
    def counts(self) -> dict[str, int]:
        """The COUNTS by name."""
        return {name: getattr(self.overview.census, name) for name in COUNTS}

    @property
    def worker_states(self) -> dict[str, int]:
        """The number of workers by state; workers whose records were not read are `unknown`."""
        states = Counter(row["state"] for row in self.workers)
        unread = self.overview.census.workers - len(self.overview.members)
        return dict(states + Counter(unknown=max(0, unread)))

    @property
    def waits(self) -> list[dict[str, Any]]:
        """Workers that wait for Redis, grouped by reason, with the start of the longest wait."""
        found: dict[str, list[float]] = {}
        for row in self.workers:  # a dead worker's record may still report a wait
            if row["waits_for"] and row["state"] not in UNHEALTHY:
                found.setdefault(row["waits_for"], []).append(row["waits_since"] or 0.0)
        return [{"workers": len(each), "since": min(each), "why": reason} for reason, each in found.items()]

    def summary(self) -> dict[str, Any]:
        """Return the JSON of a crawl in a list of crawls; an absent crawl has no counts."""
        overview = self.overview
        return {
            "crawl": self.crawl,
            "redis": self.redis,
            "phase": overview.phase,
            "hold": overview.hold.value,
            "run": overview.run,
            "run_name": printable(overview.run_name),
            **(self.counts | {"worker_states": self.worker_states} if self.exists else {}),
            "unreachable_shards": list(overview.unreachable),
            "apart_shards": list(overview.apart),
        }

    def status(self) -> dict[str, Any]:
        """Return the JSON of `scrapy dq status`; the snapshot must have `turn` and `partitions`."""
        overview, census, sizes, rate = self.overview, self.overview.census, self.sizes, self.pages_per_s
        assert sizes is not None
        turn = self.turn
        # The slowest partition takes at least this time, because of its limits.
        least_s = max((each.takes_s for each in sizes.slowest), default=0.0)
        return self.summary() | {
            "at": self.at,
            **{name: getattr(census, name) for name in ("gone", "incomplete", "declined", "unserved")},
            "turn": turn and _turn(turn) | {"workers": sum(map(_awaits, self.workers))},
            "shards": overview.shards,
            "pages_per_s": None if rate is None else round(rate, 1),
            "left_s": round(max(left(self.counts) / rate, least_s), 1) if rate else None,
            "waits": self.waits,
            "redis_refuses": refusals(self.info),
            "redis_memory_bytes": self.info.get("used_memory"),
            "redis_maxmemory_bytes": self.info.get("maxmemory"),
            "partitions": sizes.partitions,
            "partitions_looked_at": sizes.examined,
            "largest_partitions": [asdict(each) for each in sizes.largest],
            "slowest_partitions": [asdict(each) for each in sizes.slowest],
            "blocked_partitions": [asdict(each) for each in sizes.blocked],
        }

    def worker_rows(self) -> list[dict[str, Any]]:
        """Return the JSON of `scrapy dq workers`; the snapshot must have `turn`."""
        turn = self.turn and _turn(self.turn)
        return [row | {"turn": turn if _awaits(row) else None} for row in self.workers]


def settled(counts: dict[str, Any]) -> int:
    """Return how many requests are settled, with any outcome."""
    return int(counts["done"] + counts["failed"] + counts["dead"])


def left(counts: dict[str, Any]) -> int:
    """Return how many requests are not settled."""
    return int(counts["waiting"] + counts["delayed"] + counts["in_flight"])


class Watcher:
    """Takes snapshots of one crawl, and remembers earlier ones to compute rates."""

    def __init__(self, place: Place, *, most_members: int | None = None) -> None:
        """Read the records of at most *most_members* workers; all are counted."""
        self._place = place
        self._most_members = most_members
        self._overviews: deque[tuple[float, Overview]] = deque()
        self._sizes: Sizes | None = None
        self._sizes_until = 0.0
        self._totals = TotalsReader()

    def snapshot(self, *, turn: bool = False, partitions: bool = False, totals: bool = False) -> Snapshot:
        """Return a snapshot; its phase is `absent` if there is no such crawl.

        Args:
            turn: include `Snapshot.turn`, and the age of workers.
            partitions: include the largest and slowest partitions, and INFO of Redis.
            totals: include figures that only metrics need.
        Raises:
            FrontierRefused: a key has a foreign type.
            redis.exceptions.RedisError: no reply from home.
        """
        place, asked_at = self._place, time.monotonic()
        overview = place.peek(self._most_members)
        exists = overview.phase != "absent"
        now = place.now() if turn else None
        rows, rate = self._compared(asked_at, overview, now)
        return Snapshot(
            place.crawl, place.target, round(time.time(), 3), asked_at, overview, rows,
            rate if overview.phase == "open" else None,
            awaited_turn(place.shards, place.crawl, overview) if turn and exists else None,
            self._newest_sizes() if partitions and exists else None,
            (info_of(place.client) or {}) if partitions else {},
            self._totals.read(place, overview) if totals and exists else None,
        )  # fmt: skip

    def _compared(
        self, at: float, overview: Overview, now: float | None
    ) -> tuple[list[dict[str, Any]], float | None]:
        """Compare with earlier overviews; return the rows of the workers, and the rate of the crawl."""
        overviews = self._overviews
        while len(overviews) > 1 and at - overviews[1][0] >= RATE_OVER_S:
            overviews.popleft()
        # Counts can be compared only within a run, and only if they are of the same shards.
        same = next((each for each in overviews if _counted_in(each[1]) == _counted_in(overview)), None)
        overviews.append((at, overview))
        rows = _rows(at, overview, same, now)
        if same is None or at <= same[0]:
            return rows, None
        was, is_now = (settled(asdict(each.census)) for each in (same[1], overview))
        return rows, max(0, is_now - was) / (at - same[0])

    def _newest_sizes(self) -> Sizes:
        """Return the largest and slowest partitions: an earlier result, if a new read would cost too much."""
        began = time.monotonic()
        if self._sizes is None or began >= self._sizes_until:
            self._sizes = sizes(self._place.shards, self._place.crawl, TOP)
            self._sizes_until = began + SIZES_PART * (time.monotonic() - began)
        return self._sizes


def watched(place: Place, seconds: float, **parts: bool) -> Snapshot:
    """Watch a crawl for *seconds*, and return a snapshot. If *seconds* is 0, it has no rates.

    Args:
        parts: arguments of `Watcher.snapshot`.
    Raises:
        NoSuchCrawl: there is no such crawl.
    """
    watcher = Watcher(place)
    if seconds:
        first = watcher.snapshot().overview
        if first.phase == "open" or first.members:
            time.sleep(seconds)
    found = watcher.snapshot(**parts)
    if not found.exists:
        raise place.no_such_crawl()
    return found


def maybe_alive(overview: Overview) -> list[Member]:
    """Return the members of a crawl that are not known to be dead."""
    own = own_identity()
    return [each for each in overview.members if not (each.fenced or certainly_dead(each.identity, own))]


def _counted_in(overview: Overview) -> tuple[Any, ...]:
    """Return the run and the missing shards. A rate needs two overviews for which these are equal."""
    return overview.epoch, overview.run, overview.unreachable, overview.apart


def _turn(first: Entry) -> dict[str, Any]:
    """Return the JSON of the awaited turn; `wait_s` is None if it needs a settled lease or more budget."""
    return {"partition": first.partition.decode("utf-8", "replace"), "wait_s": first.wait_s}


def _awaits(row: dict[str, Any]) -> bool:
    """Return whether a worker holds no lease, although it may be alive and reach Redis."""
    return not (row["leases"] or row["waits_for"]) and row["state"] not in UNHEALTHY


_TimedOverview = tuple[float, "Overview"]


def _rows(
    at: float, overview: Overview, same: _TimedOverview | None, now: float | None
) -> list[dict[str, Any]]:
    """Return the state of each worker of *overview*.

    Args:
        same: the earliest remembered overview with the same run and shards, after its time; None without one.
        now: seconds since 1970 by the clock of Redis; None: unknown.
    """
    own = own_identity()
    before = {member.worker_id: member for member in same[1].members} if same else {}
    passed_s = at - same[0] if same else 0.0
    return [
        {
            "id": member.worker_id,
            "host": member.identity.get("host", "?"),
            "pid": member.identity.get("pid"),
            "since": member.since or None,
            "since_s": round(max(0.0, now - member.since), 1) if member.since and now else None,
            "beat": member.beat,
            "leases": member.in_flight,
            "done": member.done,
            "pages_per_s": _rate(member, before.get(member.worker_id), passed_s),
            "waits_since": member.waits_since or None,
            "waits_for": printable(member.waits_for, LONGEST_WAIT) or None,
            "fenced": member.fenced,
            "state": _state(member, before.get(member.worker_id), passed_s >= WAIT_S, own),
        }
        for member in sorted(overview.members, key=lambda member: member.worker_id)
    ]


def _rate(member: Member, before: Member | None, passed_s: float) -> float | None:
    if before is None or passed_s <= 0:
        return None
    # A count falls if Redis is rolled back.
    return round(max(0, member.done - before.done) / passed_s, 1)


def _state(member: Member, before: Member | None, watched: bool, own: dict[str, Any]) -> str:
    """Return the state; a missing heartbeat counts only if the worker was *watched* long enough."""
    if member.fenced:
        return "fenced"
    if certainly_dead(member.identity, own):
        return "dead"
    if before is not None and member.beat != before.beat:
        return "alive"
    here = on_this_machine(member.identity, own)
    if before is not None and watched:
        return "stalled" if here else "silent"
    return "running" if here else "unknown"


def unhealthy_first(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of workers, sorted: workers that do nothing come first, in the order of UNHEALTHY."""
    ranks = {state: rank for rank, state in enumerate(UNHEALTHY)}
    return sorted(rows, key=lambda row: ranks.get(row["state"], len(ranks)))
