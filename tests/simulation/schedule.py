"""One schedule: everything in it follows from its seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Order
from simulation import faults, virtual
from simulation.crawler import Crawler, Site
from simulation.store import CRAWL, Network, Rates, Store
from support.stored import stored_state

FAULTS_END_S = 20.0
"""No fault strikes later, so that the crawl must come to its end."""
MOST_S = 600.0
KEPT = {b"meta", b"seen", b"absent", b"limits", b"beats"}
"""Keys of a crawl that may be left when its run is finished."""
HARMLESS = {"scripts", "cut", "worker-clock", "redis-clock", "away", "redis-frozen", "full"}
"""Faults that cost no page, and have none processed twice."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Report:
    """What happened in a schedule."""

    seed: int
    pages: int = 0
    calls: int = 0
    simulated_s: float = 0.0
    repeats: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


class Schedule:
    """Two to five workers on one site, and the faults that strike them."""

    def __init__(self, seed: int, socket: str) -> None:
        self.report = Report(seed)
        self.world = virtual.begin(seed)
        random = self.world.random
        self.store = Store(socket, self.world)
        # Rates are drawn, too: so there are quiet schedules with a single fault.
        rates = Rates(*(random.choice((0.0, 0.0, 0.01, 0.1)) for _ in range(3)))
        self.network = Network(self.world, self.store, rates)
        self.site = Site(self.world, random.randint(5, 60))
        self.crawlers: list[Crawler] = []
        self._starting = 0
        for _ in range(random.randint(2, 5)):
            self.start_later(1.0)
        kinds = random.sample(faults.EACH, random.choice((0, 1, 1, 2, 4)))
        for fault in kinds:
            for _ in range(random.choice((1, 1, 3))):
                when = random.uniform(0.0, random.choice((1.0, 3.0, FAULTS_END_S / 2)))
                self.world.at(self.world.now + when, lambda fault=fault: fault(self))
        for _ in range(3):
            self.world.at(self.world.now + random.uniform(0.0, 5.0), self._check_store)
        self.world.at(virtual.BEGIN_S + FAULTS_END_S, self._end_faults)

    def run(self) -> Report:
        """Run it to its end; raise Violation or Endless."""
        try:
            self.world.run(self._ended, virtual.BEGIN_S + MOST_S)
            self._check_end()
        finally:
            self.store.close()
        report = self.report
        report.pages, report.calls = len(self.site.links), self.network.calls
        report.simulated_s = self.world.now - virtual.BEGIN_S
        report.repeats = sum(self.site.crawled.values()) - len(self.site.crawled)
        return report

    # For faults.

    def struck(self, fault: str, details: str = "") -> None:
        """Note that a fault strikes now."""
        self.report.faults[fault] += 1
        self._note(f"{fault} {details}")

    def start_later(self, within_s: float = 5.0) -> None:
        """Start a worker after a while."""
        self._starting += 1
        self.world.at(self.world.now + self.world.random.uniform(0.0, within_s), self._start)

    def _start(self) -> None:
        self._starting -= 1
        if "finished" in self._endings() and not self._gone_on():
            return  # it would begin the next run
        self.crawlers.append(Crawler(self.network, self.site, f"worker{len(self.crawlers)}"))
        self._note(f"{self.crawlers[-1].process.name} starts")

    def _note(self, what: str) -> None:
        self.report.trace.append(f"{self.world.now - virtual.BEGIN_S:9.4f} {what}")

    def _end_faults(self) -> None:
        self.network.rates = Rates()

    # Checks.

    def _ended(self) -> bool:
        if self._starting or any(each.there for each in self.crawlers):
            return False
        # As a user would: until a crawl has finished, the command is given again.
        if "finished" in self._endings() and not self._gone_on():
            return True
        self.start_later(1.0)
        return False

    def _gone_on(self) -> bool:
        """Tell whether something of the crawl is left that the next command would take up."""
        return bool(self.store.redis.hget(keys.meta(CRAWL), "phase") == b"open")

    def _check_store(self) -> None:
        try:
            stored_state(self.store.redis, CRAWL, Order.FIFO, strict=False)
        except AssertionError as error:
            raise Violation(f"the stored state is wrong: {error!r}") from error

    def _check_end(self) -> None:
        missing = [page for page in range(len(self.site.links)) if not self.site.crawled[page]]
        if missing:
            raise Violation(f"pages {missing} were never crawled; endings: {self._endings()}")
        harmful = sum(n for name, n in self.report.faults.items() if name not in HARMLESS)
        # A worker that starts at the very end begins the next run.
        runs = max(1, len(set().union(*(each.runs for each in self.crawlers))))
        again = {page: times for page, times in self.site.crawled.items() if times > runs + harmful}
        if again:
            raise Violation(
                f"after {harmful} faults that may cost repeats, pages were crawled again: {again}"
            )
        # A worker that dies when nothing is left stays a member until the next run begins.
        # So does one that has given up, and whose join arrives later, or whose leave was rolled back.
        rolled_back = self.report.faults["roll-back"] + self.report.faults["fail-over"] > 0
        killed = {
            worker_id.encode()
            for each in self.crawlers
            for worker_id in each.ids
            if rolled_back or not each.process.alive or each.ending.startswith("not started")
        }
        left = {key.rpartition(b"}:")[2] for key in self.store.names()} - KEPT
        left -= {b"members", *(b"worker:" + each for each in killed)} if killed else set()
        if left:
            raise Violation(f"keys are left: {left}; endings: {self._endings()}")

    def _endings(self) -> list[str]:
        return [each.ending or "killed" for each in self.crawlers]


def run(seed: int, socket: str) -> Report:
    """Run one schedule."""
    return Schedule(seed, socket).run()


def digest(report: Report) -> tuple[Any, ...]:
    """Return what must be equal if a seed is run again."""
    return report.calls, report.simulated_s, report.repeats, tuple(report.trace)
