"""Looks at what waits in a crawl, from outside: bounded, read-only, and no key is read as a whole."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.errors import describe
from scrapy_dq.frontier.model import Order, Seen
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import refused_commands

PART = 500
"""Partitions that one call looks at: Redis serves nobody else meanwhile."""
MAX_UPCOMING = 1000
MAX_BYTES = 4_194_304
_COUNT_ONLY = Order.FIFO
"""How the entries of a list are served makes no difference to how many they are."""


@dataclass(frozen=True)
class Size:
    """How much of a partition waits, and what holds it up."""

    partition: str
    waiting: int
    """In its lists."""
    delay_s: float
    concurrency: int
    """In flight; 0: no limit."""
    blocked_s: float
    """From now on."""
    takes_s: float
    """What waits times the delay, and the rest of a block: not sooner is it done. 0: nothing holds it up."""


@dataclass(frozen=True)
class Sizes:
    """How much waits where."""

    partitions: int
    """How many have something waiting in lists."""
    looked_at: int
    largest: list[Size]
    """Of those that were looked at, the ones with most entries; the largest first."""
    slowest: list[Size]
    """Those that take longest; the slowest first. Of a crawl without limits: none."""

    @property
    def complete(self) -> bool:
        return self.looked_at >= self.partitions


@dataclass(frozen=True)
class Upcoming:
    """An entry that waits, and how soon it may be leased."""

    entry_id: bytes
    where: str
    """rotation, suspects, resting, saturated or delayed."""
    wait_s: float | None
    """Until it may be leased; None: nobody knows."""
    partition: str
    attempts: int
    payload: bytes


def sizes(client: Any, crawl: str, top: int, *, most: int = 20_000, budget_s: float = 0.06) -> Sizes:
    """Return the partitions in which most waits, and those that limits and blocks hold up longest; blocking.

    The 250 that are blocked longest, and about as many with limits of their own, are looked at in any case.

    Args:
        client: a `redis` client that decodes nothing.
        top: how many of each.
        most: look at no more partitions than about this.
        budget_s: begin no further part after this.
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    script, until = Script("sizes", _COUNT_ONLY), time.monotonic() + budget_s
    cursor, looked_at, found = b"0", 0, dict[bytes, Size]()
    while True:
        cursor, partitions, looked, flat = script.call_blocking(client, keys.meta(crawl), cursor, PART, top)
        looked_at += looked
        # A part that is read while the hash is rebuilt may tell of a partition twice.
        for name, waiting, delay_ms, concurrency, *times_ms in zip(*[iter(flat)] * 6, strict=True):
            blocked_s, takes_s = (ms / 1000 for ms in times_ms)
            found[name] = Size(_text(name), waiting, delay_ms / 1000, concurrency, blocked_s, takes_s)
        if cursor == b"0" or looked_at >= most or time.monotonic() >= until:
            break
    looked_at = partitions if cursor == b"0" else min(looked_at, partitions)
    largest = sorted((each for each in found.values() if each.waiting), key=lambda each: -each.waiting)
    slowest = sorted((each for each in found.values() if each.takes_s), key=lambda each: -each.takes_s)
    return Sizes(partitions, looked_at, largest[:top], slowest[:top])


def names_beside(
    client: Any, crawl: str, partition: str, *, most: int = 20_000, budget_s: float = 0.06
) -> list[str] | None:
    """Return names of partitions that have something, if *partition* has nothing, else None; blocking.

    Something waits in it, is in flight, or it has limits or a block of its own. Of what is not due yet the
    next 500 are looked at.

    Args:
        most: return no more names than about this.
        budget_s: begin no further part after this.
    Raises:
        redis.exceptions.RedisError: no reply, or a key of the crawl has a foreign type.
    """
    script, until = Script("present", _COUNT_ONLY), time.monotonic() + budget_s
    cursor, names = b"0", set[bytes]()
    while True:
        known, cursor, some = script.call_blocking(client, keys.meta(crawl), partition.encode(), cursor, PART)
        if known:
            return None
        names.update(some)
        if cursor == b"0" or len(names) >= most or time.monotonic() >= until:
            return sorted(map(_text, names))


def upcoming(client: Any, crawl: str, count: int) -> list[Upcoming]:
    """Return the next *count* entries, about as a worker that holds nothing would lease them; blocking.

    Nothing is leased. Those that may be leased now come first, then those that wait for their partition, then
    those that are not due. 4 MiB are the most.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    stored = client.hget(keys.meta(crawl), "order")
    order = next((order for order in Order if order.value.encode() == stored), Order.PRIORITY_LIFO)
    script = Script("upcoming", order)
    flat = script.call_blocking(client, keys.meta(crawl), max(0, min(count, MAX_UPCOMING)), MAX_BYTES)
    return [
        Upcoming(
            id_, where.decode(), wait_ms / 1000 if wait_ms >= 0 else None, _text(partition), attempts, payload
        )
        for where, wait_ms, partition, id_, attempts, payload in zip(*[iter(flat)] * 6, strict=True)
    ]


def info_of(client: Any, section: str | None = None) -> dict[str, Any] | None:
    """Return what INFO says, None if it is not allowed; blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    try:
        return dict(client.info(section))
    except NoPermissionError:
        return None


def refused_scripts(client: Any, order: Order, seen: Seen) -> tuple[str, bool]:
    """Return why scripts do not run (empty: they do), and whether that of an exchange is cached; blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    try:
        refused = refused_commands(Script("probe", order).call_blocking(client, keys.meta("-")))
        (cached,) = client.script_exists(Script("exchange", order, seen).sha)
    except ResponseError as error:
        return describe(error), False
    return refused, bool(cached)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
