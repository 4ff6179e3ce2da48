"""Converts stored entries to `Entry` and back. No other Python file knows these bytes.

| where | key | stored | written by |
|---|---|---|---|
| waiting | `backlog:<rank>:<partition>` | turn(8) id(12) payload | moves/put.lua |
| returned | `returned` | partition 0 rank(8) turn(8) id(12) attempts(1) payload | moves/endings.lua |
| quarantine | `quarantine` | as in `returned` | transitions/drain.lua |
| declined | `declined` | as in `returned`; attempts + 128 for a suspect | moves/endings.lua |
| delayed | `delayed` | id(12) rank(8) partition 0 payload; score: when it is due | moves/put.lua |
| in flight | `in-flight:<worker>` | rank(8) flags(1) partition 0 turn(8) id(12) payload | moves/lease.lua |
| failed | `failed` | msgpack: id, URL, and the fields of a dead letter | moves/endings.lua |
| dead | `dead` | msgpack: reason, at, worker, attempts, place, payload, partition | moves/endings.lua |

The numbers in parentheses are sizes in bytes. A turn is made from the entry's sequence number, so that the
lowest turn is served first. A place is rank(8) turn(8). flags(1) is the number of attempts, plus 128 for a
suspect. An import writes the same forms.
Source: lua/lib/entry.lua
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from scrapy_dq.frontier.keys import rank_of
from scrapy_dq.frontier.model import Order

IN_FLIGHT, RETURNED, QUARANTINE, DECLINED = "in flight", "returned", "quarantine", "declined"
WAITING, DELAYED, FAILED, DEAD = "waiting", "delayed", "failed", "dead"
PLACES = (IN_FLIGHT, RETURNED, QUARANTINE, DECLINED, WAITING, DELAYED, FAILED, DEAD)
"""Where an entry can be, in the order in which a command searches for it."""
CLAIMED = b"\1"
"""The partition of the entries that Redis makes from start payloads. Source: lua/lib/state.lua"""
_DEFERRED = b"\2"
"""First byte of the partition in the record of a lease whose work is done, but whose end is deferred.

Source: lua/lib/politeness.lua
"""
_BIAS = 2**52
_NEWEST_FIRST = 2**51
"""A turn that is not below this number is _BIAS minus a sequence; a smaller turn is a sequence."""
_SUSPECT = 128
"""Added to the attempts of an entry that comes from quarantine."""


class Entry(NamedTuple):
    """A stored request and its data, in any state."""

    where: str
    """One of PLACES; in a result of `admin.backlog.upcoming`: rotation, suspects, resting, saturated or
    delayed."""
    entry_id: bytes
    partition: bytes
    payload: bytes
    attempts: int = 0
    rank: int = 0
    sequence: int = 0
    """The number of the entry in the order in which the shard stored its entries; 0: none, or not read."""
    due_ms: int = 0
    """DELAYED: when the entry is due, in ms since 1970 by the clock of Redis."""
    at_ms: int = 0
    """FAILED, DEAD: when the work ended, in ms since 1970 by the clock of Redis."""
    worker_id: str = ""
    """IN_FLIGHT: the owner of the lease; FAILED, DEAD: the last owner; empty: the entry was never leased."""
    reason: str = ""
    label: str = ""
    """FAILED: the URL of the request."""
    suspect: bool = False
    """IN_FLIGHT: the entry was leased from quarantine."""
    done: bool = False
    """IN_FLIGHT: the work is done. The lease ends when the puts of this request in other shards cannot be
    lost any more."""
    ahead: int | None = None
    """WAITING: how many entries of the same rank and partition are served before this entry."""
    wait_s: float | None = None
    """Seconds until the entry is due, or may be leased; None: unknown."""

    @property
    def at(self) -> float:
        """FAILED, DEAD: when the work ended, in seconds since 1970 by the clock of Redis."""
        return self.at_ms / 1000


def waiting(element: bytes, rank: int, partition: bytes) -> Entry:
    """Decode an element of the list of a rank and a partition."""
    return Entry(WAITING, element[8:20], partition, element[20:], 0, rank, _sequence_of(element[:8]))


def is_newest_first(element: bytes) -> bool:
    """Tell whether Redis serves the list of *element* from its tail."""
    return int.from_bytes(element[:8], "big") >= _NEWEST_FIRST


def split_lease(record: bytes) -> tuple[bytes, int, bool, bytes, bytes, bytes]:
    """Return place, attempts, whether the entry is a suspect, partition, entry id and payload of a lease."""
    end, flags = record.index(0, 9), record[8]
    place = record[:8] + record[end + 1 : end + 9]
    partition, entry_id, payload = record[9:end], record[end + 9 : end + 21], record[end + 21 :]
    return place, flags % _SUSPECT, flags >= _SUSPECT, partition, entry_id, payload


def leased(record: bytes, worker_id: bytes) -> Entry:
    """Decode a lease of a worker."""
    place, attempts, suspect, partition, entry_id, payload = split_lease(record)
    done = partition.startswith(_DEFERRED)
    return Entry(
        IN_FLIGHT, entry_id, partition[done:], payload, attempts, *_rank_and_sequence(place),
        worker_id=_text(worker_id), suspect=suspect, done=done,
    )  # fmt: skip


def member(where: str, stored: bytes, due_ms: int = 0) -> Entry:
    """Decode a member of RETURNED, QUARANTINE, DECLINED or DELAYED."""
    if where == DELAYED:
        partition, _, payload = stored[20:].partition(b"\0")
        return Entry(where, stored[:12], partition, payload, rank=rank_of(stored[12:20]), due_ms=due_ms)
    partition, _, rest = stored.partition(b"\0")
    place = _rank_and_sequence(rest[:16])
    return Entry(where, rest[16:28], partition, rest[29:], rest[28] % _SUSPECT, *place)


def failed(record: bytes) -> Entry:
    entry_id, label, *rest = msgpack.unpackb(record, raw=True)
    return _ended(FAILED, entry_id, rest, label)


def dead(entry_id: bytes, record: bytes) -> Entry:
    return _ended(DEAD, entry_id, msgpack.unpackb(record, raw=True))


def _ended(where: str, entry_id: bytes, fields: Sequence[Any], label: bytes = b"") -> Entry:
    reason, at_ms, worker_id, attempts, place, payload, partition = fields
    return Entry(
        where, entry_id, partition, payload, int(attempts), *_rank_and_sequence(place), at_ms=int(at_ms),
        worker_id=_text(worker_id), reason=_text(reason), label=_text(label),
    )  # fmt: skip


def stored(where: str, entry: Entry, order: Order) -> list[Any]:
    """Return an entry in the form in which transitions/load.lua stores it.

    Args:
        where: one of PLACES, except IN_FLIGHT and DECLINED.
        order: the order of the crawl.
    """
    turn = _turn_bytes(order, entry.rank, entry.sequence)
    if where == WAITING:
        return [turn + entry.entry_id + entry.payload]
    rank = (entry.rank + _BIAS).to_bytes(8, "big")
    if where == DELAYED:
        return [entry.due_ms, entry.entry_id + rank + entry.partition + b"\0" + entry.payload]
    if where in (RETURNED, QUARANTINE):
        attempts = bytes((entry.attempts,))
        return [0, entry.partition + b"\0" + rank + turn + entry.entry_id + attempts + entry.payload]
    worker_id, reason, label = map(_bytes, (entry.worker_id, entry.reason, entry.label))
    fields = [reason, entry.at_ms, worker_id, entry.attempts, rank + turn, entry.payload, entry.partition]
    if where == FAILED:
        return [msgpack.packb([entry.entry_id, label, *fields], use_bin_type=False)]
    return [entry.entry_id, msgpack.packb(fields, use_bin_type=False)]


def _rank_and_sequence(place: bytes) -> tuple[int, int]:
    return rank_of(place[:8]), _sequence_of(place[8:])


def _sequence_of(turn: bytes) -> int:
    number = int.from_bytes(turn, "big")
    return max(0, _BIAS - number if number >= _NEWEST_FIRST else number)


def _turn_bytes(order: Order, rank: int, sequence: int) -> bytes:
    """Return the turn of an entry."""
    return (_BIAS - sequence if order.newest_first(rank) else sequence).to_bytes(8, "big")


def _text(stored: bytes) -> str:
    """Decode a text; bytes that are not UTF-8 survive a round trip."""
    return stored.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
