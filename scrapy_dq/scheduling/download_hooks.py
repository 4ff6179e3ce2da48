"""When has a request gone out? The one file that knows the insides of Scrapy's download handlers.

Scrapy's signals tell when a request reaches the downloader, long before its connection is there, and when
its answer begins. A delay between two requests at a site counts from the moment in between, at which the
connection writes the request. Later is safe, earlier never is: where that moment cannot be known, the answer
tells. What is used here is pinned by tests/crawl/test_outgoing.py for every supported version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.interfaces import IHandshakeListener
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.web.client import HTTPConnectionPool
from zope.interface import alsoProvides  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)
TURNS = 6
"""Of the event loop, from writing to a transport until the socket has surely been written to.

Two with asyncio's own loop, which runs what is called soon before what is ready to be written to; one more
for a write that TLS gathers, and one for each of these where the loop queues what is ready (uvloop)."""


class DownloadHooks:
    """Calls *gone* with each request that it watches, once or more: the first time it has surely gone out."""

    def __init__(self, crawler: Crawler, gone: Callable[[Request], None]) -> None:
        self._crawler = crawler
        self._gone = gone
        self._watched: WeakSet[Request] = WeakSet()
        self._pools: WeakSet[HTTPConnectionPool] = WeakSet()
        self._current: Request | None = None
        """The request whose download handler is at work at this moment, if it is watched."""
        self._installed = False

    def watch(self, request: Request) -> None:
        """Tell when *request*, which is about to be handed out, goes out."""
        if not self._installed:
            self._installed = True
            self._crawler.signals.connect(self._answer_began, signals.headers_received)
            self._wrap_handlers()
        self._watched.add(request)

    def _answer_began(self, request: Request) -> None:
        if request in self._watched:
            self._gone(request)

    def _wrap_handlers(self) -> None:
        downloader = getattr(self._crawler.engine, "downloader", None)
        handlers: Any = getattr(downloader, "handlers", None)
        if not callable(getattr(handlers, "_get_handler", None)):
            logger.debug("%r has no download handlers as Scrapy has: delays count from answers", downloader)
        elif hasattr(handlers, "download_request_async"):
            handlers.download_request_async = self._wrapped_async(handlers, handlers.download_request_async)
        else:  # Scrapy 2.13
            handlers.download_request = self._wrapped(handlers, handlers.download_request)

    def _wrapped(self, handlers: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def download_request(request: Request, spider: Any) -> Any:
            return self._run(self._watch_pool(handlers, request), original, request, spider)

        return download_request

    def _wrapped_async(
        self, handlers: Any, original: Callable[[Request], Coroutine[Any, Any, Any]]
    ) -> Callable[[Request], Awaitable[Any]]:
        async def download_request_async(request: Request) -> Any:
            run = partial(self._run, self._watch_pool(handlers, request))
            return await _Steps(original(request), run)

        return download_request_async

    def _run(self, request: Request | None, call: Callable[..., Any], *args: Any) -> Any:
        before, self._current = self._current, request
        try:
            return call(*args)
        finally:
            self._current = before

    def _watch_pool(self, handlers: Any, request: Request) -> Request | None:
        """Return *request* if it is watched; its connection tells of it then, if it is Scrapy's HTTP/1.1."""
        if request not in self._watched:
            return None
        pool = getattr(handlers._get_handler(urlparse_cached(request).scheme), "_pool", None)
        if isinstance(pool, HTTPConnectionPool) and pool not in self._pools:
            self._pools.add(pool)
            self._wrap_pool(pool)
        return request

    def _wrap_pool(self, pool: Any) -> None:
        original = pool.getConnection

        def get_connection(key: Any, endpoint: Any) -> Any:
            request = self._current
            if request is None:
                return original(key, endpoint)
            # When a connection breaks that was kept open, Twisted would ask again at once, which nobody has
            # counted. Scrapy's RetryMiddleware asks again under a lease of its own.
            retries, pool.retryAutomatically = pool.retryAutomatically, False
            try:
                connecting = original(key, endpoint)
            finally:
                pool.retryAutomatically = retries
            return connecting.addCallback(_Connection, partial(self._written, request))

        pool.getConnection = get_connection

    def _written(self, request: Request, transport: Any) -> None:
        """*request* was written to *transport*, which sends it on as soon as it can."""
        tls = transport.protocol if getattr(transport, "TLS", False) else transport
        if not isinstance(tls, TLSMemoryBIOProtocol):
            self._gone_after(TURNS, request)
            return
        done = getattr(tls, "_handshakeDone", None)
        if done:
            self._gone_after(TURNS, request)
        elif done is False:
            # The connection is there, but what is written to it waits for the end of TLS's handshake.
            protocol: Any = tls.wrappedProtocol
            protocol.handshakeCompleted = partial(self._gone_after, TURNS, request)
            alsoProvides(protocol, IHandshakeListener)

    def _gone_after(self, turns: int, request: Request) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._gone_after, turns - 1, request)
        else:
            self._gone(request)


class _Connection:
    """What Twisted's Agent is given for a connection: it calls `request`, once."""

    def __init__(self, connection: Any, written: Callable[[Any], None]) -> None:
        self._connection = connection
        self._written = written

    def request(self, request: Any) -> Any:
        original = request.writeTo

        def write_to(transport: Any) -> Any:
            result = original(transport)
            self._written(transport)
            return result

        request.writeTo = write_to
        return self._connection.request(request)


class _Steps:
    """A coroutine, each step of which is made by *run*."""

    # A context variable would not do: on Twisted's reactor all timers that are due run in the context of one.
    def __init__(self, coroutine: Coroutine[Any, Any, Any], run: Callable[..., Any]) -> None:
        self._coroutine = coroutine
        self._run = run

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value = self._coroutine.send, None
        while True:
            try:
                waits_for = self._run(step, value)
            except StopIteration as end:
                return end.value
            try:
                step, value = self._coroutine.send, (yield waits_for)
            except BaseException as error:  # it is cancelled, or what it waits for failed
                step, value = self._coroutine.throw, error
