"""One crawl of a tree with faults, and its results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import Overview
from scrapy_dq.frontier.admin.overview import peek
from support.project import Project
from support.proxy import RedisProxy
from support.tree_site import TreeSite
from support.waiting import wait_until
from support.worker import Worker

FIGURES = "figures"
"""The property of a test's report that has the test's figures, such as counts of pages and repeats."""


@dataclass(frozen=True)
class Verdict:
    """The results of a crawl."""

    pages: int
    lost: frozenset[str]
    """Pages that no callback has finished."""
    repeats: int
    """How often a callback finished a page that was already finished."""
    reasons: tuple[str | None, ...]
    """Close reasons of workers that were not killed, in the order of their start."""
    leases_left: int
    """Leases that are still held."""


class FaultCrawl:
    """A project, its site, its Redis, and the workers that a test has started."""

    def __init__(
        self,
        project: Project,
        site: TreeSite,
        redis: Any,
        proxy: RedisProxy | None = None,
        note: Callable[..., object] | None = None,
    ) -> None:
        """
        Args:
            redis: a RedisServer, a Cluster or Sentinels, or None for an embedded Redis.
            proxy: the proxy between the workers and Redis, if there is one.
            note: a function that records figures, such as `figures` in tests/faults/conftest.py.
        """
        self.project = project
        self.site = site
        self.redis = redis
        self.redis_url = redis.url if redis else ""
        """The URL of the Redis server itself, without a proxy."""
        self._proxy = proxy
        self.note = note or (lambda *_, **__: None)
        self.killed: set[int] = set()
        self.leases_at_kills = 0

    @property
    def proxy(self) -> RedisProxy:
        """The crawl's proxy. The crawl must have a proxy."""
        assert self._proxy is not None
        return self._proxy

    @property
    def pages(self) -> int:
        return len(self.site.paths)

    @property
    def done(self) -> Counter[str]:
        """How often each page has been finished so far."""
        return self.project.count("done")

    @property
    def live(self) -> list[Worker]:
        """The workers that still run."""
        return [worker for worker in self.project.workers if worker.running]

    def start(self, count: int = 1, **options: Any) -> list[Worker]:
        """Start *count* workers with the *options* of `Project.start_worker`."""
        return self.project.start_workers(count, **options)

    def wait_for(self, pages: int, timeout_s: float = 60.0) -> None:
        """Wait until this many different pages are done."""
        wait_until(lambda: len(self.done) >= pages, f"{pages} pages are done", timeout_s)

    def wait_for_part(self, part: float, timeout_s: float = 60.0) -> None:
        """Wait until *part* (0 to 1) of all pages is done."""
        self.wait_for(int(part * self.pages), timeout_s)

    def overview(self) -> Overview:
        """Read the frontier from the server, without the proxy."""
        with connect_url(self.redis_url) as client:
            return peek(client, self.project.name)

    def leases(self, pids: Collection[int] | None = None) -> int:
        """Return the number of leases of the workers with these pids, or of all workers if *pids* is None."""
        members = self.overview().members
        return sum(m.in_flight for m in members if pids is None or m.identity.get("pid") in pids)

    def kill(self, worker: Worker) -> None:
        """Kill *worker* with SIGKILL and add its leases to `leases_at_kills`."""
        # Freeze the worker first. Then its sent commands arrive before its leases are counted. Until it is
        # killed, other workers see that its process exists, and do not take its leases.
        worker.suspend()
        wait_until(lambda: worker.suspended or not worker.running, "the worker is frozen")
        time.sleep(0.05)
        self.leases({worker.pid})  # after this call, Redis has applied the worker's commands
        self.leases_at_kills += self.leases({worker.pid})
        worker.kill()
        self.killed.add(worker.pid)

    def end(self, timeout_s: float = 60.0) -> Verdict:
        """Wait until all workers have ended, within one deadline. Return the verdict."""
        deadline = time.monotonic() + timeout_s
        for worker in self.project.workers:
            worker.wait(deadline - time.monotonic())
        return self.verdict()

    def end_whole(
        self, may_repeat: int = 0, *, workers: int = 2, timeout_s: float = 60.0, **figures: Any
    ) -> Verdict:
        """Wait for the end, record *figures*, and assert that no page and no item is lost.

        Args:
            may_repeat: the maximum number of repeats (see `Verdict`).
            workers: the number of workers that must have closed with `finished`. All others were killed.
        """
        verdict = self.end(timeout_s)
        self.note(verdict, may_repeat=may_repeat, **figures)
        self.assert_whole(verdict, may_repeat, workers)
        return verdict

    def assert_whole(self, verdict: Verdict, may_repeat: int = 0, workers: int = 2) -> None:
        """Make the assertions of `end_whole`."""
        assert not verdict.lost
        assert verdict.repeats <= may_repeat
        assert verdict.reasons == ("finished",) * workers
        assert verdict.leases_left == 0
        items = self.project.count("item")
        assert not items or set(items) == self.site.paths  # the spider may yield no items

    def verdict(self) -> Verdict:
        """Count the results so far."""
        done = self.done
        return Verdict(
            pages=self.pages,
            lost=frozenset(self.site.paths - set(done)),
            repeats=sum(done.values()) - len(done),
            reasons=tuple(w.close_reason for w in self.project.workers if w.pid not in self.killed),
            leases_left=self.leases() if self.redis_url else 0,
        )
