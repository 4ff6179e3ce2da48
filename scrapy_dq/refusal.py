"""Refuses a crawl as it opens: one log line gives the reason, without the tracebacks that Scrapy adds."""

from __future__ import annotations

import logging
import time

from scrapy.crawler import Crawler

AFTERMATH_S = 10.0
"""Seconds. If Twisted announces an unhandled error later than this, it is another crawl's in this process."""


def refuse(logger: logging.Logger, crawler: Crawler, message: str, error: Exception) -> None:
    """Log *message* and *error*. The caller then raises *error*, which ends the crawl.

    Scrapy then closes parts that it has not opened, and logs an error for each step: *error* again, twice,
    and errors of extensions that expect to be open. A filter keeps all of these out of the log.
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
        """Pass the records that are not a consequence of the refusal."""
        raised = record.exc_info[1] if record.exc_info else None
        if raised is not None and getattr(record, "spider", None) is self._spider:
            return False
        while raised is not None:
            if raised is self._error:
                return False
            raised = raised.__cause__ or raised.__context__
        # Twisted first announces an unhandled error, then writes it. The message is an object, not a text.
        announced = record.name == "twisted" and record.exc_info is None
        return not (announced and time.monotonic() < self._until and "Unhandled error" in str(record.msg))
