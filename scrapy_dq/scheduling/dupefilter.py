"""The dupefilter, which makes fingerprints and logs filtered requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from scrapy_dq.settings import peers
from scrapy_dq.stats import names as stats
from scrapy_dq.stats.collector import Tally
from scrapy_dq.text import shown

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
_NOT_CALLED = ("request_seen", "request_fingerprint", "fingerprint")


class DupeFilter(RFPDupeFilter):
    """`DUPEFILTER_CLASS`: with `scrapy_dq.Scheduler`, the crawl's shared `seen` decides which requests are
    duplicates.

    Under another scheduler it is Scrapy's own in-memory filter.
    """

    dq_count: Callable[[str], None] | None = None
    """Counts a stat at less cost than Scrapy's collector. This cost matters, because most links of a page are
    duplicates."""

    @classmethod
    def for_frontier(cls, crawler: Crawler) -> Self:
        """Return a dupefilter that only makes fingerprints and logs, because the frontier filters."""
        if own := [name for name in _NOT_CALLED if getattr(cls, name) is not getattr(DupeFilter, name)]:
            logger.warning(
                "%s: its %s() is not called, because the crawl's shared `seen` filters, by "
                "REQUEST_FINGERPRINTER_CLASS. Define there which requests are equivalent; or derive the "
                "class from Scrapy's RFPDupeFilter: then each worker filters with it, separately",
                global_object_name(cls),
                "() and ".join(own),
            )
        debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        assert crawler.request_fingerprinter is not None
        return cls(None, debug, fingerprinter=crawler.request_fingerprinter)

    # Source: scrapy/dupefilters.py::RFPDupeFilter.log
    def log(self, request: Request, spider: Spider) -> None:
        if self.dq_count is None or self.debug or self.logdupes:
            super().log(request, spider)
        else:
            self.dq_count(stats.SCRAPY_FILTERED)

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that identify requests equivalent to *request*."""
        return self.fingerprinter.fingerprint(request)


class Duplicates:
    """Counts duplicates, and logs them through the dupefilter."""

    def __init__(self, dupefilter: BaseDupeFilter, spider: Spider, count: Tally) -> None:
        self._dupefilter = dupefilter
        self._spider = spider
        self._count = count
        if isinstance(dupefilter, DupeFilter):
            dupefilter.dq_count = count

    def add(self, request: Request) -> None:
        """Count *request*, and log it."""
        self._count(stats.DUPLICATES)
        try:
            self._dupefilter.log(request, self._spider)
        except Exception:  # raised by the project's dupefilter; the request is a duplicate nevertheless
            logger.exception("The dupefilter could not log a duplicate: %s", shown(request))


def _class_of(crawler: Crawler) -> Any:
    """Return DUPEFILTER_CLASS, or ours in place of Scrapy's default or scrapy-redis's class."""
    named = crawler.settings["DUPEFILTER_CLASS"]
    cls: Any = DupeFilter if peers.is_peer_class(named) else load_object(named)
    # Scrapy's default would filter in each process separately, so each worker would crawl every page.
    return DupeFilter if cls is RFPDupeFilter or peers.is_peer_class(cls) else cls


def shares_seen(crawler: Crawler) -> bool:
    """Return whether the frontier filters under our scheduler; False: a dupefilter of the project does."""
    return issubclass(_class_of(crawler), DupeFilter)


def dupefilter_of(crawler: Crawler) -> BaseDupeFilter:
    """Return the project's dupefilter, for use under our scheduler."""
    named, cls = crawler.settings["DUPEFILTER_CLASS"], _class_of(crawler)
    if peers.is_peer_class(named) or peers.is_peer_class(load_object(named)):
        logger.warning(
            "DUPEFILTER_CLASS = %s would block the event loop with a query to Redis for each request: "
            "scrapy_dq.DupeFilter is used instead, with the same effect. Set DUPEFILTER_CLASS = "
            "'scrapy_dq.DupeFilter', or remove it",
            peers.name_of(named),
        )
    if issubclass(cls, DupeFilter):
        return cls.for_frontier(crawler)  # type: ignore[no-any-return]
    logger.info("DUPEFILTER_CLASS = %s: duplicates are not shared between workers", global_object_name(cls))
    return build_from_crawler(cls, crawler)  # type: ignore[no-any-return]
