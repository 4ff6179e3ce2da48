"""DQ_TRACE: spans of OpenTelemetry, from a start request to the last page that it leads to, on all workers.

The worker that finds a request makes its span `put`. The worker that leases it makes the span `lease`, which
lasts until the lease is settled. The span `lease` contains a span for the download, a span for the settlement
(`ack`, `again`, `fail`, `release`, `decline` or `bury`), and a span `put` for each request that the callback
yields. The ids of trace and span are stored in front of the payload of a traced request. The identity of the
request does not depend on these ids: if its parent runs twice, the second put has other ids, but must be
recognised as a repeat. Later visits of a page (DQ_REVISIT) are not part of the trace of its first visit. The
sites get no trace data.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlunsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, TraceFlags
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from scrapy_dq.codec import formats
from scrapy_dq.frontier.model import Lease
from scrapy_dq.frontier.moves import Bury, Ending, Fail, Put, Release, Return
from scrapy_dq.frontier.worker.settling import Settling
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling.own_thread import within
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.start_urls.payloads import FED
from scrapy_dq.text import printable, prose_without_logins

logger = logging.getLogger(__name__)
LAST_S = 5.0
"""How long the end of a crawl waits for its last spans to be sent."""
MAX_URL_LENGTH = 2000
"""Maximum length of a URL in a span."""
_MARK = bytes((formats.TRACED,))
_QUERY = re.compile(r"\?\S*")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
_PORTS = {"http": 80, "https": 443}
_SDK_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace.export",
)


class Tracing:
    """Sends spans to the provider that the program has set.

    Without such a provider, it sends the spans by OTLP, as the OTEL_* variables define.
    """

    def __init__(self, crawler: Crawler, config: Config, lease_of: Callable[[Request], bytes]) -> None:
        """*lease_of* returns the entry id of a request in progress."""
        self.crawler = crawler
        self.crawl = printable(config.crawl, 200)
        self.lease_of = lease_of
        self._share = config.trace
        self._random = random.Random()  # not the shared generator, which the project may have seeded
        provider: Any = trace.get_tracer_provider()
        self._flush: Callable[[], object] = getattr(provider, "force_flush", bool)
        if isinstance(provider, trace.ProxyTracerProvider):
            provider = _provider(crawler.settings["BOT_NAME"])
            self._flush = provider.shutdown
        self.tracer: trace.Tracer = provider.get_tracer("scrapy_dq")

    def traced(self, worker: Worker) -> Worker:
        """Return *worker*, with spans of the entries that are traced."""
        return cast("Worker", TracedWorker(self, worker))

    def begins(self) -> bool:
        """Return whether the next start request is traced."""
        return self._random.random() < self._share

    async def end(self) -> None:
        """Send the remaining spans; takes at most LAST_S, even if the receiver hangs."""
        try:
            await within(LAST_S, self._flushed, "spans")
        except asyncio.TimeoutError:
            _once.say(f"not all spans could be sent within {LAST_S:g} s after the crawl")

    def _flushed(self) -> None:
        try:
            self._flush()
        except Exception:
            logger.exception("Unexpected error while the last spans were sent")


class TracedWorker(Settling):
    """Passes all calls on to a worker, and makes spans of the entries that are traced."""

    def __init__(self, tracing: Tracing, worker: Worker) -> None:
        self._worker = worker
        self._tracing = tracing
        self._traced: dict[bytes, Span] = {}
        """The span of each traced lease. `take` adds it. The end of the lease removes it, unless the lease is
        only released."""
        self._downloads: dict[bytes, Span] = {}
        # Signals hold their receivers weakly, but the session keeps this object.
        connect = tracing.crawler.signals.connect
        connect(self._download_begins, signals.request_reached_downloader)
        connect(self._answered, signals.response_downloaded)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def put(self, put: Put) -> bool:
        lease = None if put.parent is None else self._traced.get(put.parent)
        if lease is None and (put.parent is not None or not self._tracing.begins()):
            return self._worker.put(put)
        span = self._span("put", "send", SpanKind.PRODUCER, lease, put.entry_id, put.partition)
        if _sampled(span):
            span.set_attribute("url.full", _shown(put.source))
            put.payload = _MARK + _ids(span.get_span_context()) + put.payload
        placed = self._worker.put(put)
        if placed:
            _end(span)
        return placed

    def take(self) -> Lease | None:
        lease = self._worker.take()
        if lease is not None:
            if lease.payload[:1] == _MARK:
                self._begin(lease, NonRecordingSpan(_context_of(lease.payload)))
            elif lease.payload[:1] in FED and self._tracing.begins():
                self._begin(lease, None)
        return lease

    def downloaded(self, entry_id: bytes) -> None:
        self._not_answered(entry_id)
        self._worker.downloaded(entry_id)

    def settle(self, move: Ending | Return) -> None:
        self._worker.settle(move)
        # After a release the span stays, because the callback may continue, and its requests belong to the
        # trace.
        take = self._traced.get if isinstance(move, Release) else self._traced.pop
        lease = take(move.entry_id, None)
        if lease is None or not lease.is_recording():
            return
        how = type(move).__name__.lower()
        self._not_answered(move.entry_id)
        _end(self._span(how, "settle", SpanKind.CLIENT, lease, move.entry_id))
        lease.set_attribute("dq.outcome", how)
        error = "_OTHER" if isinstance(move, Bury) else ""
        # The span gets only the kind of the failure, because the whole reason may quote a body, a header, or
        # a URL.
        _end(lease, _kind_of(move.reason) if isinstance(move, Fail) else error)

    def _begin(self, lease: Lease, above: Span | None) -> None:
        span = self._span("lease", "process", SpanKind.CONSUMER, above, lease.entry_id, lease.partition)
        if _sampled(span):
            span.set_attributes({"messaging.client.id": self._worker.id, "dq.attempts": lease.attempts})
            self._traced[lease.entry_id] = span

    def _span(
        self,
        name: str,
        kind: str,
        role: SpanKind,
        above: Span | None,
        entry_id: bytes,
        partition: bytes = b"",
    ) -> Span:
        crawl = self._tracing.crawl
        about: dict[str, str | int] = {
            "messaging.system": "scrapy_dq",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": crawl,
            "messaging.message.id": entry_id.hex(),
        }
        if partition:
            about["messaging.destination.partition.id"] = printable(partition.decode("utf-8", "replace"))
        return self._start(f"{name} {crawl}", above, role, about)

    def _start(self, name: str, above: Span | None, role: SpanKind, about: dict[str, str | int]) -> Span:
        # The current context of this thread belongs to no request, so the span does not use it.
        context = Context() if above is None else trace.set_span_in_context(above, Context())
        try:
            return self._tracing.tracer.start_span(name, context, role, about)
        except Exception as error:  # a span processor of the project must not lose a request
            _once.say(repr(error))
            return trace.INVALID_SPAN

    # Downloads.

    def _download_begins(self, request: Request) -> None:
        entry_id = self._tracing.lease_of(request)
        lease = self._traced.get(entry_id)
        if lease is None:
            return
        parts = urlparse_cached(request)
        method = request.method if request.method in _METHODS else "_OTHER"
        about: dict[str, str | int] = {
            "http.request.method": method,
            "url.full": _shown(request),
            "server.address": printable(parts.hostname or "", 253),
        }
        with suppress(ValueError, KeyError):  # the port is invalid, or the scheme has no usual port
            about["server.port"] = parts.port or _PORTS[parts.scheme]
        name = "HTTP" if method == "_OTHER" else method
        self._downloads[entry_id] = self._start(name, lease, SpanKind.CLIENT, about)

    def _answered(self, response: Response, request: Request) -> None:
        span = self._downloads.pop(self._tracing.lease_of(request), None)
        if span is not None:
            span.set_attribute("http.response.status_code", response.status)
            _end(span, str(response.status) if response.status >= 400 else "")

    def _not_answered(self, entry_id: bytes) -> None:
        span = self._downloads.pop(entry_id, None)
        if span is not None:
            _end(span, "_OTHER")


class _Once(logging.Filter):
    """Logs a single line in place of the SDK's lines about each batch that the SDK cannot send."""

    logged = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Let no record pass."""
        if record.levelno >= logging.WARNING:
            self.say(record.getMessage())
        return False

    def say(self, reason: str) -> None:
        """Log *reason*, the first time only."""
        if not self.logged:
            self.logged = True
            logger.warning(
                "DQ_TRACE: spans are late or lost; the crawl continues (%s). Logged once",
                printable(_QUERY.sub("?...", prose_without_logins(reason))),
            )


_once = _Once()


def _provider(service: str) -> TracerProvider:
    """Return a provider that sends spans by OTLP, in another thread.

    Raises:
        ConfigError: a variable of the environment is invalid.
    """
    _once.logged = False
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addFilter(_once)
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        reason = printable(prose_without_logins(str(error)))
        raise ConfigError(f"DQ_TRACE: OpenTelemetry rejects an OTEL_* variable: {reason}") from error
    return provider


def _sampled(span: Span) -> bool:
    """Return whether *span* is exported; a sampler of the program may have excluded it."""
    return span.get_span_context().trace_flags.sampled


def _end(span: Span, error: str = "") -> None:
    """End *span*; *error*: the kind of error with which it ends; "": there was no error."""
    if error:
        span.set_status(StatusCode.ERROR)
        span.set_attribute("error.type", error)
    try:
        span.end()
    except Exception as error:  # a span processor of the project may raise
        _once.say(repr(error))


def _ids(context: SpanContext) -> bytes:
    return context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")


def _context_of(payload: bytes) -> SpanContext:
    """Return the ids in front of a payload, as a context."""
    ids = payload[1 : 1 + formats.TRACE_BYTES]
    trace_id, span_id = int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:], "big")
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _shown(request: Request) -> str:
    """Return the URL of *request* without login, query and fragment, which may contain secrets.

    For a URL without a host, such as `data:`, which contains a whole page, return only the scheme.
    """
    parts = urlparse_cached(request)
    if not parts.netloc:
        return f"{parts.scheme}:..."
    url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    shown = printable(prose_without_logins(url, limit=MAX_URL_LENGTH), MAX_URL_LENGTH)
    return shown + ("?..." if parts.query else "")


def _kind_of(reason: str) -> str:
    """Return the name of the exception in a reason, such as `download: TimeoutError: ...`, or "_OTHER"."""
    name = reason.partition(": ")[2].partition(":")[0]
    return name if name.isidentifier() else "_OTHER"
