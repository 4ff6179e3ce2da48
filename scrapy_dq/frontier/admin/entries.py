"""All entries of a crawl, one after the other, for a search; no key is read as a whole; blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.overview import parse_dead, parse_failed
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


class Entry(NamedTuple):
    """One of them; what is not known there is empty."""

    where: str
    """One of PLACES."""
    shard: int
    entry_id: bytes
    partition: bytes
    payload: bytes
    attempts: int = 0
    ahead: int | None = None
    """WAITING: how many of its priority and partition are served before it."""
    wait_s: float | None = None
    """DELAYED: seconds until it is due."""
    worker_id: str = ""
    """IN_FLIGHT: whose lease it is; FAILED, DEAD: whose it was."""
    done: bool = False
    """IN_FLIGHT: its work is done, and what it led to in other shards is not certain yet."""
    reason: str = ""
    at: float = 0.0
    """FAILED, DEAD: since when, in seconds since 1970."""


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
    partition: bytes | None = None,
    where: tuple[str, ...] = PLACES,
    most: int = 100_000,
    looked: Callable[[int], object] = lambda number: None,
) -> Looked:
    """Pass entries to *see* until it returns False, or *most* were read, or there are no more.

    What others do meanwhile may hide an entry that moves, or show it twice.

    Args:
        client: a `redis` client that decodes nothing, or Shards.
        partition: only entries of this one; None: of all.
        looked: called now and then with the number of further entries that were read.
    Raises:
        redis.exceptions.RedisError: no reply of home.
    """
    shards, found = shards_of(client, crawl), Looked()

    def count(number: int) -> None:
        found.entries += number
        looked(number)

    def look(client: Any, shard: keys.Shard) -> None:
        reader = _Reader(client, shard, partition)
        for each in where:
            for entries in getattr(reader, each.replace(" ", "_"))():
                if entries and found.entries >= most:
                    raise _Enough
                for entry in entries:
                    if partition in (None, entry.partition) and not see(entry):
                        raise _Enough
                count(len(entries))

    try:
        for _ in shards.each(look):
            pass
    except _Enough:
        found.complete = False
    return found


class _Reader:
    """Of one shard."""

    def __init__(self, client: Any, shard: keys.Shard, partition: bytes | None) -> None:
        self._client, self._shard, self._prefix = client, shard.number, keys.prefix(shard)
        self._partition = partition

    def in_flight(self) -> Iterator[list[Entry]]:
        for worker_id in self._client.smembers(self._prefix + "members"):
            worker = worker_id.decode("utf-8", "replace")
            name = self._prefix.encode() + b"in-flight:" + worker_id
            for records in self._hash(name):
                yield [_leased(self._shard, worker, *each) for each in records]

    def returned(self) -> Iterator[list[Entry]]:
        return self._come_back(RETURNED)

    def quarantine(self) -> Iterator[list[Entry]]:
        return self._come_back(QUARANTINE)

    def declined(self) -> Iterator[list[Entry]]:
        return self._come_back(DECLINED)

    def waiting(self) -> Iterator[list[Entry]]:
        for partition, band in self._lists():
            name = b"%sbacklog:%d:%s" % (self._prefix.encode(), keys.rank_of(band), partition)
            length = self._client.llen(name)
            at, pace = 0, ReadPace(_PART)
            while at < length and (elements := self._client.lrange(name, at, at + pace.count - 1)):
                pace.saw(elements)
                found = []
                for i, each in enumerate(elements, at):
                    entry = Entry(WAITING, self._shard, each[8:20], partition, each[20:])
                    found.append(entry._replace(ahead=_ahead(each, i, length)))
                yield found
                at += len(elements)

    def delayed(self) -> Iterator[list[Entry]]:
        now_ms = self._now_ms()
        for members in self._scores(b"delayed"):
            found = []
            for member, due_ms in members:
                partition, _, payload = member[20:].partition(b"\0")
                wait_s = max(0.0, due_ms - now_ms) / 1000
                found.append(Entry(DELAYED, self._shard, member[:12], partition, payload, wait_s=wait_s))
            yield found

    def failed(self) -> Iterator[list[Entry]]:
        at, pace, name = 0, ReadPace(_PART), self._prefix + "failed"
        while records := self._client.lrange(name, at, at + pace.count - 1):
            pace.saw(records)
            yield [self._ended(FAILED, parse_failed(record)) for record in records if record]
            at += len(records)

    def dead(self) -> Iterator[list[Entry]]:
        for records in self._hash(self._prefix.encode() + b"dead"):
            yield [self._ended(DEAD, parse_dead(*each)) for each in records]

    def _now_ms(self) -> float:
        """Return the time by which entries are due. Source: lua/lib/state.lua, now_ms"""
        seconds, micros = self._client.time()
        counts = (self._client.hget(self._prefix + "meta", "counts") or b"").split()
        offset = int(counts[7]) if counts else 0
        return seconds * 1000 + micros / 1000 + offset  # type: ignore[no-any-return]

    def _ended(self, where: str, of: Any) -> Entry:
        return Entry(
            where, self._shard, of.entry_id, of.partition, of.payload, of.attempts,
            worker_id=of.worker_id, reason=of.reason, at=of.at,
        )  # fmt: skip

    def _come_back(self, where: str) -> Iterator[list[Entry]]:
        for members in self._scores(where.encode()):
            found = []
            for member, _ in members:
                partition, _, rest = member.partition(b"\0")
                found.append(Entry(where, self._shard, rest[16:28], partition, rest[29:], rest[28] % 128))
            yield found

    def _lists(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield partition and band of each list of the backlog."""
        best, more = self._prefix + "bands", self._prefix + "more_bands"
        if self._partition is not None:
            if (band := self._client.hget(best, self._partition)) is not None:
                yield self._partition, band
            first, last = b"[%s\0" % self._partition, b"(%s\1" % self._partition
            for member in self._client.zrangebylex(more, first, last):
                yield self._partition, member[len(self._partition) + 1 :]
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


def _leased(shard: int, worker_id: str, entry_id: bytes, record: bytes) -> Entry:
    partition, _, element = record[9:].partition(b"\0")
    done = partition.startswith(_DEFERRED)
    return Entry(
        IN_FLIGHT, shard, entry_id, partition[done:], element[20:], record[8] % 128,
        worker_id=worker_id, done=done,
    )  # fmt: skip


def _ahead(element: bytes, at: int, length: int) -> int:
    newest_first = int.from_bytes(element[:8], "big") >= _NEWEST_FIRST
    return length - 1 - at if newest_first else at
