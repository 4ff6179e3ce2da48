"""Part `many_workers`: what do 10 to 1,000 workers cost a Redis? How many full workers can one core feed?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from benchmarks.part import Bar, Part
from benchmarks.redis_here import found_kinds, titled
from benchmarks.scale import Load, Run, measure
from benchmarks.scale_worker import LINKS
from benchmarks.tables import markdown, spread

FULL_RATE = 300
"""Pages per second of a full worker, which is a Scrapy worker with its own core: see `crawls.py`."""
FULL_BURST = 16
"""The number of pages that a full worker gets at the same time. Whole crawls have more pages per exchange."""
CORE = 0.8
"""The share of a core that Redis can use. Above this share, exchanges have to wait for each other."""
WANTED_FULL = 100
PEER = "scrapy-redis's commands"
REPETITIONS = 3


class Crew(NamedTuple):
    """A number of workers, and the work of each."""

    workers: int
    rate: float
    """Pages per second and worker."""
    burst: int = 1
    warm_up_s: float = 15.0
    """Seconds until all workers have started."""

    @property
    def title(self) -> str:
        """The work of each worker, for the table."""
        return f"{self.rate:g}, {self.burst} at once" if self.burst > 1 else f"{self.rate:g}"


CREWS = {
    "full": Crew(50, FULL_RATE, FULL_BURST), "10": Crew(10, 100), "100": Crew(100, 10),
    "1,000": Crew(1_000, 1, warm_up_s=45.0), "idle": Crew(100, 1e-6),
}  # fmt: skip
PEERS = 2
"""The number of processes that send scrapy-redis's commands, each as fast as it can."""


class ManyWorkers(Part):
    """Workers without Scrapy that speak the real protocol, on the newest Redis that is installed."""

    name: ClassVar[str] = "many_workers"
    title: ClassVar[str] = "Many workers"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Let the crews crawl one after the other, in each repetition."""
        kind = found_kinds()[-1]
        runs = []
        for repetition in range(REPETITIONS):
            for name, crew in CREWS.items():
                rate = crew.workers * crew.rate
                load = Load(crew.workers, kind, rate, crew.burst, warm_up=crew.warm_up_s)
                runs.append(measure(name, 1, 1, repetition, load))
                tell(f"{runs[-1]}")
            runs.append(measure(PEER, 0, 1, repetition, Load(PEERS, kind, warm_up=5.0)))
            tell(f"{runs[-1]}")
        return {"runs": [asdict(run) for run in runs], "redis": titled(kind)}

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the target for the number of full workers."""
        samples = [_fed(run) for run in _of(found, "full")]
        return [Bar("full workers that one Redis core feeds", WANTED_FULL, False, samples)]

    def section(self, found: dict[str, Any]) -> str:
        """Return the table, and the conditions of its figures."""
        head = [
            "workers", "pages/s of each", "pages/s", "Redis CPU, µs/page", "cores of Redis", "pages/exchange",
            "p99 of an exchange, ms", "bytes of Redis per worker",
        ]  # fmt: skip
        rows = []
        for name in (*CREWS, PEER):
            runs = _of(found, name)
            rows.append([
                f"{runs[0].workers:,}" if name in CREWS else name,
                (CREWS[name].title if name != "idle" else "none") if name in CREWS else "as fast as they can",
                spread([run.pages_per_s for run in runs]),
                spread([run.redis_us for run in runs], 1) if name != "idle" else "–",
                spread([run.busiest for run in runs], 3),
                spread([run.batch for run in runs], 1) if name in CREWS and name != "idle" else "–",
                spread([run.p99_ms for run in runs], 1),
                spread([run.worker_bytes for run in runs]) if name in CREWS else "–",
            ])  # fmt: skip
        full, idle, peer = _of(found, "full"), _of(found, "idle"), _of(found, PEER)
        at_most = spread([CORE * 1e6 / run.redis_us for run in full])
        of_peer = [CORE * 1e6 / run.redis_us / FULL_RATE for run in peer]
        seconds = Load._field_defaults["seconds"]
        return (
            f"{markdown(head, rows)}\n\nThe workers speak the real protocol, without Scrapy, in 2 processes. "
            f"Each page has {LINKS} links, one of them new. A *full worker* (first row) works like Scrapy "
            f"with its own core: {FULL_RATE} pages per second, {FULL_BURST} at once. At Redis's CPU time per "
            f"page in that row, {CORE:.0%} of a core serves {at_most} pages per second, or "
            f"**{spread([_fed(run) for run in full])} full workers**. With scrapy-redis's commands, it "
            f"serves {spread(of_peer, 1)}.\n\n"
            f"An idle worker takes {spread([run.idle_us for run in idle])} µs of Redis's CPU per second. "
            f"*Bytes of Redis per worker* are its key, its leases, and the memory of client connections.\n\n"
            f"{REPETITIONS} repetitions of {seconds:g} s per row. {found['redis']}, AOF everysec, on "
            f"loopback; workers and Redis share the cores."
        )

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw nothing, because the table is short."""
        return []


def _of(found: dict[str, Any], what: str) -> list[Run]:
    return [run for run in (Run(**each) for each in found["runs"]) if run.what == what]


def _fed(run: Run) -> float:
    return CORE * 1e6 / run.redis_us / FULL_RATE


PART = ManyWorkers()
