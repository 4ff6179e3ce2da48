"""Reads all entries of a crawl, decoded and in parts; no key is read as a whole. Blocking."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from scrapy_dq.frontier import keys, records
from scrapy_dq.frontier.admin.shards import shards_of
from scrapy_dq.frontier.reader import Reader, drained
from scrapy_dq.frontier.records import DEAD, FAILED, PLACES, Entry


@dataclass
class ScanResult:
    """The extent of a search."""

    entries: int = 0
    """Number of entries that the search has read."""
    complete: bool = True
    """Whether the search has read all entries of the shards that answer."""


def scan_entries(
    client: Any,
    crawl: str,
    visit: Callable[[Entry], bool],
    *,
    partitions: Collection[bytes] | None = None,
    where: tuple[str, ...] = PLACES,
    most: int = 100_000,
    advance: Callable[[int], object] = lambda number: None,
) -> ScanResult:
    """Pass entries to *visit* until it returns False, or *most* were read, or there are no more.

    An entry that moves during the search may be missing, or appear twice.

    Args:
        client: a `redis` client that decodes nothing, or Shards.
        partitions: pass only entries of these partitions; None: of all partitions.
        advance: called from time to time with the number of further entries that were read.
    Raises:
        redis.exceptions.RedisError: home does not reply.
    """
    found = ScanResult()

    def scan(client: Any, shard: keys.Shard) -> bool:
        reader = Reader(client, shard)
        for place in where:
            for page in drained(reader.entries(place, partitions)):
                if page and found.entries >= most:
                    return False
                for entry in page:
                    if (partitions is None or entry.partition in partitions) and not visit(entry):
                        return False
                found.entries += len(page)
                advance(len(page))
        return True

    found.complete = all(shards_of(client, crawl).each(scan))
    return found


def kept(
    client: Any,
    crawl: str,
    where: str,
    limit: int = 100,
    *,
    partitions: Collection[bytes] | None = None,
    most_bytes: float = math.inf,
) -> list[Entry]:
    """Return at most *limit* failed requests or dead letters of the run, newest first; blocking.

    The failed requests are the newest ones. Dead letters have no stored order: if there are more than
    *limit*, the result has an arbitrary part of them.

    Args:
        where: `"failed"` or `"dead"`.
        partitions: return only requests of these partitions; None: of all partitions.
        most_bytes: read about this many bytes at most, but at least one part in each shard.
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    shards = shards_of(client, crawl)

    def read(client: Any, shard: keys.Shard) -> list[Entry]:
        # A dict drops repeats: new failures shift the list, so that some records are read twice.
        found, left = dict[Entry, None](), most_bytes / len(shards)
        for page in drained(Reader(client, shard).entries(where)):
            found |= dict.fromkeys(
                each for each in page if partitions is None or each.partition in partitions
            )
            left -= sum(len(each.payload) + len(each.reason) for each in page)
            if len(found) >= limit or left <= 0:
                break
        return list(found)

    parts = list(shards.each(read))
    found = [each for part in parts for each in part]
    # Failed requests of a single shard keep the order of their list, which does not depend on a clock.
    if where == DEAD or sum(map(bool, parts)) > 1:
        found.sort(key=lambda each: -each.at_ms)
    return found[: max(0, limit)]


def failed(client: Any, crawl: str, limit: int = 100) -> list[Entry]:
    """Return the newest failed requests of the run; see `kept`."""
    return kept(client, crawl, FAILED, limit)


def dead(client: Any, crawl: str, limit: int = 100) -> list[Entry]:
    """Return dead letters of the run; see `kept`."""
    return kept(client, crawl, DEAD, limit)


def kept_one(client: Any, crawl: str, where: str, entry_id: bytes) -> Entry | None:
    """Return the failed request or dead letter with this id, or None if no record of it is kept; blocking.

    Args:
        where: see `kept`.
    Raises:
        redis.exceptions.RedisError: no reply.
    """

    def read(client: Any, shard: keys.Shard) -> Entry | None:
        if where == DEAD:
            record = client.hget(keys.prefix(shard) + "dead", entry_id)
            return None if record is None else records.dead(entry_id, record)
        pages = drained(Reader(client, shard).entries(where))
        return next((each for page in pages for each in page if each.entry_id == entry_id), None)

    return next(filter(None, shards_of(client, crawl).each(read)), None)
