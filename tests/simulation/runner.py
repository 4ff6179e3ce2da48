"""Runs schedules in this process with its own redis-server."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulation import product, queue_user, store, virtual
from simulation.plan import Plan, drawn
from simulation.schedule import Report, Schedule
from support.redis_server import Kind, RedisServer

BROKEN = 3
"""Exit status of a child process in which a promise was broken."""


@dataclass
class Totals:
    """The totals of many schedules; `as_dict` and `add` carry them between processes."""

    schedules: int = 0
    calls: int = 0
    exchanges: int = 0
    simulated_s: float = 0.0
    repeats: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    """The broken promise of each failed seed."""

    def count(self, report: Report) -> None:
        """Add one schedule."""
        self.schedules += 1
        self.calls += report.calls
        self.exchanges += report.exchanges
        self.simulated_s += report.simulated_s
        self.repeats += report.repeats
        self.faults += report.faults

    def add(self, other: dict[str, Any]) -> None:
        """Add the `as_dict` of other totals, which may come from JSON."""
        for name, value in other.items():
            if name == "failures":
                self.failures |= {int(seed): message for seed, message in value.items()}
            elif isinstance(value, dict):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Runner:
    """Runs one schedule after another."""

    def __init__(self, server: store.Server) -> None:
        self._server = server

    def run(self, plan: Plan, trace: bool = False) -> tuple[Report, str]:
        """Run one schedule; return its report and the broken promise, or ""."""
        schedule = Schedule(plan, self._server, trace)
        try:
            return schedule.run(), ""
        except AssertionError as error:
            return schedule.report, str(error) or repr(error)

    def totals(self, seeds: range) -> Totals:
        """Run the plans of *seeds*."""
        totals = Totals()
        self._server.forget()
        for seed in seeds:
            report, failure = self.run(drawn(seed))
            totals.count(report)
            if failure:
                totals.failures[seed] = failure
        return totals

    def apart(self, seeds: range, then: Callable[[Totals], None]) -> bool:
        """Run *seeds* in a child, which calls *then* with the totals; return whether a promise was broken.

        Raises:
            RuntimeError: the child has failed.

        A child saves time: killed simulated processes are reference cycles, whose collection would take a
        tenth of the time. A child ends without a collection.
        """

        def run() -> None:
            then(totals := self.totals(seeds))
            sys.exit(BROKEN if totals.failures else 0)

        child = multiprocessing.get_context("fork").Process(target=run, daemon=True)
        child.start()
        child.join()
        if child.exitcode not in (0, BROKEN):
            raise RuntimeError(
                f"the child with seeds {seeds.start} to {seeds.stop} has ended: {child.exitcode}"
            )
        return child.exitcode == BROKEN


class _Unexpected(logging.Handler):
    """Records unexpected exceptions that a worker logs before it continues."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and (error := record.exc_info[1]) is not None:
            virtual.world().errors.append(error)


@contextmanager
def runner(kind: Kind | None = None, *, log: bool = False) -> Iterator[Runner]:
    """Start a redis-server and yield a Runner; time is virtual while the Runner runs a schedule."""
    if log:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.disable(logging.NOTSET if log else logging.WARNING)
    logging.getLogger().addHandler(_Unexpected())
    warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of a killed process are never awaited
    store.install()
    product.install()
    queue_user.install()
    gc.disable()
    gc.freeze()  # a collection then looks only at objects of schedules
    with RedisServer(kind, unix=True) as redis:
        yield Runner(store.Server(str(redis.socket)))
