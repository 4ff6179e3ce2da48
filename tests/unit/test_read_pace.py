"""How many records one read fetches: a few large ones, or many small ones."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest

from scrapy_dq.adoption.source import BATCH, Found, Source
from scrapy_dq.frontier.admin.entries import kept, kept_one
from scrapy_dq.frontier.reader import MAX_RECORDS, ReadPace

LARGE = b"x" * 1024 * 1024
MAX_BYTES = 8 * len(LARGE)


def of_failed(n: int) -> bytes:
    """Return a record as lua/moves/endings.lua writes it."""
    return msgpack.packb([b"%012d" % n, b"label", b"reason", 1, b"worker", 0, bytes(16), LARGE, b""])


class Kept:
    """A Redis with a list and a hash of large records. It records the size of each read."""

    def __init__(self, count: int) -> None:
        self.records = [of_failed(n) for n in range(count)]
        self.reads: list[int] = []

    def lrange(self, name: str, first: int, last: int) -> list[bytes]:
        found = self.records[first : last + 1]
        self.reads.append(sum(map(len, found)))
        return found

    def hmget(self, name: str, *fields: str) -> list[bytes | None]:
        return [b"epoch", None]

    def hscan(self, name: str, cursor: int, count: int) -> tuple[int, dict[bytes, bytes]]:
        end = min(cursor + count, len(self.records))
        record = msgpack.packb([b"reason", 1, b"worker", 0, bytes(16), LARGE, b""])
        self.reads.append((end - cursor) * len(record))
        return end % len(self.records), {b"%012d" % n: record for n in range(cursor, end)}


def test_large_records_are_read_a_few_at_once_and_small_ones_by_the_hundred() -> None:
    pace = ReadPace()
    for _ in range(9):
        pace.observe([LARGE, b""])
        assert pace.count * len(LARGE) <= MAX_BYTES
    for _ in range(9):
        pace.observe([b"small"])
    assert pace.count == MAX_RECORDS


@pytest.mark.parametrize("what", ["failed", "dead", "one", "one that is not there"])
def test_failed_requests_and_dead_letters_are_read_within_bounds(what: str) -> None:
    """No read exceeds MAX_BYTES. A listing returns each record once, and one record is found by its id."""
    stored: Any = Kept(60)
    if what in ("failed", "dead"):
        found = kept(stored, "crawl", what, 50)
        assert len({each.entry_id for each in found}) == len(found) == 50
    else:
        entry_id = b"%012d" % (59 if what == "one" else 60)
        assert bool(kept_one(stored, "crawl", "failed", entry_id)) == (what == "one")
    assert max(stored.reads) <= MAX_BYTES


def test_a_queue_that_is_adopted_is_read_within_bounds() -> None:
    stored: Any = Kept(60)

    class Client:
        async def lrange(self, *args: Any) -> list[bytes]:
            return stored.lrange(*args)  # type: ignore[no-any-return]

    async def read() -> list[bytes]:
        source = Source(Client())
        source.queue = Found("queue", "list", 60)
        return [member async for batch in source.members(backwards=False) for member in batch]

    assert asyncio.run(read()) == stored.records
    assert BATCH * len(LARGE) > MAX_BYTES >= max(stored.reads)
