"""Finds out whether and when a request was sent. Only this file uses internals of Scrapy's download handlers.

Scrapy's signals report when a request reaches the downloader, long before its connection is established, and
when its response begins. A delay between two requests to a site counts from a moment between these two, when
the connection writes the request. If this moment is unknown, the delay counts from the response, because a
delay that begins too late is safe, and one that begins too early is not. tests/crawl/test_outgoing.py checks
the used internals for every supported version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
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
"""Iterations of the event loop after which a write to a transport has certainly reached the socket.

asyncio's loop needs two: it runs the callbacks of call_soon() before the callbacks of writable sockets. A
write that TLS buffers needs one more. A loop that queues writable sockets (uvloop) needs twice as many."""


class DownloadHooks:
    """Knows which requests reached a download handler.

    Calls *gone* with each watched request, once or more. At the first call, the request has certainly been
    sent.
    """

    def __init__(self, crawler: Crawler, gone: Callable[[Request], None]) -> None:
        self._crawler = crawler
        self._gone = gone
        self._watched: WeakSet[Request] = WeakSet()
        self._reached: WeakSet[Request] | None = None
        self._pools: WeakSet[HTTPConnectionPool] = WeakSet()
        self._current: Request | None = None
        """The request whose download handler is running at this moment; None: no handler runs, or the request
        is not watched."""
        self.watches = False
        """`watch` was called."""

    def watch(self, request: Request) -> None:
        """Report when *request*, which the engine is about to get, is sent."""
        if not self.watches:
            self.watches = True
            self._crawler.signals.connect(self._answer_began, signals.headers_received)
        self._watched.add(request)

    def is_watched(self, request: Request) -> bool:
        """Return whether `watch` was called for *request*."""
        return request in self._watched

    def move(self, request: Request, to: Request) -> None:
        """Record that the engine gets *to*, a copy, instead of *request*."""
        if request in self._watched:
            self._watched.add(to)

    def reached(self, request: Request) -> bool:
        """Return whether a download handler got *request*; True also if the downloader is unlike Scrapy's.

        False means that a downloader middleware has ended the request (for example because of `robots.txt`,
        or with a cached response), so no site got it.
        """
        return self._reached is None or request in self._reached

    def _answer_began(self, request: Request) -> None:
        if request in self._watched:
            self._gone(request)

    def install(self) -> None:
        """Wrap the download handlers, before the first download."""
        downloader = getattr(self._crawler.engine, "downloader", None)
        handlers: Any = getattr(downloader, "handlers", None)
        if not callable(getattr(handlers, "_get_handler", None)):
            logger.debug("%r has no download handlers like Scrapy's: delays count from responses", downloader)
            return
        reached = self._reached = WeakSet[Request]()
        name = "download_request_async"
        if not hasattr(handlers, name):
            name = "download_request"  # Scrapy 2.13
        original = getattr(handlers, name)

        def download(request: Request, *spider: Any) -> Any:
            reached.add(request)
            if not self.watches:
                return original(request, *spider)
            run = partial(self._run, self._watch_pool(handlers, request))
            started = run(original, request, *spider)
            return _Steps(started, run) if asyncio.iscoroutine(started) else started

        setattr(handlers, name, download)

    def _run(self, request: Request | None, call: Callable[..., Any], *args: Any) -> Any:
        before, self._current = self._current, request
        try:
            return call(*args)
        finally:
            self._current = before

    def _watch_pool(self, handlers: Any, request: Request) -> Request | None:
        """Return *request* if it is watched, otherwise None.

        If Scrapy's HTTP/1.1 handler downloads a watched request, its connection will report the request.
        """
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
            # If a kept-open connection breaks, Twisted would repeat the request at once, without a delay.
            # Instead, Scrapy's RetryMiddleware repeats it, under another lease.
            retries, pool.retryAutomatically = pool.retryAutomatically, False
            try:
                connecting = original(key, endpoint)
            finally:
                pool.retryAutomatically = retries
            return connecting.addCallback(_Connection, partial(self._written, request))

        pool.getConnection = get_connection

    def _written(self, request: Request, transport: Any) -> None:
        """Record that *request* was written to *transport*, which sends it as soon as it can."""
        tls = transport.protocol if getattr(transport, "TLS", False) else transport
        if not isinstance(tls, TLSMemoryBIOProtocol):
            self._gone_after(TURNS, request)
            return
        done = getattr(tls, "_handshakeDone", None)
        if done:
            self._gone_after(TURNS, request)
        elif done is False:
            # The connection is established, but sends nothing before the TLS handshake is complete.
            protocol: Any = tls.wrappedProtocol
            protocol.handshakeCompleted = partial(self._gone_after, TURNS, request)
            alsoProvides(protocol, IHandshakeListener)

    def _gone_after(self, turns: int, request: Request) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._gone_after, turns - 1, request)
        else:
            self._gone(request)


class _Connection:
    """Wraps a connection for Twisted's Agent, which calls `request` once."""

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
    """Wraps a coroutine so that *run* executes each of its steps."""

    # A context variable would not do, because Twisted's reactor runs all due timers in the context of one of
    # these timers.
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
            except BaseException as error:  # the task was cancelled, or the awaitable has failed
                step, value = self._coroutine.throw, error
