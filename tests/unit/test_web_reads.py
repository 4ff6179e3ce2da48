"""How often the web page reads each crawl: a look is one read. The test controls the clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_dq.settings import Config
from scrapy_dq.web import reads as reads_module
from scrapy_dq.web.reads import MAX_PAUSE_S, Reads, Result, Subject


class Clock(asyncio.SelectorEventLoop):
    """An event loop that does not wait: its time jumps to the next timer."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class TimedLooks(Reads):
    """Reads whose looks at a crawl take as many seconds as its cost."""

    def __init__(self, costs: dict[str, float], until: float) -> None:
        super().__init__(Config.read({"DQ_CRAWL": "x", "REDIS_URL": "redis://127.0.0.1:1/0"}, {}))
        self.costs = costs
        self.until = until
        self.found = Counter[str]()

    async def _in_thread(self, subject: Subject, kept: Any) -> tuple[Result, bool]:
        self.found[subject.crawl] += asyncio.get_running_loop().time() < self.until
        await asyncio.sleep(self.costs[subject.crawl])
        return Result(body="{}"), True

    async def browse(self, crawl: str) -> None:
        """Ask for one result after another, as an open page does."""
        while asyncio.get_running_loop().time() < self.until:
            await self.newest(Subject("crawl", crawl))


def looks_in(monkeypatch: pytest.MonkeyPatch, passes_s: float, costs: dict[str, float]) -> Counter[str]:
    """Let browsers watch crawls for *passes_s* seconds; return the number of looks at each crawl."""

    async def browse() -> Counter[str]:
        looks = TimedLooks(costs, asyncio.get_running_loop().time() + passes_s)
        await asyncio.gather(*(looks.browse(crawl) for crawl in costs for _ in range(2)))
        await looks.close()
        return looks.found

    loop = Clock()
    monkeypatch.setattr(reads_module, "time", SimpleNamespace(monotonic=loop.time))
    try:
        return loop.run_until_complete(browse())
    finally:
        loop.close()


def test_the_looks_at_a_crawl_take_at_most_a_fiftieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer look or more browsers do not change this share. There is at most one look per second."""
    assert 900 <= looks_in(monkeypatch, 1_000.0, {"cheap": 0.001})["cheap"] <= 1_001
    assert abs(looks_in(monkeypatch, 1_000.0, {"costly": 1.0})["costly"] - 1_000 / 50) <= 1
    many = looks_in(monkeypatch, 1_000.0, {f"crawl {n}": 0.03 for n in range(50)})
    assert sum(many.values()) <= 1_000 / 50 / 0.03 + 1
    assert max(many.values()) - min(many.values()) <= 2


def test_a_costly_crawl_hardly_delays_the_looks_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks at the other crawl wait only during a costly look and for up to two seconds after it."""
    found = looks_in(monkeypatch, 1_000.0, {"cheap": 0.002, "costly": 1.1})
    assert found["cheap"] >= 1_000 / (1 + 0.002 * 50) - found["costly"] * (1.1 + MAX_PAUSE_S) - 1
    assert abs(found["costly"] - 1_000 / (1.1 * 50)) <= 1
