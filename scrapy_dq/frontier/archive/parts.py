"""The parts of a crawl, in a form that does not depend on the layout of its keys.

A crawl is a `Header` and any number of `Part`s. The items of a part are entries or tuples; times are ms since
1970.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Order, Seen
from scrapy_dq.frontier.records import DEAD, DELAYED, FAILED, QUARANTINE, RETURNED, WAITING, Entry

SEEN, SEEDS, ADMITTED, ADOPTED = "seen", "seeds", "admitted", "adopted"
"""Items: (token,). SEEN of kind expiring: (time, token). SEEN of kind compact: (n, member), in which n is the
number of the member's first bucket, from 0 to 1,023 (see seen_compact.lua)."""
LIMITS, BLOCKED = "limits", "blocked"
"""Items of LIMITS: (partition, b"<delay_ms>:<concurrency>[:<budget>]"); of BLOCKED: (until, partition)."""
TOKENS = (SEEN, SEEDS, ADMITTED, ADOPTED)
ENTRIES = (WAITING, RETURNED, QUARANTINE, DELAYED, FAILED, DEAD)
"""Each item is an `Entry`. A part of WAITING has one partition, oldest first. FAILED: newest first."""
KINDS = (*TOKENS, LIMITS, BLOCKED, *ENTRIES)
"""The kinds in an export, in the order of reading and storing."""
SPENT, EARLIEST = "spent", "earliest"
"""Items of SPENT: (partition, "<run or day> <count>"); of EARLIEST: (time, partition). Only a move has these
kinds and the kinds below; an export does not."""
STATS = "stats"
"""Items: (name, value)."""
HISTORY = ("samples", "minutes", "journal")
"""Items: (element,), the oldest first."""
MOVED = (*TOKENS, LIMITS, BLOCKED, SPENT, EARLIEST, *ENTRIES, STATS, *HISTORY)
"""The kinds in a move, in the order of reading and storing."""
KEPT = (
    "spider_args", "run_name", "keep_seen", "starts", "events", "limits_set", "began", "crawled",
)  # fmt: skip
"""Fields of home's meta that an export copies unchanged."""
KEPT_BY_MOVE = (
    *KEPT, "phase", "hold", "cleared", "seen_for", "ended", "shared", "sampled", "noticed", "never_sent",
)  # fmt: skip
"""The fields that a move copies: the fields of an export, and the state of the run, which may be finished
or on hold. `never_sent` is the sum over all shards."""


class Part(NamedTuple):
    """Some items of one kind from one shard."""

    kind: str
    """One of KINDS or MOVED."""
    shard: int
    items: list[Any]


_PART_BYTES = 1_048_576
"""Approximate maximum size of a part, in bytes."""


async def regrouped(
    given: AsyncIterator[Part], most: int, *, by_partition: bool = False
) -> AsyncIterator[Part]:
    """Yield the same items in parts of at most *most* items and about _PART_BYTES.

    *given* may have a million parts with one request each, or a single part with all items of a file.

    Args:
        by_partition: yield parts of WAITING with one partition each.
    """
    part, size = Part("", HOME, []), 0
    async for kind, shard, items in given:
        for item in items:
            is_other = (kind, shard) != part[:2] or (
                by_partition and kind == WAITING and item.partition != part.items[0].partition
            )
            if is_other or len(part.items) >= most or size >= _PART_BYTES:
                if part.items:
                    yield part
                part, size = Part(kind, shard, []), 0
            part.items.append(item)
            is_entry = isinstance(item, Entry)
            size += len(item.payload) + len(item.reason) + len(item.label) if is_entry else len(item[-1])
    if part.items:
        yield part


@dataclass(frozen=True)
class Shape:
    """The properties of a crawl that may change when the crawl is stored again."""

    order: Order
    seen: Seen
    shards: int

    def __str__(self) -> str:
        shards = f"{self.shards} shard{'s' * (self.shards > 1)}"
        return f"{self.order.value}, seen {self.seen.value}, {shards}"


@dataclass(frozen=True)
class Header:
    """The properties of the whole crawl."""

    id: str
    """The random id of this export or move: 32 hexadecimal digits."""
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
    """Number of requests that have failed in this run; Redis keeps the records of the newest ones."""
    gone: int
    seen_since_ms: int
    """Fingerprints that were admitted before this time count as new; 0: fingerprints never expire."""
    entries: int
    """Number of all entries, of all kinds in ENTRIES."""
    tokens: int
    """Approximate number of tokens in SEEN."""
    kept: dict[str, bytes] = field(default_factory=dict)
    """The fields in KEPT, or KEPT_BY_MOVE, that are set."""

    @property
    def shape(self) -> Shape:
        return Shape(self.order, self.seen, self.shards)
