"""A worker's figures for the history of its crawl, and the times of its reports (transitions/report.lua)."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy_dq.frontier.answers import Figures
from scrapy_dq.frontier.worker.outage import Wait

REPORT_EVERY_S = 10.0
NOTED_S = 1.0
"""Shorter outages are not reported: a single lost answer causes one."""


@dataclass(frozen=True)
class Report:
    """A report that is due."""

    counted: Figures
    """Figures since the last report."""
    ended_s: float
    """Seconds of the longest outage that has ended since the last report; 0: none worth noting."""
    wait: Wait | None
    """The outage that is under way."""
    totals: tuple[Figures, int]


class Counting:
    """Counts on the event loop; the heartbeat's thread reads the counts.

    The loop only adds, and the thread subtracts its last report: no lock is necessary.
    """

    def __init__(self) -> None:
        self._totals = Figures()
        self._outages: list[float] = []
        # Used by the thread only.
        self._reported = (Figures(), 0)
        self._why = ""
        self._due_at = 0.0

    def answered(self, seconds: float, outage_s: float) -> None:
        """Count an answer after *seconds*; *outage_s*: seconds of the outage that it ends."""
        was = self._totals
        self._totals = Figures(
            was.exchanges + 1, was.exchange_s + seconds, was.errors, was.outage_s + outage_s
        )
        if outage_s >= NOTED_S:
            self._outages.append(outage_s)

    @property
    def longest_outage_s(self) -> float:
        """The longest outage worth noting, in seconds; 0: none."""
        return max(self._outages, default=0.0)

    def failed(self) -> None:
        """Count a call without a usable answer."""
        was = self._totals
        self._totals = Figures(was.exchanges, was.exchange_s, was.errors + 1, was.outage_s)

    def due(self, now: float, wait: Wait | None = None) -> Report | None:
        """Return the report due at *now* (monotonic seconds): every 10 s, and when an outage begins or ends.

        Args:
            wait: the outage that is under way.
        """
        if wait is not None and now - wait.since < NOTED_S:
            wait = None
        (was, noted), totals, outages = self._reported, self._totals, len(self._outages)
        if now < self._due_at and outages == noted and self._why == (wait.why if wait else ""):
            return None
        counted = Figures(
            totals.exchanges - was.exchanges, totals.exchange_s - was.exchange_s,
            totals.errors - was.errors, totals.outage_s - was.outage_s,
        )  # fmt: skip
        return Report(counted, max(self._outages[noted:outages], default=0.0), wait, (totals, outages))

    def reported(self, report: Report, now: float) -> None:
        """Note that *report* was answered at *now*."""
        self._reported, self._due_at = report.totals, now + REPORT_EVERY_S
        self._why = report.wait.why if report.wait else ""
