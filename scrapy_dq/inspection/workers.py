"""The workers of a crawl: where each is, what it holds, how fast it is, and whether it is alive."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from scrapy_dq.inspection.status import LONGEST_WAIT, RATE_OVER_S, counted_in
from scrapy_dq.inspection.words import TROUBLED
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.overview import Overview
    from scrapy_dq.frontier.model import Member
    from scrapy_dq.inspection.place import Place

WAIT_S = 2.5
"""A live worker has a heartbeat at least once a second."""
MOST_READ = 1_000
"""Workers whose records a page or a scrape reads: 20,000 names that others have written take few bytes."""


def read_workers(place: Place, wait_s: float) -> list[dict[str, Any]]:
    """Return the state of each worker, after watching them for *wait_s* seconds; 0: without watching.

    Raises:
        NoSuchCrawl: there is no such crawl.
    """
    before = None
    began = time.monotonic()
    if wait_s:
        before = place.overview()
        time.sleep(wait_s)
    overview, passed_s = place.overview(), time.monotonic() - began
    rows = workers_of(overview, before, passed_s, place.now(), watched=wait_s >= WAIT_S)
    turn = turn_of(place, overview)
    return [row | {"turn": turn if awaits(row) else None} for row in rows]


def awaits(row: dict[str, Any]) -> bool:
    """Tell whether a worker holds nothing, although it may be alive and have a Redis."""
    return not (row["leases"] or row["waits_for"]) and row["state"] not in TROUBLED


def states_of(overview: Overview) -> dict[str, int]:
    """Return how many workers have each state, after one look."""
    return dict(Counter(row["state"] for row in workers_of(overview, None, 0.0, 0.0, watched=False)))


def turn_of(place: Place, overview: Overview) -> dict[str, Any] | None:
    """Return which partition the workers that hold nothing wait for; None: there is no such worker.

    `wait_s` is None if the wait ends with a lease, or with a larger budget.
    """
    from scrapy_dq.frontier.admin.backlog import awaited_turn

    first = awaited_turn(place.shards, place.crawl, overview)
    return {"partition": first.partition, "wait_s": first.wait_s} if first else None


class WorkersWatch:
    """Workers, looked at repeatedly; rates, and whether they are silent, are those of the last 5 s."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Overview]] = deque()

    def look(self, overview: Overview, now: float = 0.0) -> list[dict[str, Any]]:
        """Return the state of each; *now*: as for `workers_of`; without it, `since_s` means nothing."""
        at = time.monotonic()
        while len(self._looks) > 1 and at - self._looks[1][0] >= RATE_OVER_S:
            self._looks.popleft()
        self._looks.append((at, overview))
        first_at, before = self._looks[0]
        passed_s = at - first_at
        # The first look has nothing to compare with.
        return workers_of(overview, before if passed_s else None, passed_s, now, watched=passed_s >= WAIT_S)


def workers_of(
    overview: Overview, before: Overview | None, passed_s: float, now: float, *, watched: bool
) -> list[dict[str, Any]]:
    """Return the state of each worker of *overview*.

    Args:
        before: what there was *passed_s* seconds ago; None: unknown.
        now: seconds since 1970 by the clock of Redis.
        watched: whether that is so long ago that a missing heartbeat means something.
    """
    from scrapy_dq.frontier.worker.identity import own_identity

    own = own_identity()
    known = {member.worker_id: member for member in before.members} if before else {}
    # Home has the heartbeats, but what a worker has done is the sum over the shards.
    compares = before is not None and counted_in(before) == counted_in(overview)
    return [
        {
            "id": member.worker_id,
            "host": member.identity.get("host", "?"),
            "pid": member.identity.get("pid"),
            "since": member.since or None,
            "since_s": round(max(0.0, now - member.since), 1) if member.since else None,
            "beat": member.beat,
            "leases": member.in_flight,
            "done": member.done,
            "pages_per_s": _rate(member, known.get(member.worker_id), passed_s) if compares else None,
            "waits_since": member.waits_since or None,
            "waits_for": printable(member.waits_for, LONGEST_WAIT) or None,
            "fenced": member.fenced,
            "state": _state(member, known.get(member.worker_id), watched, own),
        }
        for member in sorted(overview.members, key=lambda member: member.worker_id)
    ]


def _rate(member: Member, before: Member | None, passed_s: float) -> float | None:
    if before is None:
        return None
    # Fewer than before: Redis was rolled back.
    return round(max(0, member.done - before.done) / passed_s, 1)


def _state(member: Member, before: Member | None, watched: bool, own: dict[str, Any]) -> str:
    """Return the state; a missing heartbeat means something only if it was *watched* long enough."""
    from scrapy_dq.frontier.worker.identity import certainly_dead, on_this_machine

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
