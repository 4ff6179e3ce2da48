"""Fingerprints, and the log of filtered requests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy.dupefilters import RFPDupeFilter

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class DupeFilter(RFPDupeFilter):
    """`DUPEFILTER_CLASS`: with `scrapy_dq.Scheduler`, the crawl's shared `seen` decides.

    Under another scheduler it is Scrapy's own in-memory filter, and says so.
    """

    alone = True
    """Nobody told it that the project has our Scheduler."""

    @classmethod
    def for_frontier(cls, crawler: Crawler) -> Self:
        """Return one that only makes fingerprints and logs: the frontier remembers."""
        debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        assert crawler.request_fingerprinter is not None
        self = cls(None, debug, fingerprinter=crawler.request_fingerprinter)
        self.alone = False
        return self

    def open(self) -> Any:
        if self.alone:
            logger.info(
                "scrapy_dq.DupeFilter without scrapy_dq.Scheduler: duplicates are filtered in this process "
                "only, as by Scrapy's own RFPDupeFilter. Set SCHEDULER = 'scrapy_dq.Scheduler' to share them"
            )
        return super().open()

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that identify requests equivalent to *request*."""
        return self.fingerprinter.fingerprint(request)
