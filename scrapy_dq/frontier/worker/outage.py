"""Outages of Redis: pauses before the next try, and log lines."""

from __future__ import annotations

import logging
import random
import time
from typing import NamedTuple

from scrapy_dq.frontier.errors import is_refusal

logger = logging.getLogger(__name__)
FIRST_S, LONGEST_S = 0.1, 2.0
WARN_EVERY_S, LONG_S = 60.0, 5.0
"""For WARN_EVERY_S after a warning, outages that end within LONG_S are only counted. Otherwise a connection
that is reset again and again would fill the log."""
OUTAGE_NOTE = (
    "The crawl continues with the requests that this worker holds; new requests are kept, and stored when "
    "Redis is available again"
)


class Wait(NamedTuple):
    """The start of an outage, in monotonic seconds, and its reason."""

    since: float
    reason: str


class Outage:
    """A period without a usable answer from Redis; logs a warning at its beginning, and one line at its end.

    If there are many short outages, only one per minute is logged, with the number of the others. If the type
    of the error changes during an outage, another warning is logged, because the user may have to act. For
    example, Redis may answer again, but refuse the call.

    Args:
        outage_note: a sentence for the warning: which work continues, and which data is kept.
        kept: a plural noun for the line at the end of the outage: the things that were kept during it.
        label: the beginning of the log lines.
    """

    def __init__(self, outage_note: str = OUTAGE_NOTE, kept: str = "moves", label: str = "") -> None:
        self.error: Exception | None = None
        """The last failure; None: there is no outage."""
        self._label = label
        self._outage_note = outage_note
        self._kept = kept
        self._since: float | None = None
        self.unanswered: tuple[float, float] | None = None
        """Times of the first and the last try without an answer, in monotonic seconds.

        None: the last try got an answer. A refusal is an answer.
        """
        self._warned: set[type[Exception]] = set()
        self._quiet_until = 0.0
        self._unlogged = 0
        """Number of outages since the last warning that were too short for a warning."""
        self._tries = 0

    @property
    def reason(self) -> str:
        """The reason of the last failure, in a sentence without a full stop; empty: there is no outage."""
        return "" if self.error is None else str(self.error)

    @property
    def wait(self) -> Wait | None:
        """The outage that is under way, to be reported to users of the crawl; None: Redis answers."""
        since, reason = self._since, self.reason
        return Wait(since, f"{self._label}{reason}") if since is not None and reason else None

    def delay_s(self) -> float:
        """Return the pause before the next try: 0.1 to 2 s, growing, with jitter."""
        self._tries += 1
        longest: float = min(FIRST_S * 2 ** min(self._tries - 1, 10), LONGEST_S)
        return longest * random.uniform(0.7, 1.0)

    def noted(self, error: Exception | None) -> None:
        """Record the result of a try without logging it; *error* None: success. The caller logs it."""
        self.error = error

    def began(self, error: Exception) -> None:
        """Record a failed try; the text of *error* is the reason, in a sentence without a full stop."""
        self.error = error
        now = time.monotonic()
        first = self.unanswered[0] if self.unanswered else now
        self.unanswered = None if is_refusal(error.__cause__ or error) else (first, now)
        if self._since is None:
            self._since = now
        short = not self._warned and now < min(self._quiet_until, self._since + LONG_S)
        if type(error) not in self._warned and not short:
            self._warned.add(type(error))
            more = f" (short outages before it: {self._unlogged})" if self._unlogged else ""
            self._quiet_until, self._unlogged = now + WARN_EVERY_S, 0
            logger.warning("%s%s%s. %s", self._label, error, more, self._outage_note)

    def ended(self, kept: int) -> float:
        """Record an answer; return the seconds of the outage that this answer ends; 0: there was no outage.

        Args:
            kept: how many moves (or other things, see *kept* in the constructor) were kept.
        """
        self._tries, self.error, self.unanswered = 0, None, None
        if self._since is None:
            return 0.0
        lasted_s = time.monotonic() - self._since
        if self._warned:
            logger.info(
                "%sRedis is back after %.1f s; %d %s were kept",
                self._label, lasted_s, kept, self._kept,
            )  # fmt: skip
        else:
            self._unlogged += 1
        self._since = None
        self._warned.clear()
        return lasted_s
