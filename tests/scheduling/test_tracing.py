"""With DQ_TRACE, real crawls send their spans to a real OTLP/HTTP receiver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.given import Errors, Look, MakeProject, Tree
from support.post_server import PostServer
from support.tree_spider import spider_of
from support.waiting import free_port, wait_until

HOLDING = spider_of("""
    hold = ""

    async def parse(self, response):
        path = page_path(response)
        for request in response.follow_all(css="a", callback=self.parse, dont_filter=True):
            yield request
        if self.hold and path == "/p/0":
            await asyncio.sleep(3600)
        yield {"path": path}
        self.record("done", path)
""")
WITHOUT = spider_of("""
    def closed(self, reason):
        # redis-py may import other parts of OpenTelemetry for its own metrics.
        names = "opentelemetry.exporter", "scrapy_dq.scheduling.tracing"
        self.logger.info("of it: %s", [name for name in sys.modules if name.startswith(names)])
""")
SHORTER = spider_of("", before="from scrapy_dq.scheduling import tracing\ntracing.LAST_S = 1.0\n")


class Span(NamedTuple):
    """A span that the receiver has received."""

    name: str
    trace: bytes
    id: bytes
    above: bytes
    of: dict[str, Any]
    service: str


class Receiver(PostServer):
    """A receiver of spans at /take."""

    @property
    def spans(self) -> list[Span]:
        """Return all spans that were received so far."""
        assert {path for path, _ in self.posted} <= {"/take/v1/traces"}
        return [span for _, body in list(self.posted) for span in spans_of(body)]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def spans_of(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = {each.key: each.value.string_value for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                of = {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes}
                above = span.parent_span_id
                yield Span(span.name, span.trace_id, span.span_id, above, of, about["service.name"])


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with closing(Receiver()) as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{made.url}/take")
        yield made


def test_one_trace_connects_a_start_request_with_each_page_on_two_workers(
    tree: Tree, receiver: Receiver
) -> None:
    """In the trace, the put of a page is a child of the lease of the page that links to it.

    The lease of a page is a child of its put. Its download and its ack are children of its lease.
    """
    _, project = tree(settings={"DQ_TRACE": 1, "CONCURRENT_REQUESTS": 2}, pages=30, fan_out=3, latency_s=0.05)
    workers = project.start_workers(2)
    assert set(project.wait(60)) <= {"finished", "run_over"}
    assert len(project.count()) == 30
    leases = {span.id: span for span in receiver.named(f"lease {project.name}")}
    puts = {span.id: span for span in receiver.named(f"put {project.name}")}
    assert len(leases) == 30
    assert len({span.trace for span in leases.values()}) == 1
    downloads = {span.above: span.of for span in receiver.named("GET")}
    assert {of["http.response.status_code"] for of in downloads.values()} == {200}
    assert {span.above for span in receiver.named(f"ack {project.name}")} == set(downloads) == set(leases)
    for lease in leases.values():
        url = downloads[lease.id]["url.full"]
        path = [url]
        put = puts[lease.above]
        while put.above:  # continue up to start()
            assert put.of["url.full"] == path[-1]
            path.append(downloads[put.above]["url.full"])
            put = puts[leases[put.above].above]
        numbers = [int(url.rpartition("/")[2]) for url in path]
        assert numbers[-1] == 0
        assert [(number - 1) // 3 for number in numbers[:-1]] == numbers[1:]
    assert len({span.of["messaging.client.id"] for span in leases.values()}) == 2
    assert {span.service for span in receiver.spans} == {"tree_project"}
    assert not any("ERROR" in worker.text or "WARNING" in worker.text for worker in workers)


def test_the_trace_of_a_killed_worker_continues_in_the_next_worker(
    tree: Tree, look: Look, receiver: Receiver
) -> None:
    """The killed worker's last lease has no span. The links that it had put are not put a second time."""
    _, project = tree(spider=HOLDING, settings={"DQ_TRACE": 1}, pages=13, fan_out=3)
    lease = f"lease {project.name}"
    killed = project.start_worker(args={"hold": "1"})
    wait_until(lambda: len(receiver.named(lease)) == 12, "all but the first page are done", 30)
    wait_until(lambda: look(project).census.done == 12, "Redis knows that")
    killed.kill()
    project.run_to_end()
    assert set(project.count().values()) == {1}
    assert len(project.count()) == 13
    *before, last = receiver.named(lease)
    assert len(before) == 12
    assert {span.trace for span in before} == {last.trace}
    assert {last.of["messaging.client.id"]} != {span.of["messaging.client.id"] for span in before}
    (root,) = (span for span in receiver.spans if span.id == last.above)
    assert not root.above
    assert root.trace == last.trace


def test_tracing_is_off_by_default_and_imports_nothing(tree: Tree, receiver: Receiver) -> None:
    """Without DQ_TRACE, no span is sent, and neither OpenTelemetry's exporter nor our tracing is imported."""
    spider = WITHOUT
    _, project = tree(spider=spider, pages=3)
    worker = project.run_to_end(environ={"A_PROCESS": "of its own"})
    assert "of it: []" in worker.text
    assert not receiver.spans


def test_an_extra_that_is_not_installed_is_named(
    redis_url: str, make_project: MakeProject, errors: Errors
) -> None:
    """One line names the packages to install, and the crawl does not begin."""
    spider = WITHOUT + "sys.modules['opentelemetry'] = None\nsys.modules.pop('TRACING', None)\n"
    spider = spider.replace("TRACING", "scrapy_dq.scheduling.tracing")
    project = make_project(
        ["http://127.0.0.1:1/"], redis_url=redis_url, spider=spider, settings={"DQ_TRACE": 0.5}
    )
    worker = project.run_worker()
    (error,) = errors(worker)
    assert "DQ_TRACE = 0.5 needs OpenTelemetry (" in error
    assert error.endswith("): pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http")


def test_an_invalid_otel_variable_ends_the_crawl(
    redis_url: str,
    make_project: MakeProject,
    errors: Errors,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line quotes OpenTelemetry's reason."""
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0")
    project = make_project(["http://127.0.0.1:1/"], redis_url=redis_url, settings={"DQ_TRACE": 0.5})
    (error,) = errors(project.run_worker())
    assert "DQ_TRACE: OpenTelemetry rejects an OTEL_* variable: " in error


@pytest.mark.parametrize("path", ["/drip", ""])
def test_a_receiver_that_fails_delays_only_the_end(
    tree: Tree, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The process waits for the receiver for at most LAST_S, and logs one line about it."""
    url = receiver.url + path if path else f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    _, project = tree(spider=SHORTER, settings={"DQ_TRACE": 1}, pages=20)
    worker = project.run_to_end()
    assert len(project.count()) == 20
    assert worker.text.count("DQ_TRACE: spans are late or lost; the crawl continues (") == 1
    assert worker.text.count("] WARNING: ") == 1
    assert "ERROR" not in worker.text
