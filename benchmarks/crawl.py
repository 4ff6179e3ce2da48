"""One whole crawl of a catalogue by the processes of one scheduler, and its cost."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.catalogue import LINKS, CatalogueSite
from benchmarks.cpu import CpuMeter
from benchmarks.distance import Distance
from benchmarks.redis_here import start_redis, used_seconds
from support.project import PLAIN, Project
from support.redis_server import RedisServer
from support.worker import Worker

PAGES = 5_000
SETTINGS = {
    "CONCURRENT_REQUESTS": 32,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
    "ITEM_PIPELINES": {},
}
SPIDER = """\
from benchmarks.catalogue_spider import CatalogueSpider
from tree_project.settings import SPIDER_NAME


class ProjectSpider(CatalogueSpider):
    name = SPIDER_NAME
"""
LONGEST_S = 120.0
RUN_SCRIPTS = ("eval", "evalsha", "fcall")
"""Commands that run scripts."""
HEAD_PAGES = 1 + LINKS
"""The number of first pages, which have only new links. The rate of a stopped crawl leaves them out."""


class Contender(NamedTuple):
    """A scheduler, and the number of processes that crawl with it."""

    title: str
    workers: int
    settings: Mapping[str, Any]
    needs_redis: bool = True
    command: tuple[str, ...] = ("crawl",)
    """The command of `scrapy`, before the name of the spider."""


SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
}
MEMORY, DISK, PEER, OURS, OURS_TWICE = "memory", "disk", "scrapy-redis", "ours", "ours-2"
OURS_TUNED, OURS_UNTUNED, OURS_UVLOOP = "ours-tuned", "ours-untuned", "ours-uvloop"
CONTENDERS = {
    MEMORY: Contender("Scrapy in memory", 1, PLAIN, needs_redis=False),
    DISK: Contender("Scrapy with JOBDIR", 1, {**PLAIN, "JOBDIR": "job"}, needs_redis=False),
    PEER: Contender("scrapy-redis", 1, SCRAPY_REDIS),
    OURS: Contender("scrapy_dq", 1, {}),
    OURS_TUNED: Contender("scrapy_dq, by `scrapy dq crawl -w 1`", 1, {}, command=("dq", "crawl", "-w", "1")),
    OURS_UNTUNED: Contender("scrapy_dq, `DQ_TUNE_GC = False`", 1, {"DQ_TUNE_GC": False}),
    OURS_UVLOOP: Contender("scrapy_dq, with uvloop", 1, {"ASYNCIO_EVENT_LOOP": "uvloop.Loop"}),
    OURS_TWICE: Contender("scrapy_dq", 2, {}),
}


@dataclass(frozen=True)
class Crawl:
    """The cost of one crawl."""

    contender: str
    round_trip_ms: float
    """Milliseconds that a proxy adds to a round trip to Redis; 0 without a proxy."""
    repetition: int
    pages: int
    """Pages that were requested."""
    left_out: int
    """The number of first pages that the rate leaves out."""
    seconds: float
    """Seconds from the first to the last request for the other pages."""
    whole_seconds: float
    """Seconds from the start of the processes to their end."""
    worker_s: float
    """CPU time of all workers, from the start of the spider to its end."""
    redis_s: float
    """CPU time of Redis; 0 without Redis."""
    site_s: float
    proxy_s: float
    ping_ms: float
    """Milliseconds of a PING through the proxy; 0 without a proxy."""
    stopped: bool = False
    """Whether the crawl was stopped before its end."""
    links: int = LINKS
    """Links on each page."""
    calls: int = 0
    """Scripts that Redis has run: the exchanges, and one heartbeat each second."""

    @property
    def rate(self) -> float:
        """Pages per second."""
        return (self.pages - self.left_out - 1) / self.seconds


Beside = Callable[[Path, str, str], AbstractContextManager[Any]]


def crawl(
    name: str,
    round_trip_ms: float,
    repetition: int,
    stop_after_s: float = 0,
    beside: Beside | None = None,
    links: int = LINKS,
) -> Crawl:
    """Crawl a new catalogue with a new Redis. Stop after *stop_after_s* if it is not 0.

    Args:
        links: the number of links on each page.
        beside: a function that returns a context for the duration of the crawl. Its arguments are a folder,
            the URL of Redis, and the name of the crawl.
    Raises:
        RuntimeError: a page was crawled twice, or never in a crawl that was not stopped.
    """
    contender = CONTENDERS[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-crawls-")))
        site = stack.enter_context(CatalogueSite(PAGES, links))
        redis = proxy = None
        ping_ms = 0.0
        if contender.needs_redis:
            redis = stack.enter_context(start_redis(aof=True))
            if round_trip_ms:
                proxy = stack.enter_context(Distance(redis.port, round_trip_ms))
                ping_ms = proxy.ping_ms()
        url = proxy.redis_url if proxy else redis.url if redis else None
        settings = {
            **SETTINGS,
            **contender.settings,
            "NOTES": str(folder),
            "CLOSESPIDER_TIMEOUT": stop_after_s,
        }
        project = Project(
            folder / "project", [site.start_url], redis_url=url, settings=settings, spider=SPIDER
        )
        stack.callback(project.close)
        if beside is not None:
            stack.enter_context(beside(folder, url or "", project.name))
        of_site, of_proxy = CpuMeter([site.pid]), CpuMeter([proxy.pid] if proxy else [])
        redis_began, calls_before = _used(redis)
        began = time.monotonic()
        for number in range(contender.workers):
            command, output = project.command(*contender.command, project.name), folder / f"{number}.log"
            project.workers.append(Worker(command, project.folder, output, project.environ()))
        project.wait(LONGEST_S)
        ended = time.monotonic()
        redis_ended, calls = _used(redis)
        site_s, proxy_s = of_site.seconds(), of_proxy.seconds()
        log = site.log()
        notes = [json.loads(note.read_text()) for note in folder.glob("*.json")]
    reasons = [note["reason"] for note in notes]
    stopped = "closespider_timeout" in reasons
    _check(name, reasons, [path for _, path in log], stopped)
    left_out = HEAD_PAGES if stopped else 0
    times = sorted(at_s for at_s, _ in log)
    return Crawl(
        name,
        round_trip_ms,
        repetition,
        pages=len(times),
        left_out=left_out,
        seconds=times[-1] - times[left_out],
        whole_seconds=ended - began,
        worker_s=sum(note["cpu_s"] for note in notes),
        redis_s=redis_ended - redis_began,
        site_s=site_s,
        proxy_s=proxy_s,
        ping_ms=ping_ms,
        stopped=stopped,
        links=links,
        calls=calls - calls_before,
    )


def _check(name: str, reasons: list[str], paths: list[str], stopped: bool) -> None:
    missing = 0 if stopped else PAGES - len(set(paths))
    twice = len(paths) - len(set(paths))
    if missing or twice or set(reasons) - {"finished", "closespider_timeout"} or len(paths) < 2 * HEAD_PAGES:
        raise RuntimeError(
            f"{name}: of {PAGES} pages {missing} were never crawled, {twice} twice; closed with {reasons}"
        )


def _used(server: RedisServer | None) -> tuple[float, int]:
    """Return the CPU time of Redis so far, and the number of scripts that it has run."""
    if server is None:
        return 0.0, 0
    with server.client() as client:
        commands: Any = client.info("commandstats")
        calls = sum(commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in RUN_SCRIPTS)
        return used_seconds(client), calls
