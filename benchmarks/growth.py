"""Part `growth` measures how the cost of a request grows with the waiting requests and their partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.fill import QuickWorker
from benchmarks.part import Bar, Part
from benchmarks.pictures import curves
from benchmarks.redis_here import start_redis, titled, used_seconds
from benchmarks.sample import puts
from benchmarks.tables import markdown, ratios, spread
from scrapy_dq.frontier.moves import Ack

PENDING = [10_000, 100_000, 1_000_000, 5_000_000]
PARTITIONS = [10, 1_000, 100_000]
IN_PARTITIONS = 200_000
"""Waiting requests in all partitions together."""
BATCH = 100
"""Puts, leases and acks of one exchange."""
REQUESTS = 10_000
REPETITIONS = 5
BUDGET_S = 60.0
"""Seconds for filling. If a size would need longer at the current rate, it is reduced or left out."""
FIGURES = {"redis": "Redis CPU", "wall": "until the answer"}

Sample = dict[str, float]


class Crawl:
    """A crawl in which the same number of requests wait while others come and go."""

    def __init__(self, worker: QuickWorker, look: Any, partitions: int) -> None:
        self._worker = worker
        self._look = look
        self._partitions = partitions
        self._filled = 0

    async def fill(self, pending: int) -> None:
        """Put requests until *pending* wait."""
        begin, self._filled = self._filled, pending
        await self._worker.fill(puts(range(begin, pending), self._partitions))

    async def sample(self, begin: int) -> Sample:
        """Put, lease and ack REQUESTS requests, all three in each exchange. Return µs per request.

        Args:
            begin: the first of the numbers that no request has yet.
        """
        new = list(puts(range(begin, begin + REQUESTS), self._partitions))
        leased = (await self._worker.exchange([], BATCH)).leases
        redis_s, began = used_seconds(self._look), time.perf_counter()
        for first in range(0, REQUESTS, BATCH):
            acks = [Ack(lease.entry_id) for lease in leased]
            leased = (await self._worker.exchange([*new[first : first + BATCH], *acks], BATCH)).leases
        wall_s = time.perf_counter() - began
        redis_s = used_seconds(self._look) - redis_s
        await self._worker.exchange([Ack(lease.entry_id) for lease in leased])
        # Put more requests, so that as many wait as before.
        more = range(begin + REQUESTS, begin + REQUESTS + BATCH)
        await self._worker.exchange(list(puts(more, self._partitions)))
        return {"redis": redis_s / REQUESTS * 1e6, "wall": wall_s / REQUESTS * 1e6}


@asynccontextmanager
async def crawl(partitions: int = 1) -> AsyncIterator[Crawl]:
    """Yield a crawl on a new Redis."""
    with start_redis() as server, server.client() as look:
        worker = QuickWorker(server.url)
        await worker.join()
        yield Crawl(worker, look, partitions)
        await worker.close()


async def by_pending(tell: Callable[[str], None]) -> dict[str, Any]:
    """Return samples by number of waiting requests, each with a sample of a crawl of the smallest size."""
    found: dict[str, Any] = {"samples": {}, "fill_seconds": {}}
    numbers = count(10**9, 10**6)
    async with crawl() as large:
        began, filled = time.perf_counter(), 0
        for goal in PENDING:
            pending, passed = goal, time.perf_counter() - began
            rate = filled / found["fill_seconds"][str(filled)] if filled else float("inf")
            if passed + (pending - filled) / rate > BUDGET_S:
                pending = filled + int(rate * (BUDGET_S - passed)) // 100_000 * 100_000
                tell(f"only {pending:,} fit into {BUDGET_S:g} s")
                if pending < 2 * filled:
                    break
            filling = time.perf_counter()
            await large.fill(pending)
            before = found["fill_seconds"].get(str(filled), 0.0)
            filled = pending
            found["fill_seconds"][str(filled)] = before + time.perf_counter() - filling
            samples: list[dict[str, Sample]] = []
            for repetition in range(REPETITIONS):
                samples.append(await _pair(large, next(numbers), repetition))
            found["samples"][str(pending)] = samples
            tell(f"{pending:,} wait: {samples}")
    return found


async def _pair(large: Crawl, begin: int, repetition: int) -> dict[str, Sample]:
    async with crawl() as small:
        await small.fill(PENDING[0])
        if repetition % 2:
            of_small, of_large = await small.sample(begin), await large.sample(begin)
        else:
            of_large, of_small = await large.sample(begin), await small.sample(begin)
    return {"small": of_small, "large": of_large}


async def by_partitions(tell: Callable[[str], None]) -> dict[str, Any]:
    """Return samples by the number of partitions. All crawls are sampled in alternating order."""
    found: dict[str, list[dict[str, Sample]]] = {str(partitions): [] for partitions in PARTITIONS}
    async with AsyncExitStack() as stack:
        crawls = {}
        for partitions in PARTITIONS:
            crawls[partitions] = await stack.enter_async_context(crawl(partitions))
            await crawls[partitions].fill(IN_PARTITIONS)
            tell(f"{partitions:,} partitions are filled")
        for repetition in range(REPETITIONS):
            begin = 10**9 + repetition * 10**6
            order = PARTITIONS[:: -1 if repetition % 2 else 1]
            samples = {partitions: await crawls[partitions].sample(begin) for partitions in order}
            for partitions, sample in samples.items():
                found[str(partitions)].append({"small": samples[PARTITIONS[0]], "large": sample})
        tell(f"by partitions: {found}")
    return {"samples": found, "entries": IN_PARTITIONS}


class Growth(Part):
    """The cost of put, lease and ack while few requests wait, and while many wait."""

    name = "growth"
    title = "Growth"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Fill, and measure at each size."""
        return {
            "pending": asyncio.run(by_pending(tell)),
            "partitions": asyncio.run(by_partitions(tell)),
            "redis": titled(),
        }

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the targets for the cost with a million waiting requests, and with many partitions."""

        def costs(of: str, size: str) -> list[float]:
            samples = found[of]["samples"].get(size, [])
            return [sample["large"]["redis"] / sample["small"]["redis"] for sample in samples]

        return [
            Bar("Redis CPU per request, 1,000,000 waiting / 10,000", 1.3, True, costs("pending", "1000000")),
            Bar(
                "Redis CPU per request in 100,000 partitions / in 10",
                1.3,
                True,
                costs("partitions", "100000"),
            ),
        ]

    def section(self, found: dict[str, Any]) -> str:
        """Return the tables."""
        fill = found["pending"]["fill_seconds"]
        largest = max(fill, key=int)
        small = next(iter(found["pending"]["samples"].values()))
        fits = "" if int(largest) == PENDING[-1] else f", and {PENDING[-1]:,} would have taken too long"
        rate = int(largest) / fill[largest]
        return "\n\n".join([
            f"Put, lease and ack of a request as above, from {REQUESTS:,} requests, {BATCH} per exchange. "
            f"Others wait in one partition. Bold: the ratio to a crawl with {PENDING[0]:,} waiting, just "
            "before or after.",
            _table("waiting", found["pending"]["samples"]),
            f"Exchanges put {int(largest):,} requests, {rate:,.0f} per second{fits}.",
            f"The same with {found['partitions']['entries']:,} waiting in several partitions. "
            f"Bold: the ratio to {PARTITIONS[0]} partitions.",
            _table("partitions", found["partitions"]["samples"]),
            f"{len(small)} repetitions. {found['redis']}, no AOF, on loopback.",
        ])  # fmt: skip

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw the cost against the waiting requests and against the partitions."""
        axes = {"pending": "requests that wait", "partitions": "partitions"}
        return [
            curves(
                folder / f"performance-growth-{by}.png", _series(found[by]["samples"]), x, "µs per request"
            )
            for by, x in axes.items()
        ]


def _series(samples: Mapping[str, Sequence[Any]]) -> dict[str, dict[float, list[float]]]:
    return {
        title: {float(n): [each["large"][key] for each in some] for n, some in samples.items()}
        for key, title in FIGURES.items()
    }


def _table(what: str, samples: Mapping[str, Sequence[Any]]) -> str:
    rows = []
    for number, some in samples.items():
        cells = [f"{int(number):,}"]
        for key in FIGURES:
            mine, small = ([each[of][key] for each in some] for of in ("large", "small"))
            cells.append(f"{spread(mine, 1)}, **× {spread(ratios(mine, small), 2)}**")
        rows.append(cells)
    return markdown([what, *(f"{title}, µs" for title in FIGURES.values())], rows)


PART = Growth()
