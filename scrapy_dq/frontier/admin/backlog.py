"""Bounded, read-only queries about the waiting entries of a crawl; no key is read as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, ResponseError

from scrapy_dq.frontier import keys, records
from scrapy_dq.frontier.admin.shards import shards_of
from scrapy_dq.frontier.errors import describe
from scrapy_dq.frontier.model import StartKeys
from scrapy_dq.frontier.reader import Reader, drained
from scrapy_dq.frontier.records import DELAYED, IN_FLIGHT, Entry
from scrapy_dq.frontier.scripts import UNDECLARED_KEYS, Script
from scrapy_dq.frontier.wire import refused_commands, wrong_type

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.overview import Overview

PART = 500
"""Number of partitions that one call examines. A script blocks Redis while it runs."""
MAX_UPCOMING = 1000
SIZES_S = 0.06
MAX_BYTES = 4_194_304
_WHERE_ORDER = ("rotation", "suspects", "resting", "saturated", "delayed")


@dataclass(frozen=True)
class Size:
    """How many entries of a partition wait, and which limits delay them."""

    partition: str
    waiting: int
    """Number of entries in the lists of the partition."""
    delay_s: float
    concurrency: int
    """Maximum number of entries in flight; 0: no limit."""
    blocked_s: float
    """Remaining seconds of a block; 0: no block."""
    takes_s: float
    """The shortest time that the entries can take: their number times the delay, plus `blocked_s`."""


@dataclass(frozen=True)
class Sizes:
    """The partitions with the most entries, and the slowest ones."""

    partitions: int
    """Number of partitions with lists."""
    examined: int
    """Number of partitions that were examined."""
    largest: list[Size]
    """The examined partitions with the most entries, the largest first."""
    slowest: list[Size]
    """The examined partitions that take longest, the slowest first; empty if none of them has a delay or a
    block."""
    blocked: list[Size]
    """The blocked partitions among the slowest examined ones, the longest block first."""


def sizes(client: Any, crawl: str, top: int, *, most: int = 20_000, budget_s: float = SIZES_S) -> Sizes:
    """Return the largest partitions, and the ones that limits or blocks delay longest. Blocking.

    The 250 partitions with the longest blocks, and about as many with their own limits, are always examined
    in each shard that answers. `peek` reports shards that do not answer.

    Args:
        client: a `redis` client that decodes nothing.
        top: how many partitions of each kind to return.
        most: examine about this many partitions at most.
        budget_s: begin no further part after this many seconds.
    Raises:
        redis.exceptions.RedisError: home does not reply.
    """
    shards = shards_of(client, crawl)
    count = len(shards)

    def read(client: Any, shard: keys.Shard) -> tuple[int, int, Iterable[Size]]:
        return _sizes_in_shard(client, shard, top, most // count, budget_s / count)

    partitions, examined, parts = zip(*shards.each(read, strict=False), strict=True)
    found = list(chain(*parts))

    def first(size: str) -> list[Size]:
        having = (each for each in found if getattr(each, size))
        return sorted(having, key=attrgetter(size), reverse=True)[:top]

    return Sizes(sum(partitions), sum(examined), first("waiting"), first("takes_s"), first("blocked_s"))


def _sizes_in_shard(
    client: Any, shard: keys.Shard, top: int, most: int, budget_s: float
) -> tuple[int, int, Iterable[Size]]:
    script, until = Script("sizes"), time.monotonic() + budget_s
    cursor, examined, found = b"0", 0, dict[bytes, Size]()
    while True:
        cursor, partitions, step, flat = script.call_blocking(client, keys.fixed(shard), cursor, PART, top)
        examined += step
        # HSCAN may return a partition twice while Redis rehashes.
        for name, waiting, delay_ms, concurrency, *times_ms in zip(*[iter(flat)] * 6, strict=True):
            blocked_s, takes_s = (ms / 1000 for ms in times_ms)
            found[name] = Size(_text(name), waiting, delay_ms / 1000, concurrency, blocked_s, takes_s)
        if cursor == b"0" or examined >= most or time.monotonic() >= until:
            break
    return partitions, partitions if cursor == b"0" else min(examined, partitions), found.values()


def other_names(client: Any, crawl: str, partition: str, *, most: int = 20_000) -> list[str] | None:
    """Return the names of partitions in use if *partition* is not in use, else None; blocking.

    A partition is in use if its entries wait or are in flight, or if it has its own limits or a block. The
    search examines only the next 500 delayed entries, and only the shard of *partition*.

    Args:
        most: return about this many names at most.
    Raises:
        redis.exceptions.RedisError: no reply, or a key of the crawl has a foreign type.
    """
    client, shard = shards_of(client, crawl).of_partition(partition)
    reader, prefix, name = Reader(client, shard), keys.prefix(shard), partition.encode()
    pipe = client.pipeline(transaction=False)
    for key in ("limits", "busy"):
        pipe.hexists(prefix + key, name)
    for key in ("rotation", "suspects", "resting", "saturated", "earliest", "blocked"):
        pipe.zscore(prefix + key, name)
    pipe.zrange(prefix + "delayed", 0, PART - 1)
    *uses, delayed = pipe.execute()
    names = {records.member(DELAYED, each).partition for each in delayed}
    for leases in drained(reader.entries(IN_FLIGHT)):
        names.update(each.partition for each in leases)
    for found in chain(drained(reader.pages(b"limits")), drained(reader.pages(b"bands"))):
        names.update(each for each, _ in found)
        if len(names) >= most:
            break
    in_use = name in names or any(use is not None and use is not False for use in uses)
    return None if in_use else sorted(map(_text, names))


def upcoming(client: Any, crawl: str, count: int) -> list[Entry]:
    """Return the next *count* entries, roughly in the order in which a worker would get them. Blocking.

    The worker is assumed to have no leases. This call leases nothing. Entries that may be leased now come
    first, then entries that wait for their partition, then delayed ones. With several shards, the result has
    entries of each shard in turn. Each shard returns at most MAX_UPCOMING entries, and about MAX_BYTES.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    parts = shards_of(client, crawl).each(lambda client, shard: _upcoming_in_shard(client, shard, count))
    in_turn = [each for turn in zip_longest(*parts) for each in turn if each is not None]
    # The sort is stable: it keeps the order within a shard.
    return sorted(
        in_turn, key=lambda each: _WHERE_ORDER.index(each.where) if each.where in _WHERE_ORDER else 0
    )[:count]


def awaited_turn(client: Any, crawl: str, overview: Overview) -> Entry | None:
    """Return the next entry if a worker without leases has to wait for it, else None; blocking.

    The worker waits because the entry is not due, or because the partition has a delay, a block, a spent
    budget or as many leases as it may have.

    Args:
        overview: an overview of this crawl, read just now, with its members.
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    holds_nothing = any(not (member.in_flight or member.fenced) for member in overview.members)
    waits = overview.census.waiting + overview.census.delayed
    if overview.phase != "open" or overview.hold.value or not (holds_nothing and waits):
        return None
    found = upcoming(client, crawl, 1)
    return found[0] if found and found[0].where in ("resting", "saturated", "delayed") else None


def _upcoming_in_shard(client: Any, shard: keys.Shard, count: int) -> list[Entry]:
    script = Script("upcoming")
    flat = script.call_blocking(client, keys.fixed(shard), max(0, min(count, MAX_UPCOMING)), MAX_BYTES)
    found = []
    for where, wait_ms, partition, entry_id, attempts, payload in zip(*[iter(flat)] * 6, strict=True):
        wait_s = wait_ms / 1000 if wait_ms >= 0 else None
        found.append(Entry(where.decode(), entry_id, partition, payload, attempts, wait_s=wait_s))
    return found


def info_of(client: Any) -> dict[str, Any] | None:
    """Return the result of INFO, or None if this user may not call it; blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    try:
        return dict(client.info())
    except NoPermissionError:
        return None


def refused_scripts(client: Any, shard: keys.Shard, start_keys: StartKeys | None) -> str:
    """Return why Redis does not run our scripts; empty: it runs them. Blocking.

    This check does not change the crawl.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    try:
        # Check first whether a script may use a key that the call does not declare. The script `probe` cannot
        # check this, because it ignores all errors except denials.
        text = f"{UNDECLARED_KEYS}\nreturn redis.call('EXISTS', ARGV[1])"
        client.eval(text, 1, keys.meta(shard), f"{keys.prefix(shard)}undeclared")
        kind = start_keys.kind if start_keys else ""
        return refused_commands(Script("probe").call_blocking(client, keys.fixed(shard), kind))
    except ResponseError as error:
        return describe(error)


def compress_depth(client: Any) -> int | None:
    """Return how many nodes at each end of a list this Redis leaves uncompressed; 0: all nodes. Blocking.

    None: this user may not read the configuration, the service forbids it, or the server has no such setting.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    return configured(client, "list-compress-depth")


def configured(client: Any, name: str) -> int | None:
    """Return a number from the configuration of this Redis; None: see `compress_depth`. Blocking."""
    with suppress(ResponseError, ValueError):
        if found := client.config_get(name):
            return int(next(iter(found.values())))
    return None


def unusable_keys(client: Any, start_keys: StartKeys) -> tuple[list[str], str]:
    """Return the start keys that cannot be used; blocking.

    Returns:
        the keys that this user may not read; a message about a key of a wrong type, from which workers get
        nothing (empty: no such key).
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    refused, wrong = [], ""
    for name in start_keys.keys:
        try:
            kind = client.type(name).decode()
        except NoPermissionError:
            refused.append(name)
            continue
        if kind not in ("none", start_keys.kind):
            wrong = wrong or wrong_type(name, kind, start_keys.kind)
    return refused, wrong


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
