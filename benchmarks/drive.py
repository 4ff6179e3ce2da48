"""One process in which a scheduler is driven directly: `python -m benchmarks.drive PLAN`, a plan as JSON.

Its crawler, engine, event loop and spider are Scrapy's own, and the engine asks a scheduler that has nothing.
The one that is measured is asked by `SampleSpider.start`, in place of the engine.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis
from scrapy import Request
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object

from benchmarks.sample import SampleSpider, request

PAGE = 13
"""Requests that a page yields at once, before the event loop has its turn."""
AT_ONCE = 16
"""Requests that the engine takes at once, before the event loop has its turn."""
DEADLINE_S = 120
HEAVIEST = 10
"""Functions of a profile that are told."""


@dataclass
class Plan:
    """What one process is to do."""

    scheduler: str
    settings: dict[str, Any]
    requests: int
    phases: list[str]
    """new, known, taken: in this order."""
    redis_url: str = ""
    profile: bool = False


@dataclass
class Phase:
    """What a phase has used, all its requests together."""

    requests: int
    seconds: float
    client_seconds: float
    """CPU time of this process."""
    redis_seconds: float
    heaviest: list[tuple[str, int, float]]
    """With a profile: function, calls, seconds of its own."""


class Idle(BaseScheduler):
    """What the engine asks meanwhile: it has nothing, and tells when it was asked."""

    asked: asyncio.Event

    def __init__(self, crawler: Crawler) -> None:
        type(self).asked = asyncio.Event()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Idle:  # type: ignore[override]
        """Build it. Source: scrapy/core/scheduler.py"""
        return cls(crawler)

    def has_pending_requests(self) -> bool:
        """Return that there is something: the engine stays."""
        return True

    def enqueue_request(self, request: Request) -> bool:
        """Take nothing."""
        return False

    def next_request(self) -> Request | None:
        """Return nothing; the engine asks when the measured scheduler has woken it."""
        self.asked.set()
        return None


class Driver:
    """Asks one scheduler, as an engine and its spider do."""

    def __init__(self, crawler: Crawler, plan: Plan) -> None:
        self._crawler = crawler
        self._plan = plan
        self._scheduler: Any = build_from_crawler(load_object(plan.scheduler), crawler)
        self._ours = plan.scheduler.startswith("scrapy_dq")
        self._redis = redis.Redis.from_url(plan.redis_url) if plan.redis_url else None

    async def drive(self) -> dict[str, Phase]:
        """Do what the plan says."""
        assert isinstance(self._crawler.spider, SampleSpider)
        spider, plan = self._crawler.spider, self._plan
        await _finished(self._scheduler.open(spider))
        found = {}
        for phase in plan.phases:
            # They are made before the clock starts, and go one by one.
            requests = [request(n, spider) for n in range(plan.requests)] if phase != "taken" else []
            work = self._take(plan.requests) if phase == "taken" else self._put(requests, phase == "new")
            found[phase] = await self._measured(work)
        await _finished(self._scheduler.close("shutdown"))
        return found

    async def _measured(self, work: Awaitable[None]) -> Phase:
        profile = cProfile.Profile() if self._plan.profile else None
        watched: AbstractContextManager[Any] = profile or nullcontext()
        redis_s, cpu, began = self._redis_seconds(), time.process_time(), time.perf_counter()
        with watched:
            await work
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        heaviest = _heaviest(profile) if profile else []
        return Phase(self._plan.requests, seconds, cpu, self._redis_seconds() - redis_s, heaviest)

    async def _put(self, requests: list[Request], new: bool) -> None:
        """Enqueue all of them, a page's worth at a time; return once all are stored."""
        enqueue = self._scheduler.enqueue_request
        while requests:
            for _ in range(min(PAGE, len(requests))):
                if enqueue(requests.pop()) is not new:
                    raise RuntimeError(f"a request was {'known' if new else 'new'}")
            await asyncio.sleep(0)
        await self._all_told()

    async def _take(self, count: int) -> None:
        """Take *count* requests, each done at once; return once that is stored, too."""
        take, settle = self._scheduler.next_request, self._settled()
        while count:
            for _ in range(min(AT_ONCE, count)):
                taken = take()
                if taken is None:
                    # The engine waits, too, until the scheduler wakes it.
                    Idle.asked.clear()
                    await asyncio.wait_for(Idle.asked.wait(), DEADLINE_S)
                    break
                settle(taken)
                count -= 1
            else:
                await asyncio.sleep(0)
        await self._all_told()

    def _settled(self) -> Callable[[Request], None]:
        if not self._ours:
            return lambda request: None
        downloaded = self._scheduler.downloaded
        at_work = self._crawler.engine._slot.inprogress  # type: ignore[union-attr]

        def settle(request: Request) -> None:
            # What the engine does with each, between asking and asking again.
            at_work.add(request)
            downloaded(request)
            at_work.remove(request)

        return settle

    async def _all_told(self) -> None:
        """Wait until Redis has what this process has put and settled."""
        if self._ours:
            outbox = self._scheduler._session.worker._dialogue.outbox
            deadline = time.monotonic() + DEADLINE_S
            while len(outbox):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(outbox)} moves are not applied")
                await asyncio.sleep(0.001)

    def _redis_seconds(self) -> float:
        if self._redis is None:
            return 0.0
        cpu = self._redis.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


class DriveSpider(SampleSpider):
    """Drives in `start`, and yields nothing."""

    plan: Plan
    found: dict[str, Phase] | None = None

    async def start(self) -> AsyncIterator[Any]:
        """Drive the scheduler of the plan, then let the engine end."""
        type(self).found = await Driver(self.crawler, self.plan).drive()
        Idle.has_pending_requests = lambda idle: False  # type: ignore[method-assign]
        return
        yield


async def _finished(answer: Any) -> None:
    """Wait for what `open` or `close` returned: nothing, or a Deferred."""
    if answer is not None:
        await maybe_deferred_to_future(answer)


def _heaviest(profile: cProfile.Profile) -> list[tuple[str, int, float]]:
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    rows = [
        (f"{'/'.join(Path(file).parts[-2:])}:{name}" if line else name, calls, own)
        for (file, line, name), (_, calls, own, _, _) in stats.items()
    ]
    return sorted(rows, key=lambda row: -row[2])[:HEAVIEST]


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    DriveSpider.plan = plan
    settings = {
        "SCHEDULER": Idle,
        "CONCURRENT_REQUESTS": AT_ONCE,
        "CONCURRENT_REQUESTS_PER_DOMAIN": AT_ONCE,
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        **plan.settings,
    }
    process = AsyncCrawlerProcess(settings)
    process.crawl(DriveSpider)
    process.start()
    if DriveSpider.found is None:
        sys.exit("the scheduler could not be driven: see the log above")
    print(json.dumps({name: asdict(phase) for name, phase in DriveSpider.found.items()}))


if __name__ == "__main__":
    main()
