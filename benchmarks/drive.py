"""`python -m benchmarks.drive PLAN` drives a scheduler in one process. PLAN is a JSON object.

The crawler, the engine and the event loop are Scrapy's own. But the spider's `start`, not the engine, calls
the scheduler.
"""

from __future__ import annotations

import cProfile
import gc
import json
import pstats
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import redis
from scrapy.crawler import CrawlerProcess

from benchmarks.driver import AT_ONCE, Driver, Idle
from benchmarks.redis_here import used_seconds
from benchmarks.sample import SampleSpider, request

ROOT = Path(__file__).parents[1]
HEAVIEST = 10
"""Number of functions of a profile that are printed."""
IN_OUTBOX = 20_000
"""Number of requests that fill an outbox in memory."""
FULL_BUFFER = 1_000
"""Leases in a full buffer: the most that one exchange brings. CONCURRENT_REQUESTS must be as high."""
LONGEST_S = 120
ROUND = 10_000
"""The number of requests that the phase `crawled` first puts and then takes, repeatedly."""


@dataclass
class Plan:
    """The task of one process."""

    scheduler: str
    settings: dict[str, Any]
    requests: int
    phases: list[str]
    """Either some of `new`, `known` and `taken`, in this order, or only `held`, or only `crawled`."""
    redis_url: str = ""
    profile: bool = False


@dataclass
class Phase:
    """The cost of a phase, for all its requests together."""

    requests: int
    seconds: float
    client_seconds: float
    """CPU time of this process."""
    redis_seconds: float
    heaviest: list[tuple[str, int, float]]
    """With a profile: function, number of calls, and seconds in the function, without its callees."""


class Measured:
    """Carries out a plan, and measures it."""

    def __init__(self, driver: Driver, plan: Plan, spider: SampleSpider) -> None:
        self._driver = driver
        self._plan = plan
        self._spider = spider
        self._redis = redis.Redis.from_url(plan.redis_url) if plan.redis_url else None
        self._phases: dict[str, Callable[[], Awaitable[Any]]] = {
            "new": lambda: self._put(new=True),
            "known": lambda: self._put(new=False),
            "taken": lambda: self._used(self._driver.take(plan.requests)),
            "held": self._held,
            "crawled": self._crawled,
        }

    async def all_phases(self) -> dict[str, Any]:
        """Return the cost of each phase."""
        return {phase: await self._phases[phase]() for phase in self._plan.phases}

    async def _put(self, *, new: bool) -> dict[str, Any]:
        # The requests are created before the clock starts, and are freed one by one.
        requests = [request(n, self._spider) for n in range(self._plan.requests)]
        return await self._used(self._driver.put((requests.pop() for _ in range(len(requests))), new))

    async def _used(self, work: Awaitable[None]) -> dict[str, Any]:
        profile = cProfile.Profile() if self._plan.profile else None
        watched: AbstractContextManager[Any] = profile or nullcontext()
        redis_s, cpu, began = self._redis_seconds(), time.process_time(), time.perf_counter()
        with watched:
            await work
            await self._driver.all_told()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        heaviest = _heaviest(profile) if profile else []
        return asdict(Phase(self._plan.requests, seconds, cpu, self._redis_seconds() - redis_s, heaviest))

    async def _held(self) -> dict[str, int]:
        """Return the resident bytes of this process after each of four steps. It hardly ever shrinks."""
        count, found = self._plan.requests, {"opened": _rss()}
        new = (request(n, self._spider) for n in range(count))
        self._driver.put_page(islice(new, IN_OUTBOX), new=True)
        found["outbox"] = _rss()
        await self._driver.put(new, new=True)
        await self._driver.all_told()
        found["known"] = _rss()
        if self._redis:
            await self._driver.take(IN_OUTBOX)
            await self._driver.buffered(FULL_BUFFER)
            found["buffer"] = _rss()
        return found

    async def _crawled(self) -> list[int]:
        """Return the resident bytes of this process at the start and after each tenth of the requests."""
        sizes = [_rss()]
        for first in range(0, self._plan.requests, ROUND):
            new = (request(n, self._spider) for n in range(first, first + ROUND))
            await self._driver.put(new, new=True)
            await self._driver.all_told()
            await self._driver.take(ROUND)
            await self._driver.all_told()
            if (first + ROUND) % (self._plan.requests // 10) == 0:
                sizes.append(_rss())
        return sizes

    def _redis_seconds(self) -> float:
        return used_seconds(self._redis) if self._redis else 0.0


class DriveSpider(SampleSpider):
    """Drives the scheduler in `start`, and yields nothing."""

    plan: Plan
    found: dict[str, Any] | None = None

    async def start(self) -> AsyncIterator[Any]:
        """Drive the scheduler of the plan. Then let the engine end."""
        driver = Driver(self.crawler, self.plan.scheduler)
        await driver.open(self)
        type(self).found = await Measured(driver, self.plan, self).all_phases()
        await driver.close()
        Idle.over = True
        return
        yield


def drive(plan: Plan, longest_s: float = LONGEST_S) -> dict[str, Any]:
    """Carry out *plan* in a new process, and return the cost of each phase."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.drive", json.dumps(asdict(plan))],
        cwd=ROOT, stdout=subprocess.PIPE, timeout=longest_s, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _heaviest(profile: cProfile.Profile) -> list[tuple[str, int, float]]:
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    rows = [
        (f"{'/'.join(Path(file).parts[-2:])}:{name}" if line else name, calls, own)
        for (file, line, name), (_, calls, own, _, _) in stats.items()
    ]
    return sorted(rows, key=lambda row: -row[2])[:HEAVIEST]


def main() -> None:
    """Carry out the plan on the command line, and print the result."""
    plan = DriveSpider.plan = Plan(**json.loads(sys.argv[1]))
    settings = {
        "SCHEDULER": Idle,
        "CONCURRENT_REQUESTS": AT_ONCE,
        "CONCURRENT_REQUESTS_PER_DOMAIN": AT_ONCE,
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        **plan.settings,
    }
    process = CrawlerProcess(settings)
    process.crawl(DriveSpider)
    process.start()
    if DriveSpider.found is None:
        sys.exit("the scheduler could not be driven: see the log above")
    print(json.dumps(DriveSpider.found))


if __name__ == "__main__":
    main()
