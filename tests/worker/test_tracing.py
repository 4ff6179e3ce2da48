"""A worker's spans of traced entries, with a real Redis and an exporter of OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind
from scrapy import Request, signals
from scrapy.http import Response
from scrapy.signalmanager import SignalManager

from scrapy_dq.frontier.model import Admission, Lease
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.scheduling import tracing
from scrapy_dq.settings import Config
from scrapy_dq.sharding.make import worker_of
from worker.engine import Crawl, Engine, until

LOGIN = "https://me:s3cr3t@books.example/login?page=3&api_key=s3cr3t"
IDS = b"\7" + bytes(range(1, 25))
_numbers = count()


class Traced:
    """A tracing worker and its spans."""

    def __init__(self, crawl: Crawl, monkeypatch: pytest.MonkeyPatch, share: float, **provider: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**provider)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        monkeypatch.setattr(tracing.trace, "get_tracer_provider", lambda: self.provider)
        self.signals = SignalManager()
        self.requests: dict[Request, bytes] = {}
        crawler: Any = SimpleNamespace(signals=self.signals)
        self.tracing = tracing.Tracing(crawler, Config(crawl.name, trace=share), self.requests.get)
        self.engine = Engine(crawl, make=lambda *of, **more: self.tracing.traced(worker_of(*of, **more)))

    @property
    def worker(self) -> Worker:
        return self.engine.worker

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name.removesuffix(f" {self.tracing.crawl}") for span in self.spans]

    def put(self, url: str, parent: bytes | None = None, payload: bytes = b"\1") -> Put:
        entry_id = b"%012d" % next(_numbers)
        put = Put(entry_id, Admission.SEEN, entry_id, 0, False, payload, parent, Request(url))
        put.partition = b"books.example"
        assert self.worker.put(put)
        return put

    async def lease(self) -> Lease:
        leases: list[Lease] = []
        await until(lambda: (lease := self.worker.take()) and not leases.append(lease), "a lease has come")
        return leases[0]

    def send(self, signal: object, **about: Any) -> None:
        self.signals.send_catch_log(signal, **about)


@pytest.fixture
def trace(crawl: Crawl, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(share: float = 1.0, **provider: Any) -> AsyncIterator[Traced]:
        made = Traced(crawl, monkeypatch, share, **provider)
        async with made.engine:
            yield made

    return make


def above(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def test_put_lease_download_and_ack_are_one_trace(trace: Callable[..., Any]) -> None:
    """Spans have the attributes of OpenTelemetry's conventions, without logins.

    The span of the lease is the parent of the spans of its download, puts and ack.
    """
    async with trace() as made:
        with made.tracing.tracer.start_as_current_span("of the program"):
            put = made.put(LOGIN)
        lease = await made.lease()
        request = Request(LOGIN)
        made.requests[request] = lease.entry_id
        made.send(signals.request_reached_downloader, request=request)
        made.send(signals.response_downloaded, request=request, response=Response(LOGIN, status=404))
        made.worker.downloaded(lease.entry_id)
        child = made.put("https://books.example/2", lease.entry_id)
        made.worker.ack(lease.entry_id)
        begun, other, download, put_child, ack, ended = made.spans
        assert made.names == ["put", "of the program", "GET", "put", "ack", "lease"]
        trace_id, root = ids(begun)
        assert {ids(span)[0] for span in made.spans if span is not other} == {trace_id}
        assert above(begun) is None
        assert above(ended) == root
        assert above(download) == above(put_child) == above(ack) == ids(ended)[1]
        assert lease.payload == b"\7" + trace_id.to_bytes(16, "big") + root.to_bytes(8, "big") + b"\1"
        assert child.payload[17:25] == ids(put_child)[1].to_bytes(8, "big")
        assert begun.kind is put_child.kind is SpanKind.PRODUCER
        assert download.kind is ack.kind is SpanKind.CLIENT
        assert ended.kind is SpanKind.CONSUMER
        common = {
            "messaging.system": "scrapy_dq",
            "messaging.destination.name": made.tracing.crawl,
            "messaging.message.id": put.entry_id.hex(),
        }
        url = "https://books.example/login?..."
        assert begun.attributes == common | {
            "messaging.operation.name": "put",
            "messaging.operation.type": "send",
            "messaging.destination.partition.id": "books.example",
            "url.full": url,
        }
        assert ended.attributes == common | {
            "messaging.operation.name": "lease",
            "messaging.operation.type": "process",
            "messaging.destination.partition.id": "books.example",
            "messaging.client.id": made.worker.id,
            "dq.attempts": 0,
            "dq.outcome": "ack",
        }
        assert ack.attributes == common | {
            "messaging.operation.name": "ack", "messaging.operation.type": "settle",
        }  # fmt: skip
        assert download.attributes == {
            "http.request.method": "GET", "url.full": url, "server.address": "books.example",
            "server.port": 443, "http.response.status_code": 404, "error.type": "404",
        }  # fmt: skip


async def test_a_span_shows_only_the_kind_of_a_failure(trace: Callable[..., Any]) -> None:
    """This holds for the lease and for a download without a response."""
    async with trace() as made:
        made.put("https://books.example/")
        lease = await made.lease()
        request = Request("https://books.example/", method="BREW")
        made.requests[request] = lease.entry_id
        made.send(signals.request_reached_downloader, request=request)
        made.worker.fail(lease.entry_id, "download: TimeoutError: of https://me:s3cr3t@books.example/", "")
        assert made.names == ["put", "HTTP", "fail", "lease"]
        _, download, _, ended = made.spans
        assert download.attributes["error.type"] == download.attributes["http.request.method"] == "_OTHER"
        assert ended.attributes["error.type"] == "TimeoutError"
        assert ended.status.description is None  # a description may quote a body, a header, or a URL
        assert not ended.status.is_ok
        assert not download.status.is_ok


async def test_requests_yielded_after_a_release_belong_to_the_trace(trace: Callable[..., Any]) -> None:
    """The callback continues after the grace period; the lease ends once."""
    async with trace() as made:
        made.put("https://books.example/")
        lease = await made.lease()
        made.worker.release(lease.entry_id)
        made.put("https://books.example/2", lease.entry_id)
        made.worker.ack(lease.entry_id)
        assert made.names == ["put", "release", "lease", "put"]
        assert above(made.spans[3]) == ids(made.spans[2])[1]


async def test_a_start_payload_begins_a_trace_with_its_lease(trace: Callable[..., Any]) -> None:
    """The program that wrote the payload knows of no trace."""
    async with trace() as made:
        other = Worker.put  # without tracing, as another program puts it
        put = Put(b"0" * 12, Admission.ID, b"0" * 12, 0, False, b"\2https://books.example/")
        assert other(made.worker, put)
        lease = await made.lease()
        made.put("https://books.example/", lease.entry_id)
        made.worker.bury(lease.entry_id, "no request")
        assert made.names == ["put", "bury", "lease"]
        assert above(made.spans[2]) is None
        assert above(made.spans[0]) == above(made.spans[1]) == ids(made.spans[2])[1]


@pytest.mark.parametrize("sampler", [None, ALWAYS_OFF])
async def test_a_request_that_is_not_sampled_is_stored_without_ids(
    trace: Callable[..., Any], sampler: Any
) -> None:
    """Children of such a request are not traced either. A sampler of the program may exclude a request."""
    async with trace(1.0 if sampler else 1e-9, sampler=sampler) as made:
        made.put("https://books.example/")
        lease = await made.lease()
        child = made.put("https://books.example/2", lease.entry_id)
        made.worker.ack(lease.entry_id)
        assert lease.payload == child.payload == b"\1"
        assert made.spans == []


async def test_a_trace_that_another_worker_began_is_continued(trace: Callable[..., Any]) -> None:
    """The worker's own share of traced requests (DQ_TRACE) makes no difference."""
    async with trace(1e-9) as made:
        made.put("https://books.example/", payload=IDS + b"\1")
        made.worker.ack((await made.lease()).entry_id)
        assert made.names == ["ack", "lease"]
        assert ids(made.spans[1])[0] == int.from_bytes(IDS[1:17], "big")
        assert above(made.spans[1]) == int.from_bytes(IDS[17:], "big")


async def test_a_processor_that_raises_loses_no_request(
    trace: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """One log line reports the error."""

    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("broken")

    tracing._once.logged = False
    async with trace() as made:
        made.put("https://books.example/1")
        begun = await made.lease()
        made.provider.add_span_processor(Broken())
        made.put("https://books.example/2", begun.entry_id)
        made.worker.ack(begun.entry_id)
        made.worker.ack((await made.lease()).entry_id)
        await until(
            lambda: not made.worker.unconfirmed_puts and made.worker.census.in_flight == 0, "all is done"
        )
    (line,) = (record.message for record in caplog.records if "broken" in record.message)
    assert line.startswith("DQ_TRACE: spans are late or lost; the crawl continues (RuntimeError('broken')). ")
