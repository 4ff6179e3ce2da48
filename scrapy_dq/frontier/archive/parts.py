"""What a crawl consists of, in terms that outlive the layout of its keys.

A crawl is a `Header` and any number of `Part`s. The items of a part are tuples; times are ms since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scrapy_dq.frontier.model import Order, Seen

SEEN, SEEDS, ADMITTED, ADOPTED = "seen", "seeds", "admitted", "adopted"
"""(token,). SEEN of kind expiring: (time, token); of kind compact: (first bucket, member)."""
LIMITS, BLOCKED = "limits", "blocked"
"""(partition, "<delay_ms>:<concurrency>"); (until, partition)."""
WAITING = "waiting"
"""(rank, sequence, entry_id, payload), of the partition that the part names; the oldest first."""
RETURNED, QUARANTINE = "returned", "quarantine"
"""(partition, rank, sequence, entry_id, attempts, payload)."""
DELAYED = "delayed"
"""(due, rank, partition, entry_id, payload)."""
FAILED = "failed"
"""(entry_id, label, reason, at, worker_id, attempts, rank, sequence, payload, partition); newest first."""
DEAD = "dead"
"""(entry_id, reason, at, worker_id, attempts, rank, sequence, payload, partition)."""
TOKENS = (SEEN, SEEDS, ADMITTED, ADOPTED)
ENTRIES = (WAITING, RETURNED, QUARANTINE, DELAYED, FAILED, DEAD)
KINDS = (*TOKENS, LIMITS, BLOCKED, *ENTRIES)
"""The kinds in an export, in the order of reading and storing."""
SPENT, EARLIEST = "spent", "earliest"
"""(partition, "<run or day> <count>"); (time, partition). These and the next ones only move."""
STATS = "stats"
"""(name, value)."""
HISTORY = ("samples", "minutes", "journal")
"""(element,), the oldest first."""
MOVED = (*TOKENS, LIMITS, BLOCKED, SPENT, EARLIEST, *ENTRIES, STATS, *HISTORY)
"""The kinds in a move, in the order of reading and storing."""
KEPT = (
    "spider_args", "run_name", "keep_seen", "starts", "events", "limits_set", "began", "crawled",
)  # fmt: skip
"""Fields of home's meta that go with the crawl as they are."""
KEPT_BY_MOVE = (*KEPT, "phase", "hold", "cleared", "seen_for", "ended", "shared", "sampled", "noticed")
"""The same, of a move: the run goes on, also one that has finished or is on hold."""
_BIAS = 2**52
_NEWEST_FIRST = 2**51
"""A turn from here on is _BIAS minus a sequence. Source: lua/lib/entry.lua"""


class Part(NamedTuple):
    """Some of what one shard holds, of one kind."""

    kind: str
    """One of KINDS."""
    shard: int
    items: list[tuple[Any, ...]]
    partition: bytes = b""
    """Of WAITING."""


@dataclass(frozen=True)
class Header:
    """What is true of the whole crawl."""

    id: str
    """Random, of this export: 32 digits."""
    crawl: str
    at_ms: int
    order: Order
    seen: Seen
    shards: int
    partition_by: str
    fingerprinter: str
    spider: str
    run: int
    sequence: int
    done: int
    failed: int
    """All that have failed in this run; the records of some are kept."""
    gone: int
    seen_since_ms: int
    """Fingerprints of before this time count as new; 0: none does."""
    entries: int
    """How many there are in all ENTRIES."""
    tokens: int
    """How many there are in SEEN, about."""
    kept: dict[str, bytes] = field(default_factory=dict)
    """KEPT, or KEPT_BY_MOVE, as far as they are set."""


def sequence_of(turn: bytes) -> int:
    """Return the sequence in the turn of a stored entry."""
    number = int.from_bytes(turn, "big")
    return max(0, _BIAS - number if number >= _NEWEST_FIRST else number)


def rank_bytes(rank: int) -> bytes:
    return (rank + _BIAS).to_bytes(8, "big")


def turn_bytes(order: Order, rank: int, sequence: int) -> bytes:
    """Return the turn of an entry. Source: lua/orders"""
    newest_first = {
        Order.FIFO: False, Order.LIFO: True, Order.PRIORITY_FIFO: rank % 4 == 2,
        Order.PRIORITY_LIFO: rank % 4 != 1,
    }[order]  # fmt: skip
    return (_BIAS - sequence if newest_first else sequence).to_bytes(8, "big")
