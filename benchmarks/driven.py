"""Part `driven` measures schedulers without a crawl, and the cost of a request for Redis."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import exchange_cost
from benchmarks.drive import Plan, drive
from benchmarks.part import Bar, Part
from benchmarks.pictures import bars_of_ratios
from benchmarks.redis_here import start_redis, titled
from benchmarks.tables import markdown, ratios, spread

REPETITIONS = 3
REQUESTS = 20_000
PROFILED = 5_000
NO_AOF, EVERYSEC = "no AOF", "AOF everysec"
SHOWN = 3
"""Number of functions of each profile that the page shows."""
PHASES = {"new": "enqueue new", "known": "enqueue duplicate", "taken": "dequeue"}


class Contender(NamedTuple):
    """A scheduler and its needs."""

    title: str
    scheduler: str
    settings: dict[str, Any]
    requests: int = REQUESTS
    persistence: str = ""
    """The persistence of its Redis; empty without Redis."""


OURS = "scrapy_dq.Scheduler"
SCRAPY = "scrapy.core.scheduler.Scheduler"
SCRAPY_REDIS = "scrapy_redis.scheduler.Scheduler"
_PEER = {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter", "SCHEDULER_PERSIST": True}
_FEWER = REQUESTS // 4
CONTENDERS = {
    "memory": Contender("Scrapy, in memory", SCRAPY, {}),
    "jobdir": Contender("Scrapy, JOBDIR", SCRAPY, {"JOBDIR": "job"}),
    "scrapy-redis": Contender("scrapy-redis", SCRAPY_REDIS, _PEER, _FEWER, NO_AOF),
    "ours": Contender("scrapy_dq", OURS, {}, REQUESTS, NO_AOF),
    "scrapy-redis-aof": Contender("scrapy-redis", SCRAPY_REDIS, _PEER, _FEWER, EVERYSEC),
    "ours-aof": Contender("scrapy_dq", OURS, {}, REQUESTS, EVERYSEC),
}
COMPARED = [
    ("new", "memory", "enqueue new: ours / Scrapy in memory", 1.0),
    ("new", "scrapy-redis", "enqueue new: ours / scrapy-redis", 9.0),
    ("known", "scrapy-redis", "enqueue duplicate known locally: ours / scrapy-redis", 8.0),
    ("taken", "jobdir", "dequeue + settle: ours / JOBDIR's dequeue", 1.5),
    ("taken", "scrapy-redis", "dequeue + settle: ours / scrapy-redis's dequeue", 8.0),
]
"""For each ratio: the phase, the contender to compare with, the title, and the minimum."""


def run(contender: Contender, *, requests: int = 0, profile: bool = False) -> dict[str, Any]:
    """Drive a scheduler on a new Redis, and return the cost of each phase."""
    with ExitStack() as stack:
        url = ""
        if contender.persistence:
            url = stack.enter_context(start_redis(aof=contender.persistence == EVERYSEC)).url
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-drive-"))
        settings = contender.settings | ({"REDIS_URL": url} if url else {})
        if "JOBDIR" in settings:
            settings["JOBDIR"] = str(Path(folder, settings["JOBDIR"]))
        count = requests or contender.requests
        return drive(Plan(contender.scheduler, settings, count, list(PHASES), url, profile))


class Driven(Part):
    """The rates of enqueue, dequeue and settle, without a crawl."""

    name = "driven"
    title = "The scheduler, driven directly"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Drive each scheduler once per repetition, in alternating order. Then measure the exchange alone."""
        runs: dict[str, list[Any]] = {name: [] for name in CONTENDERS}
        for repetition in range(REPETITIONS):
            order = list(CONTENDERS)[:: -1 if repetition % 2 else 1]
            for name in order:
                runs[name].append(run(CONTENDERS[name]))
                rates = {PHASES[phase]: f"{_rate(one):,.0f}/s" for phase, one in runs[name][-1].items()}
                tell(f"{CONTENDERS[name].title} {CONTENDERS[name].persistence}: {rates}")
        tell("a profile of scrapy_dq")
        profile = run(CONTENDERS["ours"], requests=PROFILED, profile=True)
        return {
            "runs": runs,
            "profile": profile,
            "exchange": exchange_cost.measure(REPETITIONS, tell),
            "redis": titled(),
        }

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the targets for the rates and for Redis's CPU."""
        rates = [Bar(bar, wanted, False, _ratio(found, phase, to)) for phase, to, bar, wanted in COMPARED]
        return rates + exchange_cost.bars(found["exchange"])

    def section(self, found: dict[str, Any]) -> str:
        """Return the tables."""
        return "\n\n".join([
            "Each scheduler runs in its own process, with Scrapy's engine and event loop. Requests have a "
            f"URL of 100 bytes, a callback, `depth` and one header. Requests per run: {_counts(found)}, "
            "enqueued 13 at a time and dequeued 16 at a time. Duplicates are the same requests again. With "
            "scrapy_dq, enqueue ends when Redis has stored the requests, and dequeue includes the ack.",
            _rates(found),
            f"The {SHOWN} functions of scrapy_dq with the most own time, in % of the profile:",
            _profile(found["profile"]),
            exchange_cost.section(found["exchange"]),
            f"{len(found['runs']['ours'])} repetitions. {found['redis']}, except for *functions*, on "
            "loopback.",
        ])  # fmt: skip

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw the ratios of the bars."""
        rows = [(bar, _ratio(found, phase, to), wanted) for phase, to, bar, wanted in COMPARED]
        return [bars_of_ratios(folder / "performance-driven.png", rows)]


def _rate(phase: dict[str, Any]) -> float:
    return float(phase["requests"] / phase["seconds"])


def _figures(found: dict[str, Any], name: str, phase: str, figure: Callable[[Any], float]) -> list[float]:
    return [figure(run[phase]) for run in found["runs"][name]]


def _ratio(found: dict[str, Any], phase: str, to: str) -> list[float]:
    return ratios(_figures(found, "ours", phase, _rate), _figures(found, to, phase, _rate))


def _counts(found: dict[str, Any]) -> str:
    titles: dict[int, dict[str, None]] = {}
    for name, runs in found["runs"].items():
        titles.setdefault(runs[0]["new"]["requests"], {})[CONTENDERS[name].title] = None
    return " and ".join(f"{count:,} ({'; '.join(those)})" for count, those in titles.items())


def _micro(key: str) -> Callable[[Any], float]:
    return lambda phase: float(phase[key] / phase["requests"] * 1e6)


def _rates(found: dict[str, Any]) -> str:
    rows = []
    for name in found["runs"]:
        contender = CONTENDERS[name]
        cells = [contender.title, contender.persistence or "–"]
        for phase in PHASES:
            cells.append(spread(_figures(found, name, phase, _rate)))
        for key, shown in (("client_seconds", True), ("redis_seconds", bool(contender.persistence))):
            middles = [median(_figures(found, name, phase, _micro(key))) for phase in PHASES]
            cells.append(" / ".join(f"{middle:.1f}" for middle in middles) if shown else "–")
        rows.append(cells)
    each = " / ".join(("new", "duplicate", "dequeue"))
    return markdown(
        ["scheduler", "Redis", *(f"{title} /s" for title in PHASES.values()),
         f"client CPU, µs: {each}", f"Redis CPU, µs: {each}"], rows
    )  # fmt: skip


def _profile(phases: dict[str, Any]) -> str:
    columns = []
    for phase in PHASES:
        one = phases[phase]
        columns.append(
            [f"`{name}` {own / one['seconds'] * 100:.0f}" for name, _, own in one["heaviest"][:SHOWN]]
        )
    return markdown(list(PHASES.values()), zip(*columns, strict=True))


PART = Driven()
