"""A worker's figures for the history of the crawl, and the times of its reports (transitions/report.lua)."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy_dq.frontier.answers import Figures
from scrapy_dq.frontier.worker.outage import Wait

REPORT_EVERY_S = 10.0
NOTED_S = 1.0
"""Shorter outages are not reported, because each lost answer causes a short outage."""


@dataclass(frozen=True)
class Report:
    """A report that is due."""

    counted: Figures
    """Figures since the last report."""
    ended_s: float
    """Seconds of the longest outage that has ended since the last report; 0: none took NOTED_S or longer."""
    wait: Wait | None
    """The outage that is under way; None: no outage, or one that is still shorter than NOTED_S."""
    totals: tuple[Figures, int]
    """The sum of all figures up to this report, and the number of outages of at least NOTED_S. The next
    report begins after them."""


class Counting:
    """Counts on the event loop; the heartbeat's thread reads the counts.

    No lock is necessary, because only the loop changes the counts. The thread remembers the counts of its
    last report, and subtracts them from the present ones.
    """

    def __init__(self) -> None:
        self._totals = Figures()
        self._outages: list[float] = []
        # Used by the thread only.
        self._reported = (Figures(), 0)
        self._reason = ""
        self._due_at = 0.0

    def answered(self, seconds: float, outage_s: float) -> None:
        """Count an answer that took *seconds*; *outage_s*: the length of the outage that it ends, or 0."""
        was = self._totals
        self._totals = Figures(
            was.exchanges + 1, was.exchange_s + seconds, was.errors, was.outage_s + outage_s
        )
        if outage_s >= NOTED_S:
            self._outages.append(outage_s)

    @property
    def longest_outage_s(self) -> float:
        """The longest outage of at least NOTED_S, in seconds; 0: none."""
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
        if now < self._due_at and outages == noted and self._reason == (wait.reason if wait else ""):
            return None
        counted = Figures(
            totals.exchanges - was.exchanges, totals.exchange_s - was.exchange_s,
            totals.errors - was.errors, totals.outage_s - was.outage_s,
        )  # fmt: skip
        return Report(counted, max(self._outages[noted:outages], default=0.0), wait, (totals, outages))

    def reported(self, report: Report, now: float) -> None:
        """Record that Redis answered *report* at *now*."""
        self._reported, self._due_at = report.totals, now + REPORT_EVERY_S
        self._reason = report.wait.reason if report.wait else ""
