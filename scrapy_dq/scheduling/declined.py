"""Stored requests that this worker's code cannot serve; after too many of them, the worker leaves."""

from __future__ import annotations

import logging
import re
from collections import Counter

from scrapy import Spider

from scrapy_dq.text import CREW_SHOWS, count_of, without_numbers

logger = logging.getLogger(__name__)
MAX_IN_A_ROW = 10
"""After this many declined requests in a row with the same cause, the worker leaves, because its code
probably differs from the other workers' code."""


class Declined:
    """Counts declined requests by cause. Each cause is logged when it first occurs, and at the end."""

    def __init__(self, spider: Spider, crawl: str) -> None:
        self._spider_class = f"{type(spider).__module__}.{type(spider).__qualname__}"
        self._crawl = crawl
        self._counts: Counter[str] = Counter()
        """By cause: the number of declined requests. A cause is a reason without numbers and quoted names, so
        all missing callbacks have the same cause."""
        self._reasons: dict[str, str] = {}
        """By cause, the first reason."""
        self._last = ""
        self.in_a_row = 0
        """How many requests in a row were declined with the same cause, up to the last one. The owner sets it
        to 0 when this worker can serve a request."""
        self.leaving = False
        """This worker must leave the crawl."""

    def add(self, reason: str, url: str, *, was_declined: bool) -> bool:
        """Count a request that this worker cannot serve; return whether the worker must leave the crawl now.

        Args:
            was_declined: another worker has declined it before, so this worker's code may be right. Then it
                does not count as declined in a row.
        """
        cause = re.sub("'[^']*'", "''", without_numbers(reason))
        if cause not in self._counts:
            self._reasons[cause] = reason
            logger.warning(
                "This worker cannot serve %s and returns it, for another worker: %s. Later requests with "
                "this cause are only counted",
                url or "a stored request", reason,
            )  # fmt: skip
        self._counts[cause] += 1
        if was_declined:
            return False
        self.in_a_row = self.in_a_row + 1 if cause == self._last else 1
        self._last = cause
        if self.leaving or self.in_a_row < MAX_IN_A_ROW:
            return False
        self.leaving = True
        logger.error(
            "This worker leaves the crawl: its code could not serve %d stored requests in a row. The spider "
            "%s could not serve %s: %s. Deploy the same code to all workers, or keep the old name beside the "
            "new one. If another project uses this Redis, set DQ_CRAWL in one of them. The requests wait for "
            "a worker that can serve them: `scrapy crawl` with the right code continues the crawl %r",
            MAX_IN_A_ROW, self._spider_class, url or "one of them", reason, self._crawl,
            extra={CREW_SHOWS: True},
        )  # fmt: skip
        return True

    def log_counts(self) -> None:
        """Log how many requests were declined, by cause."""
        for cause, count in self._counts.most_common():
            requests = count_of(count, "stored request")
            logger.warning("This worker could not serve %s: %s", requests, self._reasons[cause])
