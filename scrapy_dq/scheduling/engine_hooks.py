"""Finds out when and how a request ended. Only this file uses internals of Scrapy's engine.

Scrapy does not report to a scheduler how a request ended. It removes the request from
`ExecutionEngine._slot.inprogress` after its callback and the pipelines of all its items have finished.
When the spider opens, `EngineHooks` checks the internals that it uses. tests/scheduling/test_settlement.py
and test_engine_hooks.py check them for every supported version.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request, __version__, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.python.reflect import safe_str

from scrapy_dq.scheduling.cancellation import cancellation_fails, uncancelled
from scrapy_dq.scheduling.in_progress import Outcome
from scrapy_dq.scheduling.own_code import OwnCode
from scrapy_dq.text import printable, prose_without_logins

LONGEST_REASON = 500
"""Maximum number of characters of a reason, including the place in the project's code."""


class UnsupportedScrapy(RuntimeError):
    """The engine of this Scrapy version lacks an attribute that settlement needs."""


class _InProgress(set[Request]):
    """The engine's set of requests in progress; calls *left* with each removed request."""

    def __init__(self, requests: Iterable[Request], left: Callable[[Request], None]) -> None:
        super().__init__(requests)
        self._left = left
        self._more: Counter[Request] = Counter()

    # Source: scrapy/core/engine.py::_Slot.add_request
    def add(self, request: Request) -> None:
        if request in self:
            # A callback downloads its own request again (`engine.download()`): the end of that download also
            # removes the request, but is not the end of the callback.
            self._more[request] += 1
        super().add(request)

    # Source: scrapy/core/engine.py::_Slot.remove_request
    def remove(self, request: Request) -> None:
        if request in self._more:
            self._more -= Counter([request])
            return
        super().remove(request)
        self._left(request)


class _Start:
    """The engine's iterator over `start()`; records whether `start()` raised, as Scrapy itself reports only
    since 2.18."""

    def __init__(self, start: AsyncIterator[Any], engine: Any) -> None:
        self._start = start
        self._engine = engine
        self.failed = False
        self.latest: Any = None
        """The last object that `start()` yielded. The engine stores it before it asks for the next object."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    # Source: scrapy/core/engine.py::ExecutionEngine._process_start_next
    async def __anext__(self) -> Any:
        self.latest = None
        try:
            # Scrapy would take a cancellation for a stop of the engine, and then wait for start() forever.
            with cancellation_fails(lambda: self._engine.running):
                self.latest = await self._start.__anext__()
            return self.latest
        except StopAsyncIteration:
            raise
        except Exception:
            self.failed = True
            raise


_PARTS: dict[str, Callable[[Any], bool] | None] = {
    "_slot.inprogress": lambda part: type(part) is set,
    "_slot.remove_request": callable,
    "_slot.nextcall.schedule": callable,
    "_slot.closing": None,
    "_slot.scheduler": None,
    "_start": lambda part: isinstance(part, AsyncIterator),
    "running": None,
    "paused": None,
    "close_spider": callable,
    "_handle_downloader_output": callable,
    "scraper.handle_spider_error": callable,
    "scraper.handle_spider_output_async": callable,
    "scraper.call_spider_async": callable,
}
"""The used attributes of the engine, each with a check of its value; None: any value is accepted."""


class EngineHooks:
    """Watches the engine of a crawler; calls `settled(request, outcome, reason)` for each finished request.

    The reason describes a failure; otherwise it is empty. `downloaded(request)` is called when a request has
    left the downloader.
    """

    def __init__(
        self,
        crawler: Crawler,
        settled: Callable[[Request, Outcome, str], None],
        downloaded: Callable[[Request], None],
        failed_statuses: Iterable[int] = (),
    ) -> None:
        self._settled = settled
        self._downloaded = downloaded
        self._failed_statuses = frozenset(failed_statuses)
        self.answered: Callable[[Request, Response], Response] | None = None
        """Called with each response, after `downloaded`; returns the response for the spider."""
        self.yielded: Callable[[Request, Any], None] | None = None
        """Called with the request of a callback, and each item that the callback yields."""
        self._interrupted: set[Request] = set()
        self._given_up: WeakSet[Request] = WeakSet()
        self._failed: dict[Request, str] = {}
        self._not_downloaded: dict[Request, BaseException] = {}
        self._refused: dict[Request, str] = {}
        """By request, the reason of its failure: HttpErrorMiddleware refused its response, and no errback
        handled this."""
        self._errbacks: set[Request] = set()
        """Requests whose errback was called with an exception."""
        self._scraped: dict[object, Request] = {}
        """By response or failure: its request, as long as the response's items are in the pipelines."""
        self._parents: MutableMapping[Request, Request] = WeakKeyDictionary()
        self.following: Request | None = None
        """The redirect or retry that a downloader middleware has just returned. The engine stores it next."""
        self._own_code = OwnCode(type(getattr(crawler, "spider", None)).__module__)
        engine: Any = crawler.engine
        for part, fits in _PARTS.items():
            try:
                value = attrgetter(part)(engine)
                present = fits is None or fits(value)
            except AttributeError:
                present = False
            if not present:
                raise UnsupportedScrapy(
                    f"scrapy_dq cannot tell when a request is done: engine.{part} of Scrapy {__version__} is "
                    f"missing or not as expected. Tested are Scrapy 2.13.4 to 2.19; install one of these, or "
                    f"a newer scrapy-dq"
                )
        self._engine = engine
        slot = self._slot = engine._slot
        scraper = engine.scraper
        self._start = engine._start = _Start(engine._start, engine)
        slot.inprogress = _InProgress(slot.inprogress, self._left)
        self._wrap_errors(scraper)
        crawler.signals.connect(self._item_failed, signals.item_error)
        self._wrap_output(scraper)
        _wrap_pipelines(getattr(scraper, "itemproc", None))
        self._wrap_download()
        self._wrap_removal()

    @property
    def closing(self) -> bool:
        """The spider is closing, so the engine asks for no more requests."""
        return self._slot.closing is not None

    @property
    def paused(self) -> bool:
        """`engine.pause()` is in force."""
        return bool(self._engine.paused)

    @property
    def start_over(self) -> bool:
        """`start()` has ended, or will not run, so it yields nothing more."""
        return self._engine._start is None

    @property
    def start_failed(self) -> bool:
        """`start()` raised and is incomplete, even if it raised CloseSpider."""
        return self._start.failed

    def from_start(self, request: Request) -> bool:
        """Return whether `start()` has yielded *request*, which is being stored now.

        A scheduler class of the project may pass a copy of this request. The copy is recognised by the mark
        of StartSpiderMiddleware (`is_start_request`).
        """
        marked = request.meta.get("is_start_request") and not request.meta.get("dq_seeded")
        return request is self._start.latest or bool(marked)

    def parent_of(self, request: Request) -> Request | None:
        """Return the request whose callback yielded *request*, or which *request* redirects or retries.

        None: unknown.
        """
        parent = self._parents.get(request)
        # If a callback yields `response.request`, the request is its own parent. `_parents` has no entry for
        # it, because a request that is its own value would stay in memory.
        return request if parent is None and request in self._slot.inprogress else parent

    def forget_parent(self, request: Request) -> None:
        """Forget the parent of a served request. Otherwise a chain of local requests would stay in memory."""
        self._parents.pop(request, None)

    def held_up(self) -> set[Request]:
        """Return the requests that wait in a downloader middleware; empty for an unknown downloader."""
        # Source: scrapy/core/downloader/__init__.py::Downloader.fetch, Downloader._enqueue_request
        try:
            downloader = self._engine.downloader
            return downloader.active.difference(*(slot.active for slot in downloader.slots.values()))  # type: ignore[no-any-return]
        except (AttributeError, TypeError):
            return set()

    def give_up_downloads(self) -> int:
        """Make a closing engine stop waiting for its downloads; return their number.

        Their responses, if any come, are dropped. The engine still waits for callbacks and pipelines, because
        they may be half done, and cannot be ended from outside.
        """
        # Source: scrapy/core/engine.py::_Slot.close, ExecutionEngine._start_scheduled_request
        downloads = self._slot.inprogress & getattr(self._engine.downloader, "active", set())
        for request in downloads:
            self._given_up.add(request)
            self._interrupted.add(request)
            self._remove_request(request)
        return len(downloads)

    def _wrap_removal(self) -> None:
        self._remove_request = original = self._slot.remove_request

        def remove_request(request: Request) -> None:
            # A request that was given up is removed already. If a callback also downloads the request with
            # `engine.download()`, the end of that download would remove it a second time.
            if request in self._given_up:
                self._given_up.discard(request)
            else:
                original(request)

        self._slot.remove_request = remove_request

    def watch_next_request(
        self, own: object, watched: Callable[[Callable[[], Request | None]], Callable[[], Request | None]]
    ) -> str:
        """Wrap the `next_request` of the engine's scheduler with *watched*, unless the method is *own*.

        Returns:
            The name of the scheduler's class; empty: the method is *own*.
        """
        scheduler = self._slot.scheduler
        if getattr(scheduler.next_request, "__func__", None) is own:
            return ""
        scheduler.next_request = watched(scheduler.next_request)
        return f"{type(scheduler).__module__}.{type(scheduler).__qualname__}"

    def skip_start(self) -> None:
        """Prevent `start()` from running, because this worker takes no part in the run, which is finished."""
        self._engine._start = None

    def wake(self) -> None:
        """Make the engine ask for requests, or find out that it is idle."""
        if not self.closing:
            self._slot.nextcall.schedule()

    def close_spider(self, reason: str) -> None:
        """Close the spider with *reason*; without effect if it is closing already."""
        if self.closing:
            return
        if hasattr(self._engine, "close_spider_async"):
            self._closing_task = asyncio.ensure_future(self._engine.close_spider_async(reason=reason))
        else:
            self._engine.close_spider(self._engine.spider, reason)

    def _left(self, request: Request) -> None:
        reason = ""
        if self._failed or self._refused or self._not_downloaded or self._errbacks:  # usually all are empty
            refused = self._refused.pop(request, "")
            reason = self._failed.pop(request, "") or refused
            self._not_downloaded.pop(request, None)
            self._errbacks.discard(request)
        if request in self._interrupted:
            self._interrupted.discard(request)
            self._settled(request, Outcome.INTERRUPTED, "")
        else:
            self._settled(request, Outcome.FAILED if reason else Outcome.DONE, reason)

    def _note_failure(self, request: Request, source: str, failure: Failure) -> None:
        if request in self._slot.inprogress:
            error, place = failure.value, self._own_code.place_of(failure)
            # Scrapy's errors quote URLs. They also quote a login that a URL parser took for a host.
            urls = [request.url, *(str(request.meta.get(name, "")) for name in ("proxy", "_auth_proxy"))]
            text = prose_without_logins(f"{source}: {type(error).__name__}: {safe_str(error)}", *urls)
            text = printable(text, LONGEST_REASON - len(place) - 3)
            self._failed.setdefault(request, f"{text} ({place})" if place else text)

    def request_of(self, response: Response) -> Request | None:
        """Return the request of a response whose items are in the pipelines."""
        # A middleware may have set `response.request` to another request.
        return self._scraped.get(response, response.request)

    def _item_failed(self, response: Response | None, failure: Failure) -> None:
        """Receive Scrapy's signal that an item pipeline has raised; DropItem has another signal."""
        if response is None:  # the item comes from start()
            return
        request = self.request_of(response)
        if request is not None and failure.value is not None:
            self._note_failure(request, "item pipeline", failure)

    def _wrap_errors(self, scraper: Any) -> None:
        original = scraper.handle_spider_error

        def handle_spider_error(failure: Any, request: Any, response: Any, *more: Any, **named: Any) -> Any:
            if not isinstance(failure.value, CloseSpider):
                source = "errback" if request in self._errbacks else "callback"
                self._note_failure(request, source, failure)
            elif request in self._slot.inprogress:
                self._interrupted.add(request)
            return original(failure, request, response, *more, **named)

        scraper.handle_spider_error = handle_spider_error

        original_call = scraper.call_spider_async

        # Scrapy's method calls the errback, also for an exception that a spider middleware has raised.
        async def call_spider_async(result: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
            if isinstance(result, Failure) and request.errback is not None:
                self._errbacks.add(request)
            with cancellation_fails(), self._noting_unhandled(request, result):
                output = await original_call(result, request, *args, **kwargs)
            if isinstance(result, Failure) and isinstance(result.value, HttpError):
                return self._watched(output, request, result)
            return output

        scraper.call_spider_async = call_spider_async

    @contextmanager
    def _noting_unhandled(self, request: Request, result: Any) -> Iterator[None]:
        """If *result* is a Failure, record that it had no errback, or that the errback raised it again."""
        try:
            yield
        except Exception as error:
            if not isinstance(result, Failure) or error is not result.value:
                raise  # a callback or an errback has raised this error: see handle_spider_error
            if error is self._not_downloaded.get(request):
                self._note_failure(request, "download", result)
            elif isinstance(error, HttpError) and request in self._slot.inprogress:
                status = error.response.status
                if status in self._failed_statuses or request in self._errbacks:
                    self._refused[request] = f"HTTP {status}"
            raise

    def _watched(self, output: Any, request: Request, refused: Failure) -> Any:
        """Return the *output* of an errback. If the errback raises *refused* while its output is read, record
        this.

        Scrapy's HttpErrorMiddleware drops such an exception silently.
        """

        def each() -> Iterator[Any]:
            with self._noting_unhandled(request, refused):
                yield from output

        async def each_async() -> AsyncIterator[Any]:
            with self._noting_unhandled(request, refused):
                async for one in output:
                    yield one

        return each_async() if isinstance(output, AsyncIterator) else each()

    def _wrap_output(self, scraper: Any) -> None:
        original = scraper.handle_spider_output_async

        # The parent is recorded while the output is read. A context variable would not do: Scrapy reads the
        # output in a timer, and Twisted's reactor runs all due timers in the context of one of these timers.
        async def handle_spider_output_async(
            result: Any, request: Request, response: Any, *args: Any, **kwargs: Any
        ) -> Any:
            self._scraped[response] = request
            try:
                mark, is_async = partial(self._mark, request), isinstance(result, AsyncIterator)
                # After an exception, Scrapy reads on. Both of these objects can then continue, which a
                # generator could not.
                output = _AsyncMarked(result, mark) if is_async else map(mark, result)
                return await original(output, request, response, *args, **kwargs)
            finally:
                self._scraped.pop(response, None)

        scraper.handle_spider_output_async = handle_spider_output_async

    def _mark(self, parent: Request, output: Any) -> Any:
        if self._refused and parent not in self._errbacks:
            # A spider middleware has yielded something for the refused response, and so handled the failure.
            self._refused.pop(parent, None)
        if isinstance(output, Request) and output is not parent:
            self._parents[output] = parent
        elif self.yielded is not None:
            self.yielded(parent, output)
        return output

    def _wrap_download(self) -> None:
        original = self._engine._handle_downloader_output

        def handle_downloader_output(result: Any, request: Request) -> Any:
            if request in self._given_up:
                return Deferred()  # it never fires: the engine's next step needs its slot, which may be gone
            self._downloaded(request)
            self.following = result if isinstance(result, Request) else None
            if isinstance(result, Request):
                # A redirect or a retry: a downloader middleware returned another request.
                if result is not request:
                    self._parents[result] = request
            elif isinstance(result, Response) and self.answered is not None:
                result = self.answered(request, result)
            elif isinstance(result, Failure) and not result.check(IgnoreRequest):  # type: ignore[no-untyped-call]
                self._not_downloaded[request] = result.value  # type: ignore[assignment]
            return original(result, request)

        self._engine._handle_downloader_output = handle_downloader_output


class _AsyncMarked:
    """The output of an async callback; each object in it passes through *mark*."""

    def __init__(self, output: AsyncIterator[Any], mark: Callable[[Any], Any]) -> None:
        self._output = output
        self._mark = mark

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        with cancellation_fails():
            return self._mark(await anext(self._output))


def _wrap_pipelines(manager: Any) -> None:
    for name in ("process_item_async", "close_spider_async"):
        original = getattr(manager, name, None)
        if original is not None:  # Scrapy 2.13 lacks it, but handles a cancellation like any error
            setattr(manager, name, uncancelled(original))


def is_closing(crawler: Crawler) -> bool:
    """Return whether the spider is closing, under any scheduler; False if the engine does not reveal it."""
    return getattr(getattr(crawler.engine, "_slot", None), "closing", None) is not None
