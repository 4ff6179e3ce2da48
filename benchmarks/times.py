"""Part `times` measures the reclaim of a dead worker's leases, and the start with many waiting requests."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from scrapy import Request

from benchmarks.fill import QuickWorker
from benchmarks.part import Bar, Part
from benchmarks.redis_here import start_redis, titled
from benchmarks.sample import frame, puts, token
from benchmarks.tables import markdown, ratios, spread
from scrapy_dq.codec import Codec
from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.model import MAX_LEASES, Admission, Identity, Order
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.reclaim import DRAIN_LIMIT, Reclaimer
from support.project import PLAIN, Project
from support.tree_site import TreeSite
from support.tree_spider import TreeSpider
from support.waiting import wait_until

LEASES = 100_000
PENDING = [10, 1_000_000]
REPETITIONS = 3
MAX_ATTEMPTS = 3
COMMANDS = ("version", "dq status")
"""Commands of `scrapy`. The first one is the standard with which the others are compared."""
COMMANDS_REPETITIONS = 10
WANTED_STATUS = 1.15
"""Maximum ratio of a command's CPU time to the CPU time of `scrapy version`."""


class TimedFrontier(Frontier):
    """Records how long the longest drain takes."""

    longest_s = 0.0

    async def drain(self, *args: Any) -> tuple[int, int, int]:
        """Drain, as Frontier does."""
        began = time.perf_counter()
        try:
            return await super().drain(*args)
        finally:
            self.longest_s = max(self.longest_s, time.perf_counter() - began)


async def reclaim() -> dict[str, float]:
    """Return the time in which LEASES leases are reclaimed, and the time of the longest call."""
    with start_redis() as server:
        dead = QuickWorker(server.url)
        await dead.join()
        await dead.fill(puts(range(LEASES)))
        for _ in range(0, LEASES, MAX_LEASES):
            await dead.exchange([], MAX_LEASES)
        await dead.close()
        client = redis.asyncio.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0))
        frontier = TimedFrontier(client, "benchmark", Order.PRIORITY_LIFO)
        moved: list[int] = []
        reclaimer = Reclaimer(frontier, own_identity(), MAX_ATTEMPTS, moved.append)
        began = time.perf_counter()
        await reclaimer.reclaim("worker", dead.epoch, dead.run, "the benchmark says so")
        seconds = time.perf_counter() - began
        await client.aclose()
    if moved != [LEASES]:
        raise RuntimeError(f"{moved} of {LEASES} leases were reclaimed")
    return {"seconds": seconds, "longest_call_seconds": frontier.longest_s}


def waiting(site: TreeSite, numbers: range) -> Iterator[Put]:
    """Yield puts of pages of *site*, as the crawl of a Project stores them."""

    def url(n: int) -> str:
        return site.url(f"/p/{n:07d}")

    spider = TreeSpider(name="any")
    before, after = frame(Codec(spider).encode(Request(url(0), spider.parse)), url(0))
    for n in numbers:
        payload = before + url(n).encode() + after
        yield Put(b"%012d" % n, Admission.SEEN, token(n), 0, False, payload, partition=b"127.0.0.1")


async def fill(url: str, project: Project, site: TreeSite, numbers: range) -> None:
    """Put pages with these numbers into the crawl of *project*, where they wait."""
    identity = Identity(
        "scrapy.utils.request.RequestFingerprinter",
        "tree_project.spiders.spider.ProjectSpider",
        "{}",
        partition_by="slot",
    )
    worker = QuickWorker(url, project.name, identity)
    await worker.join()
    await worker.fill(waiting(site, numbers))
    await worker.close(leave=True)


def first_request(project: Project, site: TreeSite) -> float:
    """Return the seconds from the start of `scrapy crawl` to its first request at the site."""
    site.reset()
    asked_at = time.monotonic()
    site.get("/mark")
    mark = site.log()[0]
    began = time.monotonic()
    worker = project.start_worker()
    wait_until(lambda: len(site.log()) > 1 or not worker.running, "the first request", 30)
    # The mark shows the offset between the site's clock and ours. A request on loopback takes hardly any
    # time.
    seconds = site.log()[1].at_s - mark.at_s - (began - asked_at)
    worker.kill()
    return seconds


def starts(tell: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the times to the first request by number of waiting requests, or by "memory": Scrapy's own."""
    found: dict[str, list[float]] = {"memory": [], **{str(pending): [] for pending in PENDING}}
    with ExitStack() as stack:
        site = stack.enter_context(TreeSite(latency_s=5.0))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-times-")))
        redis_url = stack.enter_context(start_redis()).url

        def project(name: str, pending: int = 0) -> Project:
            where: dict[str, Any] = {"redis_url": redis_url} if pending else {"settings": PLAIN}
            made = Project(folder / name, [site.start_url], **where)
            stack.callback(made.close)
            if pending:
                asyncio.run(fill(redis_url, made, site, range(pending)))
            return made

        few, many = PENDING
        crawls = {"memory": project("memory"), str(many): project("many", many)}
        tell(f"{many:,} wait")
        for repetition in range(REPETITIONS):
            # A crawl with few requests soon has no requests left. So each repetition makes a new crawl.
            crawls[str(few)] = project(f"few-{repetition}", few)
            for name in list(found)[:: -1 if repetition % 2 else 1]:
                found[name].append(first_request(crawls[name], site))
            tell(f"first request: {found}")
    return found


def commands(tell: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the seconds of CPU of each of COMMANDS, with a few waiting requests."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with ExitStack() as stack:
        site = stack.enter_context(TreeSite())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-times-")))
        redis_url = stack.enter_context(start_redis()).url
        project = Project(folder / "project", [site.start_url], redis_url=redis_url)
        stack.callback(project.close)
        asyncio.run(fill(redis_url, project, site, range(PENDING[0])))
        environ = project.environ()
        del environ["PYTHONDONTWRITEBYTECODE"]  # so that scrapy_dq is compiled, as an installed package is
        for repetition in range(COMMANDS_REPETITIONS + 1):
            for name in list(found)[:: -1 if repetition % 2 else 1]:
                command = project.command(*name.split(), *[project.name] * (name != "version"))
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(command, cwd=project.folder, env=environ, check=True, capture_output=True)
                if repetition:
                    used = resource.getrusage(resource.RUSAGE_CHILDREN)
                    cpu_s = used.ru_utime - before.ru_utime + used.ru_stime - before.ru_stime
                    found[name].append(cpu_s)
    tell(f"commands: {found}")
    return found


class Times(Part):
    """The times of a reclaim, of the start of a crawl, and of commands."""

    name = "times"
    title = "Reclaim, and start"

    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Reclaim on a new Redis each time. Start crawls and run commands in alternating order."""
        reclaims = []
        for _ in range(REPETITIONS):
            reclaims.append(asyncio.run(reclaim()))
            tell(f"reclaim: {reclaims[-1]}")
        measured = {"starts": starts(tell), "commands": commands(tell)}
        return {"reclaim": reclaims, **measured, "redis": titled()}

    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the target for the CPU time of `scrapy dq status`."""
        version, *ours = COMMANDS
        figure = "CPU of the process: `scrapy {}` / `scrapy {}`"
        of = found.get("commands", dict.fromkeys(COMMANDS, ()))  # not in samples before 2026-11-27
        return [
            Bar(figure.format(name, version), WANTED_STATUS, True, ratios(of[name], of[version]))
            for name in ours
        ]

    def section(self, found: dict[str, Any]) -> str:
        """Return the tables."""
        whole = [each["seconds"] for each in found["reclaim"]]
        longest = [each["longest_call_seconds"] * 1000 for each in found["reclaim"]]
        return "\n\n".join([
            f"A worker dies with {LEASES:,} requests in flight. Another worker reclaims them in "
            f"{spread(whole, 2)} s, {DRAIN_LIMIT} per call. The longest call took {spread(longest, 1)} ms; "
            "Redis serves other clients between the calls.",
            "Time from the start of `scrapy crawl` to the first request at the site:",
            _starts(found["starts"]),
            *_commands(found.get("commands", {})),
            f"{len(whole)} repetitions (commands: {COMMANDS_REPETITIONS}). {found['redis']}, no AOF.",
        ])  # fmt: skip

    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw nothing, because there is little to see."""
        return []


def _starts(found: dict[str, list[float]]) -> str:
    titles = {"memory": "Scrapy, in memory"}
    rows = [
        [
            titles.get(name) or f"scrapy_dq, {int(name):,} waiting",
            spread(seconds, 2),
            spread(ratios(seconds, found["memory"]), 2),
        ]
        for name, seconds in found.items()
    ]
    return markdown(["scheduler", "seconds", "against Scrapy in memory"], rows)


def _commands(found: dict[str, list[float]]) -> Iterator[str]:
    if not found:
        return
    version = found[COMMANDS[0]]
    rows = [
        [f"`scrapy {name}`", spread(seconds, 2), spread(ratios(seconds, version), 2)]
        for name, seconds in found.items()
    ]
    yield "CPU time of commands. `scrapy dq status` also watches the crawl for a second:"
    yield markdown(["command", "CPU, s", f"against `scrapy {COMMANDS[0]}`"], rows)


PART = Times()
