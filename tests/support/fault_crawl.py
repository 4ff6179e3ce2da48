"""One crawl of a tree under faults, and its verdict: the same for scrapy_dq and for its peers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scrapy_dq.backend.connection import connect_url
from scrapy_dq.frontier import Overview
from scrapy_dq.frontier.admin.overview import peek
from support.project import PLAIN, Project
from support.tree_site import TreeSite
from support.waiting import wait_until
from support.worker import Worker

Contender = Literal["scrapy_dq", "scrapy-redis", "JOBDIR", "JOBDIR-SQLite", "Crawlee"]
CONTENDERS: dict[Contender, Mapping[str, Any]] = {
    "scrapy_dq": {},
    "scrapy-redis": {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        # Without it the first worker that closes deletes the queue of the others.
        "SCHEDULER_PERSIST": True,
    },
    "JOBDIR": {**PLAIN, "JOBDIR": "job"},
    # Since Scrapy 2.19.
    "JOBDIR-SQLite": {
        **PLAIN, "JOBDIR": "job", "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoSQLiteQueue",
    },
    # Not a scheduler of Scrapy: support/crawlee_crawl.py.
    "Crawlee": {},
}  # fmt: skip
"""The settings of each scheduler; settings of Project are added."""
LOCAL = ("JOBDIR", "JOBDIR-SQLite")
"""Those without a Redis: one worker at a time."""
FIGURES = "figures"
"""The name of what a test has measured, among the properties of its report."""


@dataclass(frozen=True)
class Verdict:
    """The results for the pages."""

    pages: int
    lost: frozenset[str]
    """Pages that no callback has ever finished."""
    repeats: int
    """How often a callback finished a page that had been finished before."""
    reasons: tuple[str | None, ...]
    """Close reasons of the workers that ended by themselves, in the order of their start."""
    leases_left: int
    """Leases that are still held; 0 for a scheduler without leases."""


def assert_whole(verdict: Verdict, may_repeat: int = 0, *, workers: int = 2) -> None:
    """Assert that no page is lost, that so many workers have finished, and how much was repeated at most."""
    assert not verdict.lost
    assert verdict.repeats <= may_repeat
    assert verdict.reasons == ("finished",) * workers
    assert verdict.leases_left == 0


class FaultCrawl:
    """A project, its site and its Redis, and the workers that were started for it."""

    def __init__(
        self, project: Project, site: TreeSite, redis_url: str = "", contender: Contender = "scrapy_dq"
    ) -> None:
        self.project = project
        self.site = site
        self.redis_url = redis_url
        """Connects directly to the Redis server, without any proxy."""
        self.contender: Contender = contender
        self.killed: set[int] = set()
        self.leases_at_kills = 0

    @property
    def pages(self) -> int:
        return len(self.site.paths)

    @property
    def done(self) -> Counter[str]:
        """How often each page was finished so far."""
        return self.project.count("done")

    @property
    def live(self) -> list[Worker]:
        """The workers that run."""
        return [worker for worker in self.project.workers if worker.running]

    def start(self, count: int = 1, **options: Any) -> list[Worker]:
        """Start *count* workers; *options* as for `Project.start_worker`."""
        return self.project.start_workers(count, **options)

    def wait_for(self, pages: int, timeout_s: float = 60.0) -> None:
        """Wait until this many different pages are done."""
        wait_until(lambda: len(self.done) >= pages, f"{pages} pages are done", timeout_s)

    def wait_for_part(self, part: float, timeout_s: float = 60.0) -> None:
        """Wait until *part* (0 to 1) of all pages is done."""
        self.wait_for(int(part * self.pages), timeout_s)

    def overview(self) -> Overview:
        """Read the frontier directly from the server."""
        with connect_url(self.redis_url) as client:
            return peek(client, self.project.name)

    def leases_of(self, pids: Collection[int]) -> int:
        """Return how many leases the workers of these processes hold."""
        return sum(m.in_flight for m in self.overview().members if m.identity.get("pid") in pids)

    def leases(self) -> int:
        """Return how many leases all workers hold."""
        return sum(member.in_flight for member in self.overview().members)

    def kill(self, worker: Worker) -> None:
        """Kill *worker* with SIGKILL, and add what it held to `leases_at_kills`."""
        if self.contender == "scrapy_dq":
            # Frozen first: when this is counted, what it has sent is there, and nobody has found it dead and
            # taken what it held.
            worker.suspend()
            wait_until(lambda: worker.suspended or not worker.running, "the worker has stopped")
            time.sleep(0.05)
            self.leases_of({worker.pid})  # by then Redis has read what it had sent
            self.leases_at_kills += self.leases_of({worker.pid})
        worker.kill()
        self.killed.add(worker.pid)

    def end(self, timeout_s: float = 60.0) -> Verdict:
        """Wait until every worker has ended by itself, within one deadline."""
        deadline = time.monotonic() + timeout_s
        for worker in self.project.workers:
            worker.wait(deadline - time.monotonic())
        return self.verdict()

    def verdict(self) -> Verdict:
        """Count what was done up to now."""
        done = self.done
        leases = 0
        if self.contender == "scrapy_dq" and self.redis_url:
            leases = self.leases()
        return Verdict(
            pages=self.pages,
            lost=frozenset(self.site.paths - set(done)),
            repeats=sum(done.values()) - len(done),
            reasons=tuple(w.close_reason for w in self.project.workers if w.pid not in self.killed),
            leases_left=leases,
        )
