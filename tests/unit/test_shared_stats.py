"""In its own process, SharedStats counts exactly as Scrapy's collector does.

It also reports the counts that other workers may see.
"""

from __future__ import annotations

import datetime
import math
import threading
from decimal import Decimal
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.statscollectors import MemoryStatsCollector

from scrapy_dq import SharedStats
from scrapy_dq.stats import collector


@pytest.fixture
def stats() -> SharedStats:
    return SharedStats(Crawler(Spider))


def deltas(stats: SharedStats, limit: int = 500) -> dict[tuple[str, str], Any]:
    return {(kind, stat): number for kind, stat, number in stats.take_deltas(limit)}


def test_own_stats_equal_those_of_scrapys_collector(stats: SharedStats) -> None:
    """A mix of all methods gives the same stats in both collectors, even if deltas are taken in between."""
    plain = MemoryStatsCollector(Crawler(Spider))
    for one in (stats, plain):
        one.inc_value("a")
        one.inc_value("a", 2)
        one.inc_value("b", 1, start=5)
        one.set_value("c", "text")
        one.max_value("d", 3)
        if one is stats:
            stats.take_deltas(2)
        one.max_value("d", 1)
        one.min_value("e", 3)
        one.min_value("e", 1.5)
        one.inc_value("a", 0.5)
    assert stats.get_stats() == plain.get_stats()
    assert stats.get_stats() == {"a": 3.5, "b": 6, "c": "text", "d": 3, "e": 1.5}


def test_each_change_is_reported_once(stats: SharedStats) -> None:
    """A report has the sums, maxima and minima since the last report.

    The first sum of a stat includes its start value.
    """
    for _ in range(3):
        stats.inc_value("a")
    stats.inc_value("b", 1, start=5)
    stats.max_value("d", 3)
    stats.max_value("d", 7)
    stats.min_value("d", 3)
    assert deltas(stats) == {("sum", "a"): 3, ("sum", "b"): 6, ("max", "d"): 7, ("min", "d"): 3}
    assert deltas(stats) == {}
    stats.inc_value("a", 4)
    stats.inc_value("b", 1, start=5)
    stats.max_value("d", 1)
    assert deltas(stats) == {("sum", "a"): 4, ("sum", "b"): 1, ("max", "d"): 1}


def test_the_size_of_one_report_is_limited(stats: SharedStats) -> None:
    """One report never holds Redis for long, even if a project has a stat for each of many domains."""
    for number in range(7):
        stats.inc_value(f"stat/{number}")
    assert [len(deltas(stats, 3)) for _ in range(4)] == [3, 3, 1, 0]


@pytest.mark.parametrize("value", [math.inf, math.nan, True, Decimal(1), datetime.timedelta(1)])
def test_only_numbers_are_shared(stats: SharedStats, value: Any) -> None:
    """Any other value stays in this process's own stats."""
    stats.inc_value("a", value, start=type(value)(0))
    stats.max_value("b", value)
    stats.min_value("c", value)
    assert set(stats.get_stats()) == {"a", "b", "c"}
    shared = deltas(stats)
    assert shared == ({("sum", "a"): 1} if value is True else {})  # False + True is 1


def test_odd_names_and_numbers_are_not_shared(stats: SharedStats) -> None:
    """A stat's name or number may come from a site or from a stored entry.

    Values of `set_value` and `set_stats` cannot be added up meaningfully.
    """
    stats.set_value("finish_reason", "finished")
    stats.set_stats({"a": 1})
    stats.inc_value(("a", "tuple"))  # type: ignore[arg-type]
    stats.inc_value("half a \ud800 character")
    stats.inc_value("x" * 501)
    stats.inc_value("ä" * 250)
    stats.max_value("deep", 10**5000)
    stats.max_value("deepest", 2**63 - 1)
    assert deltas(stats) == {("sum", "ä" * 250): 1, ("max", "deepest"): 2**63 - 1}
    assert len(stats.get_stats()) == 7


def test_counts_of_several_threads_are_all_reported(stats: SharedStats) -> None:
    """Scrapy counts log records, so any thread that logs calls `inc_value`."""

    def count() -> None:
        for _ in range(2000):
            stats.inc_value("a")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = 0
    while any(thread.is_alive() for thread in threads):
        taken += deltas(stats).get(("sum", "a"), 0)
    taken += deltas(stats).get(("sum", "a"), 0)
    assert taken == stats.get_value("a") == 8000


def test_a_count_within_a_count_does_not_hang(stats: SharedStats) -> None:
    """A signal handler that logs may interrupt a count in the same thread."""

    class Counting(int):
        def __radd__(self, other: Any) -> Any:
            stats.inc_value("inner")
            return int(self) + other

    stats.inc_value("outer", Counting(1))
    assert stats.get_value("outer") == 1
    assert stats.get_value("inner") >= 1


def test_the_number_of_shared_stats_is_limited(
    stats: SharedStats, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stat for each URL must not fill Redis. Known stats are still shared, and there is one warning."""
    monkeypatch.setattr(collector, "MAX_NAMES", 2)
    for name in ("a", "b", "c", "d", "a"):
        stats.inc_value(name)
    stats.max_value("e", 1)
    assert deltas(stats) == {("sum", "a"): 2, ("sum", "b"): 1}
    assert stats.get_value("d") == 1
    assert caplog.text.count("are not shared with other workers") == 1
