"""Redis is away: how long to wait before the next try, and what to say, once."""

from __future__ import annotations

import logging
import random
import time

logger = logging.getLogger(__name__)
FIRST_S, LONGEST_S = 0.1, 2.0


class Outage:
    """One stretch of time without a usable answer from Redis: one warning, one line when it ends."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.reason = ""
        """Of the newest try that failed; empty: there is no outage."""
        self._tries = 0

    def delay_s(self) -> float:
        """Return the pause before the next try: 0.1 to 2 s, growing, with jitter."""
        self._tries += 1
        longest: float = min(FIRST_S * 2 ** min(self._tries - 1, 10), LONGEST_S)
        return longest * random.uniform(0.7, 1.0)

    def began(self, error: Exception) -> None:
        """Note a try that failed; *error* says why, in a sentence without a full stop."""
        self.reason = str(error)
        if self._since is None:
            self._since = time.monotonic()
            logger.warning(
                "%s. The crawl goes on from what this worker holds; what it finds is kept and handed in when "
                "Redis serves again",
                error,
            )

    def ended(self, kept: int) -> None:
        """Note an answer; *kept* moves are still to be handed in."""
        self._tries, self.reason = 0, ""
        if self._since is not None:
            logger.info(
                "Redis is back after %.1f s; %d moves were kept meanwhile",
                time.monotonic() - self._since,
                kept,
            )
            self._since = None
