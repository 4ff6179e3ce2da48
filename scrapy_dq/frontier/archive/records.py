"""Stored records <-> the items of parts: all layouts that an export reads, and an import writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.parts import rank_bytes, sequence_of, turn_bytes
from scrapy_dq.frontier.keys import rank_of
from scrapy_dq.frontier.model import Order, clamped

_DEFERRED = b"\2"
"""Begins the partition of a lease whose work is done. Source: lua/lib/politeness.lua"""
_PLAIN = (Order.FIFO, Order.LIFO)
"""Orders in which all entries have one rank."""

Item = tuple[Any, ...]


def item_of(kind: str, member: bytes, stored: Any, offset: int) -> Item:
    """Return the item of a member of a hash or a sorted set.

    Args:
        kind: one that has a key of its own, without those of TOKENS.
        stored: its value, or its score.
        offset: what to subtract from a time, in ms.
    """
    return _READERS[kind](member, stored, offset)


def _limits(partition: bytes, stored: Any, offset: int) -> Item:
    return partition, stored.decode("ascii")


def _until(partition: bytes, stored: Any, offset: int) -> Item:
    return int(stored) - offset, partition


def _come_back(member: bytes, stored: Any, offset: int) -> Item:
    partition, _, rest = member.partition(b"\0")
    return partition, rank_of(rest[:8]), sequence_of(rest[8:16]), rest[16:28], rest[28] % 128, rest[29:]


def _delayed(member: bytes, stored: Any, offset: int) -> Item:
    partition, _, payload = member[20:].partition(b"\0")
    return int(stored) - offset, rank_of(member[12:20]), partition, member[:12], payload


def _dead(entry_id: bytes, stored: Any, offset: int) -> Item:
    return (entry_id, *failed_item(stored))


def _as_it_is(name: bytes, stored: Any, offset: int) -> Item:
    return name, stored


_READERS: dict[str, Callable[[bytes, Any, int], Item]] = {
    parts.LIMITS: _limits, parts.BLOCKED: _until, parts.EARLIEST: _until, parts.RETURNED: _come_back,
    parts.QUARANTINE: _come_back, parts.DELAYED: _delayed, parts.DEAD: _dead,
    parts.SPENT: _as_it_is, parts.STATS: _as_it_is,
}  # fmt: skip


def failed_item(record: bytes) -> Item:
    """Return the fields of the record of a failed or dead entry, its place as rank and sequence."""
    *first, at, worker_id, attempts, place, payload, partition = msgpack.unpackb(record, raw=True)
    rank, sequence = rank_of(place[:8]), sequence_of(place[8:])
    return (*first, int(at), worker_id, int(attempts), rank, sequence, payload, partition)


def waiting_item(rank: int, element: bytes) -> Item:
    """Return the item of an element of a list."""
    return rank, sequence_of(element[:8]), element[8:20], element[20:]


def is_quarantined(lease: bytes) -> bool:
    return lease[8] >= 128


def leased_item(entry_id: bytes, lease: bytes) -> Item:
    """Return the item of a lease, as of one that has come back. One whose work is done is done once more."""
    partition, _, element = lease[9:].partition(b"\0")
    return (
        partition.removeprefix(_DEFERRED), rank_of(lease[:8]), sequence_of(element[:8]), entry_id,
        lease[8] % 128, element[20:],
    )  # fmt: skip


class Writer:
    """Makes the records of a new crawl, in its order."""

    def __init__(self, before: Order, order: Order, priority_of: Callable[[bytes], int]) -> None:
        """
        Args:
            before: the order of the old crawl.
            priority_of: returns the priority of a payload, if that order knew none.
        """
        self._before, self._order, self._priority_of = before, order, priority_of
        self._writers: dict[str, Callable[..., list[Any]]] = {
            parts.LIMITS: self._limits, parts.RETURNED: self._come_back, parts.DELAYED: self._delayed,
            parts.QUARANTINE: self._come_back, parts.DEAD: self._dead,
            **dict.fromkeys((parts.BLOCKED, parts.EARLIEST, parts.SPENT, parts.STATS), lambda *item: [*item]),
        }  # fmt: skip

    def stored(self, kind: str, item: Item) -> list[Any]:
        """Return what transitions/load.lua takes for an item of a kind that `item_of` reads."""
        return self._writers[kind](*item)

    def element(
        self, rank: int, sequence: int, entry_id: bytes, payload: bytes
    ) -> tuple[int, bytes]:  # fmt: skip
        """Return the rank of the list in which an entry waits, and the element there."""
        rank = self._rank(rank, payload)
        return rank, turn_bytes(self._order, rank, sequence) + entry_id + payload

    def failed(self, entry_id: bytes, label: bytes, *rest: Any) -> bytes:
        """Return the record of a failed request."""
        return self._packed(entry_id, [entry_id, label], *rest)

    def _rank(self, rank: int, payload: bytes) -> int:
        if self._order in _PLAIN:
            return 0
        return -clamped(self._priority_of(payload)) * 4 if self._before in _PLAIN else rank

    def _place(self, rank: int, sequence: int, payload: bytes) -> bytes:
        rank = self._rank(rank, payload)
        return rank_bytes(rank) + turn_bytes(self._order, rank, sequence)

    def _limits(self, partition: bytes, limits: str) -> list[Any]:
        return [partition, limits.encode()]

    def _come_back(
        self, partition: bytes, rank: int, sequence: int, entry_id: bytes, attempts: int, payload: bytes
    ) -> list[Any]:
        place = self._place(rank, sequence, payload)
        return [partition + b"\0" + place + entry_id + bytes((attempts,)) + payload]

    def _delayed(self, due: int, rank: int, partition: bytes, entry_id: bytes, payload: bytes) -> list[Any]:
        rank_and_partition = rank_bytes(self._rank(rank, payload)) + partition
        return [due, entry_id + rank_and_partition + b"\0" + payload]

    def _dead(self, entry_id: bytes, *rest: Any) -> list[Any]:
        return [entry_id, self._packed(entry_id, [], *rest)]

    def _packed(self, entry_id: bytes, first: list[bytes], *rest: Any) -> bytes:
        *middle, rank, sequence, payload, partition = rest
        place = self._place(rank, sequence, payload)
        packed: bytes = msgpack.packb([*first, *middle, place, payload, partition], use_bin_type=False)
        return packed
