"""All entries of a crawl, wherever they are, decoded and in parts; no key is read as a whole; blocking."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.read_pace import ReadPace
from scrapy_dq.frontier.admin.shards import shards_of

IN_FLIGHT, RETURNED, QUARANTINE, WAITING = "in flight", "returned", "quarantine", "waiting"
DECLINED = "declined"
DELAYED, FAILED, DEAD = "delayed", "failed", "dead"
PLACES = (IN_FLIGHT, RETURNED, QUARANTINE, DECLINED, WAITING, DELAYED, FAILED, DEAD)
"""Where an entry can be, in the order of looking."""
_PART = 500
_DEFERRED = b"\2"
"""Begins the partition of a lease whose work is done. Source: lua/lib/politeness.lua"""
_NEWEST_FIRST = 2**51
"""A turn from here on is a large number minus a sequence. Source: lua/lib/entry.lua"""


@dataclass(frozen=True)
class Entry:
    """A stored request, and what is known of it: of one that waits, that failed, of a dead letter."""

    where: str
    """One of PLACES."""
    entry_id: bytes
    partition: bytes
    payload: bytes
    attempts: int = 0
    ahead: int | None = None
    """WAITING: how many of its priority and partition are served before it."""
    wait_s: float | None = None
    """DELAYED: seconds until it is due."""
    worker_id: str = ""
    """IN_FLIGHT: whose lease it is; FAILED, DEAD: whose it was; empty: no worker has leased it."""
    done: bool = False
    """IN_FLIGHT: its work is done, and what it led to in other shards is not certain yet."""
    reason: str = ""
    at: float = 0.0
    """FAILED, DEAD: since when, in seconds since 1970 by the clock of Redis."""
    label: str = ""
    """FAILED: its URL."""


Failed = Dead = Entry


@dataclass
class Looked:
    """How far a search has come."""

    entries: int = 0
    """Number of entries that were read."""
    complete: bool = True
    """All that there are, in the shards that answer."""


class _Enough(Exception):
    """So many were looked at as were asked for."""


def look_at_entries(
    client: Any,
    crawl: str,
    see: Callable[[Entry], bool],
    *,
    partitions: Collection[bytes] | None = None,
    where: tuple[str, ...] = PLACES,
    most: int = 100_000,
    looked: Callable[[int], object] = lambda number: None,
) -> Looked:
    """Pass entries to *see* until it returns False, or *most* were read, or there are no more.

    What others do meanwhile may hide an entry that moves, or show it twice.

    Args:
        client: a `redis` client that decodes nothing, or Shards.
        partitions: pass only entries of these; None: of all.
        looked: called now and then with the number of further entries that were read.
    Raises:
        redis.exceptions.RedisError: no reply of home.
    """
    shards, found = shards_of(client, crawl), Looked()

    def count(number: int) -> None:
        found.entries += number
        looked(number)

    def look(client: Any, shard: keys.Shard) -> None:
        reader = _Reader(client, shard, partitions)
        for each in where:
            for entries in reader.read(each):
                if entries and found.entries >= most:
                    raise _Enough
                for entry in entries:
                    if (partitions is None or entry.partition in partitions) and not see(entry):
                        raise _Enough
                count(len(entries))

    try:
        for _ in shards.each(look):
            pass
    except _Enough:
        found.complete = False
    return found


def failed(
    client: Any,
    crawl: str,
    limit: int = 100,
    *,
    partitions: Collection[bytes] | None = None,
    most_bytes: float = math.inf,
) -> list[Entry]:
    """Return the newest *limit* failed requests of the run, newest first; blocking.

    Args:
        partitions: read only these; None: all.
        most_bytes: read about so many, and at least one part of them in each shard.
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    return _ended(client, crawl, FAILED, limit, partitions, most_bytes)


def dead(
    client: Any,
    crawl: str,
    limit: int = 100,
    *,
    partitions: Collection[bytes] | None = None,
    most_bytes: float = math.inf,
) -> list[Entry]:
    """Return *limit* dead letters of the run; blocking.

    They are stored in no order. Those that are returned are sorted, newest first.

    Args:
        partitions, most_bytes: as for `failed`.
    Raises:
        redis.exceptions.RedisError: no reply.
    """
    return _ended(client, crawl, DEAD, limit, partitions, most_bytes)


def _ended(
    client: Any, crawl: str, where: str, limit: int, partitions: Collection[bytes] | None, most_bytes: float
) -> list[Entry]:
    shards = shards_of(client, crawl)

    def read(client: Any, shard: keys.Shard) -> list[Entry]:
        # Each once: new failures shift the list, so that some are read twice.
        found, left = dict[Entry, None](), most_bytes / len(shards)
        for page in _Reader(client, shard, partitions).read(where):
            found |= dict.fromkeys(
                each for each in page if partitions is None or each.partition in partitions
            )
            left -= sum(len(each.payload) + len(each.reason) for each in page)
            if len(found) >= limit or left <= 0:
                break
        return list(found)

    parts = list(shards.each(read))
    found = [each for part in parts for each in part]
    if (
        where == DEAD or sum(map(bool, parts)) > 1
    ):  # one list has its own order, which does not depend on a clock
        found.sort(key=lambda each: -each.at)
    return found[: max(0, limit)]


def ended_one(client: Any, crawl: str, where: str, entry_id: bytes) -> Entry | None:
    """Return the failed request or dead letter with this id, None if it is not among those kept; blocking.

    Args:
        where: FAILED or DEAD.
    Raises:
        redis.exceptions.RedisError: no reply.
    """

    def read(client: Any, shard: keys.Shard) -> Entry | None:
        if where == DEAD:
            record = client.hget(keys.prefix(shard) + "dead", entry_id)
            return None if record is None else parse_dead(entry_id, record)
        pages = _Reader(client, shard, None).read(where)
        return next((each for page in pages for each in page if each.entry_id == entry_id), None)

    return next(filter(None, shards_of(client, crawl).each(read)), None)


def parse_failed(record: bytes) -> Entry:
    """Decode a record of lua/moves/endings.lua."""
    entry_id, label, *rest = msgpack.unpackb(record, raw=True)
    return _ended_entry(FAILED, entry_id, rest, label)


def parse_dead(entry_id: bytes, record: bytes) -> Entry:
    """Decode a record of lua/moves/endings.lua or lua/moves/put.lua."""
    return _ended_entry(DEAD, entry_id, msgpack.unpackb(record, raw=True))


def _ended_entry(where: str, entry_id: bytes, fields: Iterable[Any], label: bytes = b"") -> Entry:
    reason, at_ms, worker_id, attempts, _, payload, partition = fields
    worker, why, url = (text.decode("utf-8", "replace") for text in (worker_id, reason, label))
    return Entry(
        where, entry_id, partition, payload, int(attempts), worker_id=worker, reason=why, at=at_ms / 1000,
        label=url,
    )  # fmt: skip


class _Reader:
    """Of one shard."""

    def __init__(self, client: Any, shard: keys.Shard, partitions: Collection[bytes] | None) -> None:
        self._client, self._prefix, self._partitions = client, keys.prefix(shard), partitions

    def read(self, where: str) -> Iterator[list[Entry]]:
        """Yield the entries of one of PLACES, in parts; only `waiting` leaves out other partitions."""
        if where in (RETURNED, QUARANTINE, DECLINED):
            return self._come_back(where)
        readers = {
            IN_FLIGHT: self._in_flight, WAITING: self._waiting, DELAYED: self._delayed,
            FAILED: self._failed, DEAD: self._dead,
        }  # fmt: skip
        return readers[where]()

    def _in_flight(self) -> Iterator[list[Entry]]:
        for worker_id in self._client.smembers(self._prefix + "members"):
            worker = worker_id.decode("utf-8", "replace")
            name = self._prefix.encode() + b"in-flight:" + worker_id
            for records in self._hash(name):
                yield [_leased(worker, *each) for each in records]

    def _waiting(self) -> Iterator[list[Entry]]:
        for partition, band in self._lists():
            name = b"%sbacklog:%d:%s" % (self._prefix.encode(), keys.rank_of(band), partition)
            length = self._client.llen(name)
            at, pace = 0, ReadPace(_PART)
            while at < length and (elements := self._client.lrange(name, at, at + pace.count - 1)):
                pace.saw(elements)
                yield [
                    Entry(WAITING, each[8:20], partition, each[20:], ahead=_ahead(each, i, length))
                    for i, each in enumerate(elements, at)
                ]
                at += len(elements)

    def _delayed(self) -> Iterator[list[Entry]]:
        now_ms = self._now_ms()
        for members in self._scores(b"delayed"):
            found = []
            for member, due_ms in members:
                partition, _, payload = member[20:].partition(b"\0")
                wait_s = max(0.0, due_ms - now_ms) / 1000
                found.append(Entry(DELAYED, member[:12], partition, payload, wait_s=wait_s))
            yield found

    def _failed(self) -> Iterator[list[Entry]]:
        at, pace, name = 0, ReadPace(_PART), self._prefix + "failed"
        while records := self._client.lrange(name, at, at + pace.count - 1):
            pace.saw(records)
            yield [parse_failed(each) for each in records if each]  # empty: left by a retry that was stopped
            at += len(records)

    def _dead(self) -> Iterator[list[Entry]]:
        for records in self._hash(self._prefix.encode() + b"dead"):
            yield [parse_dead(*each) for each in records]

    def _now_ms(self) -> float:
        """Return the time by which entries are due. Source: lua/lib/state.lua, now_ms"""
        seconds, micros = self._client.time()
        counts = (self._client.hget(self._prefix + "meta", "counts") or b"").split()
        offset = int(counts[7]) if counts else 0
        return seconds * 1000 + micros / 1000 + offset  # type: ignore[no-any-return]

    def _come_back(self, where: str) -> Iterator[list[Entry]]:
        for members in self._scores(where.encode()):
            found = []
            for member, _ in members:
                partition, _, rest = member.partition(b"\0")
                found.append(Entry(where, rest[16:28], partition, rest[29:], rest[28] % 128))
            yield found

    def _lists(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield partition and band of each list of the backlog."""
        best, more = self._prefix + "bands", self._prefix + "more_bands"
        for partition in self._partitions or ():
            if (band := self._client.hget(best, partition)) is not None:
                yield partition, band
            for member in self._client.zrangebylex(more, b"[%s\0" % partition, b"(%s\1" % partition):
                yield partition, member[len(partition) + 1 :]
        if self._partitions is not None:
            return
        for records in self._hash(best.encode()):
            yield from records
        for members in self._scores(b"more_bands"):
            for member, _ in members:
                partition, _, band = member.partition(b"\0")
                yield partition, band

    def _hash(self, name: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        cursor, pace = -1, ReadPace(_PART)
        while cursor:
            cursor, read = self._client.hscan(name, max(0, cursor), count=pace.count)
            pace.saw(read.values())
            yield list(read.items())

    def _scores(self, label: bytes) -> Iterator[list[tuple[bytes, float]]]:
        cursor, pace = -1, ReadPace(_PART)
        while cursor:
            name = self._prefix.encode() + label
            cursor, read = self._client.zscan(name, max(0, cursor), count=pace.count)
            pace.saw([member for member, _ in read])
            yield read


def _leased(worker_id: str, entry_id: bytes, record: bytes) -> Entry:
    partition, _, element = record[9:].partition(b"\0")
    done = partition.startswith(_DEFERRED)
    return Entry(
        IN_FLIGHT, entry_id, partition[done:], element[20:], record[8] % 128, worker_id=worker_id, done=done
    )  # fmt: skip


def _ahead(element: bytes, at: int, length: int) -> int:
    newest_first = int.from_bytes(element[:8], "big") >= _NEWEST_FIRST
    return length - 1 - at if newest_first else at
