"""Refuses a crawl while it opens: one log line gives the reason, without the tracebacks that Scrapy adds."""

from __future__ import annotations

import logging
import time

from scrapy.crawler import Crawler

AFTERMATH_S = 10.0
"""For this many seconds after a refusal, an unhandled error that Twisted announces counts as its consequence.
A later error belongs to another crawl."""


def refuse(logger: logging.Logger, crawler: Crawler, message: str, error: Exception) -> None:
    """Log *message* and *error*. The caller then raises *error*, which ends the crawl.

    Scrapy then closes parts that it has not opened, and logs an error for each step. It logs *error* twice
    more, and errors of extensions that expect to be open. A filter keeps all these records out of the log.
    """
    logger.error("%s: %s", message, error)
    aftermath = _Aftermath(crawler, error)
    for handler in logging.getLogger().handlers:
        handler.addFilter(aftermath)


class _Aftermath(logging.Filter):
    def __init__(self, crawler: Crawler, error: Exception) -> None:
        super().__init__()
        self._spider = crawler.spider
        self._error = error
        self._until = time.monotonic() + AFTERMATH_S

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False if *record* is a consequence of the refusal, so that it is not logged."""
        raised = record.exc_info[1] if record.exc_info else None
        if raised is not None and getattr(record, "spider", None) is self._spider:
            return False
        while raised is not None:
            if raised is self._error:
                return False
            raised = raised.__cause__ or raised.__context__
        # Twisted logs an announcement of an unhandled error, and then the error. The announcement's message
        # is an object, not a text.
        announced = record.name == "twisted" and record.exc_info is None
        return not (announced and time.monotonic() < self._until and "Unhandled error" in str(record.msg))
