"""Warnings about requests, logged once for each reason."""

from __future__ import annotations

import logging

from scrapy import Request

from scrapy_dq.codec import CannotEncode
from scrapy_dq.text import CREW_SHOWS, printable, prose_without_logins, shown, without_numbers

logger = logging.getLogger(__name__)
MAX_REASONS = 10
"""Maximum number of reasons for which one kind of warning is logged."""


class WarningsOnce:
    """The warnings of one worker."""

    def __init__(self, *, debug: bool) -> None:
        """*debug*: SCHEDULER_DEBUG, which logs all warnings."""
        self._debug = debug
        self._warned: dict[str, set[str]] = {}
        """By the text of a warning, the reasons for which it was logged."""

    def warn(self, reason: str, text: str, *args: object, crew_shows: bool = False) -> None:
        """Log a warning; without SCHEDULER_DEBUG, once for each reason."""
        cause, warned = without_numbers(reason), self._warned.setdefault(text, set())
        if not self._debug:
            if cause in warned or len(warned) == MAX_REASONS:
                return
            warned.add(cause)
            text += ". No more with this reason are shown (SCHEDULER_DEBUG shows all)"
        logger.warning(text, *args, extra={CREW_SHOWS: crew_shows})

    def warn_unencodable(self, request: Request, error: CannotEncode, *, start: bool) -> None:
        """Log that *request* cannot be stored; *start*: `start()` yielded it."""
        reason = prose_without_logins(str(error), request.url)
        ends = "it stays in this worker and is not shared"
        if start:
            ends = "each worker crawls this start request"
        self.warn(
            reason, f"%s cannot be stored (%s): {ends}",
            shown(request, 100 if start else 500),  # a crew's screen shows 300 characters
            reason, crew_shows=start,
        )  # fmt: skip

    def warn_dead(self, subject: str, reason: str) -> None:
        """Log that *subject* becomes a dead letter."""
        self.warn(reason, "%s becomes a dead letter: %s", printable(prose_without_logins(subject)), reason)
