"""One crawl of many quick domains, alone or beside a slow one, and its result."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Container, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cpu import CpuMeter
from benchmarks.redis_here import start_redis
from support.domain_site import Asked, DomainSite
from support.project import PLAIN, Project
from support.waiting import wait_until

SETTINGS = {
    # Scrapy's defaults, which Project overrides.
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
    "DOWNLOAD_DELAY": 0,
}
POLL_S = 0.1


class Contender(NamedTuple):
    """A scheduler, and the number of processes that crawl with it."""

    title: str
    workers: int
    settings: Mapping[str, Any]
    needs_redis: bool = True


AWARE = {**PLAIN, "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"}
MEMORY = "memory"
CONTENDERS = {
    MEMORY: Contender("Scrapy's, in memory", 1, AWARE, needs_redis=False),
    "disk": Contender("Scrapy's, with JOBDIR", 1, {**AWARE, "JOBDIR": "job"}, needs_redis=False),
    **{
        f"{by}-{workers}": Contender(f'scrapy_dq, "{by}"', workers, {"DQ_PARTITION_BY": by})
        for by in ("slot", "none")
        for workers in (1, 2)
    },
}


@dataclass(frozen=True)
class Crawl:
    """The result of one crawl, until its last quick page was requested or its time was up."""

    contender: str
    slow: bool
    """Whether the site had the slow domain."""
    repetition: int
    pages: int
    """Pages of quick domains."""
    seconds: float
    stopped: bool
    """The crawl's time was up before all quick pages were requested."""
    worker_seconds: float
    """CPU time of all workers since the first request."""
    redis_seconds: float
    """CPU time of Redis since the first request; 0 without Redis."""
    slow_pages: int = 0
    """Pages of the slow domain that were requested in the same time."""
    slow_at_once: int = 0
    """The maximum number of slow pages that were in progress at the same time."""
    complaints: int = 0
    """Warnings and errors in the workers' logs."""

    @property
    def rate(self) -> float:
        """Quick pages per second."""
        return self.pages / self.seconds

    @property
    def worker_ms(self) -> float:
        """CPU time of the workers per quick page."""
        return self.worker_seconds / self.pages * 1000

    @property
    def redis_ms(self) -> float:
        """CPU time of Redis per quick page."""
        return self.redis_seconds / self.pages * 1000


def crawl(name: str, slow: bool, repetition: int, options: argparse.Namespace) -> Crawl:
    """Crawl a new site, and stop the crawl after all quick pages are requested."""
    contender = CONTENDERS[name]
    with ExitStack() as stack:
        site = stack.enter_context(
            DomainSite(
                count=options.domains - 1,
                pages=options.pages,
                latency_s=options.latency,
                slow_count=int(slow),
                slow_pages=options.slow_pages,
                slow_s=options.slow_latency,
            )
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-domains-")))
        redis = None
        if contender.needs_redis:
            redis = stack.enter_context(start_redis(aof=True))
        project = Project(
            folder / "project",
            site.start_urls,
            redis_url=redis.url if redis else None,
            settings={**SETTINGS, **contender.settings},
        )
        stack.callback(project.close)
        workers = project.start_workers(contender.workers)
        wait_until(lambda: site.counts() or not _running(project), "the first request", 60)
        _check(project)
        of_workers = CpuMeter(worker.pid for worker in workers)
        of_redis = CpuMeter([redis.pid] if redis else [])
        stopped = not _all_asked(site, project, options.deadline, of_workers)
        now_s, log = time.monotonic(), site.log()
        worker_seconds, redis_seconds = of_workers.seconds(), of_redis.seconds()
        complaints = sum(len(re.findall(r" (?:WARNING|ERROR|CRITICAL): ", w.text)) for w in workers)
        quick = set(site.domains.quick_hosts)
    until_s = now_s if stopped else max(asked.at_s for asked in log if asked.host in quick)
    of_slow = [asked for asked in log if asked.host not in quick and asked.at_s <= until_s]
    return Crawl(
        name,
        slow,
        repetition,
        pages=len(_pages(log, quick)),
        seconds=until_s - log[0].at_s,
        stopped=stopped,
        worker_seconds=worker_seconds,
        redis_seconds=redis_seconds,
        slow_pages=len(of_slow),
        slow_at_once=max((asked.at_once for asked in of_slow), default=0),
        complaints=complaints,
    )


def _all_asked(site: DomainSite, project: Project, deadline_s: float, meter: CpuMeter) -> bool:
    """Wait until all quick pages were requested. Return whether this happened within *deadline_s*."""
    deadline = time.monotonic() + deadline_s
    quick = set(site.domains.quick_hosts)
    pages = len(quick) * site.domains.pages
    while time.monotonic() < deadline:
        asked = sum(count for host, count in site.counts().items() if host in quick)
        # The counts include repeated requests, so look into the log.
        if asked >= pages and len(_pages(site.log(), quick)) == pages:
            return True
        _check(project)
        meter.seconds()  # reads the CPU time now, because a worker may soon end
        time.sleep(POLL_S)
    return False


def _check(project: Project) -> None:
    if not _running(project):
        raise RuntimeError(f"the crawl ended too early:\n{project.workers[0].text[-2000:]}")


def _running(project: Project) -> bool:
    return any(worker.running for worker in project.workers)


def _pages(log: Iterable[Asked], hosts: Container[str]) -> set[tuple[str, str]]:
    return {(asked.host, asked.target) for asked in log if asked.host in hosts}
