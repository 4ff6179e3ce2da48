"""Counts on their way to Scrapy's stats."""

from __future__ import annotations

import asyncio
from collections import Counter

from scrapy_dq.stats.collector import Tally


class Stats:
    """Counts the calls, too."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.calls = 0

    def inc_value(self, name: str, count: int = 1) -> None:
        """Add *count* to *name*."""
        self.values[name] += count
        self.calls += 1


def test_counts_of_one_turn_are_passed_on_together() -> None:
    """In the next turn; those of that turn, in the one after it."""

    async def count() -> None:
        for _ in range(3):
            tally("a")
            tally("b")
        assert not stats.calls
        await asyncio.sleep(0)
        assert (stats.values, stats.calls) == ({"a": 3, "b": 3}, 2)
        tally("a")
        await asyncio.sleep(0)
        assert (stats.values, stats.calls) == ({"a": 4, "b": 3}, 3)

    stats = Stats()
    tally = Tally(stats.inc_value)
    asyncio.run(count())


def test_what_is_flushed_is_counted_once() -> None:
    """A crawl that closes does not wait for the next turn."""

    async def count() -> None:
        tally("a")
        tally.flush()
        assert stats.values == {"a": 1}
        await asyncio.sleep(0)

    stats = Stats()
    tally = Tally(stats.inc_value)
    asyncio.run(count())
    assert stats.values == {"a": 1}
