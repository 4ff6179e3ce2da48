"""When is a request done? The one file that knows the insides of Scrapy's engine.

Scrapy tells a scheduler nothing about what becomes of a request. `ExecutionEngine._slot.inprogress`
loses it after its callback and the pipelines of all its items have finished. Each thing that is used
here is checked when the spider opens, and pinned by tests/scrapy/test_settlement.py for every
supported version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from enum import Enum
from typing import Any

from scrapy import Request, __version__
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider

_parent: ContextVar[Request | None] = ContextVar("scrapy_dq_parent", default=None)


class UnsupportedScrapy(RuntimeError):
    """The engine of this Scrapy version has not the parts that settlement needs."""


class Outcome(Enum):
    """How a request ended."""

    DONE = "done"
    """Callback or errback and pipelines are through, whatever they raised."""
    INTERRUPTED = "interrupted"
    """CloseSpider was raised in the middle of its callback: the rest of its output was dropped."""


class _InProgress(set[Request]):
    """The engine's set of requests at work, which tells when one leaves it."""

    def __init__(self, requests: Iterable[Request], left: Callable[[Request], None]) -> None:
        super().__init__(requests)
        self._left = left

    # Source: scrapy/core/engine.py::_Slot.remove_request
    def remove(self, request: Request) -> None:
        super().remove(request)
        self._left(request)


class Settlement:
    """Watches one crawler's engine; `settled(request, outcome)` is called when a request is done."""

    def __init__(self, crawler: Crawler, settled: Callable[[Request, Outcome], None]) -> None:
        self._settled = settled
        self._interrupted: set[Request] = set()
        engine = crawler.engine
        try:
            assert engine is not None
            slot = engine._slot
            assert slot is not None
            scraper = engine.scraper
            parts = (
                type(slot.inprogress) is set,
                callable(slot.nextcall.schedule),
                hasattr(slot, "closing"),
                callable(engine.downloader.needs_backout),
                callable(scraper.handle_spider_error),
                callable(scraper.handle_spider_output_async),
                callable(engine.close_spider),
            )
        except (AttributeError, AssertionError) as error:
            raise _unsupported(error) from error
        if not all(parts):
            raise _unsupported(parts)
        self._engine = engine
        self._slot = slot
        slot.inprogress = _InProgress(slot.inprogress, self._left)
        self._wrap_errors(scraper)
        self._wrap_output(scraper)

    @property
    def closing(self) -> bool:
        """The spider is closing: no request will be asked for any more."""
        return self._slot.closing is not None

    @property
    def paused(self) -> bool:
        """`engine.pause()` is in force."""
        return bool(self._engine.paused)

    @property
    def start_failed(self) -> bool:
        """`start()` raised; Scrapy tells since 2.18."""
        return bool(getattr(self._engine, "_start_error", False))

    @property
    def parent(self) -> Request | None:
        """The request whose callback's output is being processed now, where that is known."""
        return _parent.get()

    def wake(self) -> None:
        """Have the engine ask for requests, or find out that it is idle."""
        if not self.closing:
            self._slot.nextcall.schedule()

    def close_spider(self, reason: str) -> None:
        """Close the spider with *reason*."""
        if self.closing:
            return
        if hasattr(self._engine, "close_spider_async"):
            self._closing_task = asyncio.ensure_future(self._engine.close_spider_async(reason=reason))
        else:
            self._engine.close_spider(self._engine.spider, reason)  # type: ignore[arg-type]

    def _left(self, request: Request) -> None:
        interrupted = request in self._interrupted
        self._interrupted.discard(request)
        self._settled(request, Outcome.INTERRUPTED if interrupted else Outcome.DONE)

    def _wrap_errors(self, scraper: Any) -> None:
        original = scraper.handle_spider_error

        def handle_spider_error(failure: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
            if isinstance(failure.value, CloseSpider) and request in self._slot.inprogress:
                self._interrupted.add(request)
            return original(failure, request, *args, **kwargs)

        scraper.handle_spider_error = handle_spider_error

    def _wrap_output(self, scraper: Any) -> None:
        original = scraper.handle_spider_output_async

        async def handle_spider_output_async(result: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
            token = _parent.set(request)
            try:
                return await original(result, request, *args, **kwargs)
            finally:
                _parent.reset(token)

        scraper.handle_spider_output_async = handle_spider_output_async


def is_one_off(crawler: Crawler) -> bool:
    """Tell whether this is `scrapy shell`, `fetch`, `view`, `parse` or `check`, not a crawl."""
    if not crawler.crawling:  # the shell opens its engine without Crawler.crawl()
        return True
    start = getattr(type(crawler.spider), "start", None)
    return str(getattr(start, "__module__", "")).startswith("scrapy.commands.")


def _unsupported(detail: object) -> UnsupportedScrapy:
    return UnsupportedScrapy(
        f"scrapy_dq cannot tell when a request is done in Scrapy {__version__} ({detail!r}). "
        f"It is tested with Scrapy 2.13.4 to 2.19; install one of these, or a newer scrapy-dq"
    )
