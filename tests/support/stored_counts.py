"""The counts of a crawl, which are stored together in fields of its meta key."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import redis

from scrapy_dq.frontier import keys

COUNTS = (
    "sequence", "waiting", "in_flight", "done", "failed", "turn", "clock", "offset", "claimed", "delayed",
    "members", "seen",
)  # fmt: skip
TOLD = ("words", "stops", "forgets", "limit_changes")
LIMITING = ("delay_ms", "concurrency", "budget", "budget_period")
"""The last two counts are stored only if there is a budget for all partitions or the period is a day."""
TOGETHER = {"counts": COUNTS, "told": TOLD, "limiting": LIMITING}


def apart(meta: Mapping[bytes, bytes]) -> dict[str, int]:
    """Return all counts that are stored in *meta*. A missing count is 0."""
    found = dict.fromkeys((*COUNTS, *TOLD, *LIMITING), 0)
    for field, names in TOGETHER.items():
        numbers = meta.get(field.encode(), b"").split()
        found |= dict(zip(names, map(int, numbers), strict=bool(numbers) and field != "limiting"))
    return found


def count(client: redis.Redis, crawl: str, name: str) -> int:
    """Return one of the counts of *crawl*."""
    return apart(client.hgetall(keys.meta(crawl)))[name]


def change_count(client: redis.Redis, crawl: str, name: str, change: Callable[[int], int]) -> None:
    """Change one of COUNTS, to simulate corrupted data or the passage of time."""
    found = apart(client.hgetall(keys.meta(crawl)))
    found[name] = change(found[name])
    client.hset(keys.meta(crawl), "counts", " ".join(str(found[each]) for each in COUNTS))


def finish(client: redis.Redis, crawl: str) -> None:
    """Delete all waiting, delayed and leased entries, and mark the run as finished."""
    prefix = keys.prefix(crawl)
    for pattern in ("backlog:*", "in-flight:*"):
        client.delete(*client.scan_iter(f"{prefix}{pattern}"), prefix + "bands")
    client.delete(
        *(prefix + name for name in ("more_bands", "returned", "quarantine", "delayed", "rotation"))
    )
    for name in ("waiting", "in_flight", "delayed"):
        change_count(client, crawl, name, lambda _: 0)
    client.hset(keys.meta(crawl), "phase", "finished")
