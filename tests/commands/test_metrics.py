"""`scrapy dq metrics`: the series that Prometheus reads, their values, and who may read them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from scrapy.settings import Settings

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
pytest.importorskip("starlette", reason="the extra `web` is not installed")


from scrapy_dq.frontier import peek, retry
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.answers import Figures
from scrapy_dq.frontier.model import Order
from scrapy_dq.inspection import crawls
from scrapy_dq.inspection.crawls import CrawlList
from scrapy_dq.inspection.metrics import Metrics, label_of
from scrapy_dq.inspection.place import Place
from scrapy_dq.web import app
from support.given import StartRedis
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, fail, limited, put, puts
from support.metrics_server import MetricsServer, Samples
from support.place import place_of
from support.redis_server import RedisServer
from support.samples import packed
from support.stored_requests import stored
from support.waiting import free_port, wait_until
from support.web_page import TOKEN, WebPage, ask_app, refused

PASSWORD = "s3cr3t-w0rd"
SPIDER = replace(IDENTITY, starts="{}")


@pytest.fixture
def place(server: RedisServer, crawl_name: str) -> Iterator[Place]:
    """Yield the place of a crawl in the Redis of the tests."""
    with server.client() as client:
        yield place_of(client, server.url, crawl_name)


@pytest.fixture
def scrape(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Samples]:
    """Return a function that scrapes the crawl. Each call reads Redis again."""
    monkeypatch.setattr(crawls, "EVERY_S", 0.0)
    metrics = Metrics(CrawlList(place.crawl))
    return lambda: Samples(metrics.text(place).decode())


def note(live: LiveFrontier, kind: str, who: str, count: int = 1, run: int = 0) -> None:
    """Append an event to the journal of the crawl."""
    record = msgpack.packb([run, int(time.time() * 1000), kind, who, count, ""])
    live.redis.rpush(live.key("journal"), record)


def test_all_counts_of_a_crawl_are_exported(scrape: Callable[[], Samples], live: LiveFrontier) -> None:
    """A crawl has 37 series about requests, workers, partitions, and the workers' own counts."""
    worker = HandWorker(live, "worker", limited(0.0, 0, **{"slow.example": (60.0, None)}))
    moves = [*puts(b"a.example", 7), *puts(b"slow.example", 3, 100), put(200, due_in=3600)]
    worker.exchange(*moves, want=3)
    held = worker.take(0) or [int(entry) for entry in worker.held]
    worker.exchange(ack(held[0]), fail(held[1]))
    sample = packed(0, int(time.time()), 0, 1, 1, 0, 7, 1, 1, 1, 0, 1000, 50, 250, 3, 4500)
    live.redis.rpush(live.key("samples"), sample)
    found = scrape()
    assert found.value("dq_up") == 1
    assert found.value("dq_crawls") == 1
    assert (found.value("dq_redis_memory_bytes") or 0) > 0
    assert found.value("dq_redis_writable") == 1
    assert found.value("dq_redis_maxmemory_bytes") == 0
    series = found.of(live.crawl)
    assert len(series) == 37
    expected = {
        "dq_crawl_up": 1, "dq_requests waiting": 7, "dq_requests in_flight": 1, "dq_requests delayed": 1,
        "dq_requests_done_total": 1, "dq_requests_failed_total": 1, "dq_dead_letters": 0, "dq_gone": 0,
        "dq_workers unknown": 1, "dq_workers alive": 0, "dq_on_hold": 0, "dq_phase open": 1,
        "dq_phase finished": 0, "dq_run_number": 0, "dq_exchange_duration_seconds_count": 50,
        "dq_exchange_duration_seconds_sum": 0.25, "dq_redis_errors_total": 3, "dq_outage_seconds_total": 4.5,
        "dq_workers_died_total": 0, "dq_leases_reclaimed_total": 0, "dq_run_info   exact spider": 1,
        "dq_run_finished_timestamp_seconds": 0,
    }  # fmt: skip
    assert {name: series[name] for name in expected} == expected
    states = {name: value for name, value in series.items() if name.startswith("dq_partitions")}
    assert sum(states.values()) == 2
    assert len(states) == 4
    assert found.types["dq_exchange_duration_seconds"] == "summary"


def test_a_worker_is_silent_when_its_heartbeat_stands_still(
    scrape: Callable[[], Samples], live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second scrape on, a worker counts as silent if its heartbeat stands still, or as fenced.

    All three workers reported an outage, but only the live worker counts as waiting.
    """
    workers = [HandWorker(live, name) for name in ("beats", "silent", "fenced")]
    for worker in workers:
        live.call("report", worker.worker_id, worker.epoch, False, Figures(), 0.0, 5.0, "memory is full")
    series = scrape().of(live.crawl)
    assert (series["dq_workers unknown"], series["dq_workers_waiting"]) == (3, 3)
    workers[0].fence("fenced")
    live.redis.hincrby(live.key("beats"), "beats", 1)
    monkeypatch.setattr("scrapy_dq.inspection.snapshot.WAIT_S", 0.0)
    series = scrape().of(live.crawl)
    found = {state: series[f"dq_workers {state}"] for state in ("alive", "silent", "fenced", "unknown")}
    assert found == {"alive": 1, "silent": 1, "fenced": 1, "unknown": 0}
    assert series["dq_workers_waiting"] == 1


def test_a_counter_does_not_fall_when_failed_requests_are_retried(
    scrape: Callable[[], Samples], live: LiveFrontier, worker: HandWorker
) -> None:
    """Prometheus would treat a lower value as a restart, and would count all earlier failures again."""
    worker.exchange(*[put(n, payload=stored(f"http://a.example/{n}")) for n in range(5)], want=5)
    worker.exchange(*map(fail, range(5)))
    assert scrape().of(live.crawl)["dq_requests_failed_total"] == 5
    retry(live.redis, live.crawl, peek(live.redis, live.crawl), failed=lambda record: True)
    series = scrape().of(live.crawl)
    assert (series["dq_requests_failed_total"], series["dq_requests waiting"]) == (5, 5)
    worker.take(1)
    worker.exchange(*map(fail, [int(entry) for entry in worker.held]))
    assert scrape().of(live.crawl)["dq_requests_failed_total"] == 6


def test_deaths_are_counted_from_the_journal(scrape: Callable[[], Samples], live: LiveFrontier) -> None:
    """Each death in this run counts once, even after its event has left the journal."""
    worker = HandWorker(live, "worker")
    note(live, "died", "of another run", 1000, run=7)
    note(live, "died", "first", 3)
    assert scrape().of(live.crawl)["dq_workers_died_total"] == 1
    note(live, "died", "second", 4)
    assert scrape().of(live.crawl)["dq_leases_reclaimed_total"] == 7
    live.redis.ltrim(live.key("journal"), 1, 0)
    other = HandWorker(live, "dies")
    other.exchange(*puts(b"a.example", 9), want=4)
    worker.reclaim("dies")
    for _ in range(2):
        series = scrape().of(live.crawl)
        assert (series["dq_workers_died_total"], series["dq_leases_reclaimed_total"]) == (3, 11)


def test_dq_stopped_is_1_only_after_max_pages_or_the_command_stop(
    scrape: Callable[[], Samples], live: LiveFrontier
) -> None:
    """`dq_stopped` is 1 after max_pages or `scrapy dq stop`, and 0 after a signal, a kill or a join."""

    def stopped() -> float | None:
        return scrape().of(live.crawl)["dq_stopped"]

    for reason, on_purpose in (("shutdown", 0), ("max_pages", 1), ("memusage_exceeded", 0), ("stopped", 1)):
        worker = HandWorker(live, reason, SPIDER)
        worker.exchange(put(1), seeding=1)
        assert stopped() == 0
        worker.leave(reason=reason)
        assert stopped() == on_purpose, reason
    HandWorker(live, "killed", SPIDER)
    HandWorker(live, "program").reclaim("killed")
    assert stopped() == 0
    steer(live.redis, live.crawl, Command.STOP, by="ann@host")
    assert stopped() == 1


def test_counters_begin_at_0_in_each_run(
    scrape: Callable[[], Samples], live: LiveFrontier, worker: HandWorker
) -> None:
    """The previous run's counts, deaths and sums of samples are not included."""
    worker.exchange(put(1), want=1)
    worker.exchange(ack(1))
    note(live, "died", "first")
    live.redis.rpush(live.key("samples"), packed(0, 1_790_000_000, *[9] * 14))
    assert scrape().of(live.crawl)["dq_redis_errors_total"] == 9
    worker.exchange()
    worker.leave()
    assert scrape().of(live.crawl)["dq_phase finished"] == 1
    HandWorker(live, "next")
    series = scrape().of(live.crawl)
    assert (series["dq_run_number"], series["dq_phase open"]) == (1, 1)
    for name in ("dq_requests_done_total", "dq_workers_died_total", "dq_redis_errors_total"):
        assert series[name] == 0


def test_the_run_its_times_and_the_reasons_why_workers_left_are_exported(
    scrape: Callable[[], Samples], live: LiveFrontier
) -> None:
    """For example, an alert can report that no run has finished for a day."""
    crawl = replace(IDENTITY, run_name="night-1", starts="{}")
    worker = HandWorker(live, "worker", crawl)
    series = scrape().of(live.crawl)
    assert series["dq_run_info  night-1 exact spider"] == 1
    began, none = series["dq_run_began_timestamp_seconds"], series["dq_run_finished_timestamp_seconds"]
    assert (began > live.redis.time()[0] - 600, none) == (True, 0)
    worker.exchange(seeding=1)
    worker.exchange()
    live.call("leave", worker.worker_id, worker.epoch, worker.run, False, reason="finished")
    series = scrape().of(live.crawl)
    assert series["dq_run_info finished night-1 exact spider"] == 1
    finished = series["dq_run_finished_timestamp_seconds"]
    assert finished >= began
    HandWorker(live, "next", replace(crawl, run_name="night-2"))
    series = scrape().of(live.crawl)
    assert series["dq_run_info  night-2 exact spider"] == 1
    assert series["dq_run_began_timestamp_seconds"] >= finished
    assert series["dq_run_finished_timestamp_seconds"] == finished


def test_a_crawl_that_cannot_be_read_hides_no_other(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One crawl has a key of another type. Another has unknown records, as a later version might write."""
    monkeypatch.setattr(crawls, "EVERY_S", 0.0)
    server = start_redis()
    with ExitStack() as stack:
        client = stack.enter_context(server.client())
        lives = [
            stack.enter_context(closing(LiveFrontier(server.url, name, Order.FIFO)))
            for name in ("damaged", "later", "fine")
        ]
        for live in lives:
            HandWorker(live, "worker").exchange(*puts(b"a.example", 3))
        client.delete(lives[0].key("rotation"))
        client.set(lives[0].key("rotation"), "x")
        for name, value in (("samples", b"\2later"), ("journal", msgpack.packb([0] * 7))):
            client.delete(lives[1].key(name))
            client.rpush(lives[1].key(name), value)
        metrics = Metrics(CrawlList())
        place = place_of(client, server.url)
        found = Samples(metrics.text(place).decode())
    assert found.value("dq_up") == 1
    assert found.of("damaged").keys() == {"dq_crawl_up", "dq_age_seconds"}
    assert found.of("damaged")["dq_crawl_up"] == 0
    for name in ("later", "fine"):
        assert found.of(name)["dq_requests waiting"] == 3


def test_scrapes_in_quick_succession_get_the_same_values(
    place: Place, live: LiveFrontier, worker: HandWorker
) -> None:
    """Several Prometheus servers do not cause more reads of Redis."""
    metrics = Metrics(CrawlList(live.crawl))
    first = metrics.samples(place)
    worker.exchange(put(1))
    names = {"dq_requests", "dq_requests_done_total"}
    assert [s for s in metrics.samples(place) if s["name"] in names] == [
        s for s in first if s["name"] in names
    ]


def test_labels_are_short_and_printable() -> None:
    """A crawl's name may be any text, but two names never share a label."""
    names = ['{x="1"} 7', "a\nb", "\x1b[31m\x00", "x" * 5000, "x" * 5001, "\u202egnp.exe", "é\U0001f577"]
    labels = {label_of(name) for name in names}
    assert len(labels) == len(names)
    assert all(label.isprintable() and len(label) <= 120 for label in labels)


# The command


def test_dq_metrics_prints_the_metrics_once(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """The output suits node_exporter's textfile collector. The command watches which workers live."""
    worker.exchange(put(1))
    found = Samples("\n".join(dq.lines("metrics")) + "\n")
    series = found.of(live.crawl)
    assert series["dq_requests waiting"] == 1
    assert series["dq_workers silent"] == 1
    assert found.crawls == {live.crawl}
    listed = dq.listed("metrics")
    assert {(s["name"], frozenset(s["labels"].items())) for s in listed} == set(found.series)


def test_dq_up_is_0_without_redis(dq_at: Callable[[str], Any]) -> None:
    """The command succeeds, so that its user replaces an old file that reports a reachable Redis."""
    dq = dq_at(f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0")
    found = Samples("\n".join(dq.lines("metrics")) + "\n")
    assert dq.status == 0
    assert found.value("dq_up") == 0
    assert found.names == {"dq_up", "dq_scrape_seconds"}
    assert "cannot be reached" in "".join(dq.said)  # the reason, for the reader of cron's mail


def test_metrics_are_served_during_an_outage(start_redis: StartRedis, tmp_path: Path) -> None:
    """During an outage, the metrics report only the outage, and no password. SIGTERM ends the server."""
    server = start_redis(appendonly=True, password=PASSWORD)
    with (
        closing(LiveFrontier(server.url, "first", Order.FIFO)) as live,
        MetricsServer(tmp_path, server.url, "first") as metrics,
    ):
        HandWorker(live, "worker").exchange(*puts(b"a.example", 3))
        up = wait_until(lambda: (s := metrics.scrape()).of("first") and s, "the crawl is found")
        assert up.of("first")["dq_requests waiting"] == 3
        server.stop()
        down = wait_until(lambda: (s := metrics.scrape()).value("dq_up") == 0 and s, "the outage is seen")
        assert down.names == {"dq_up", "dq_scrape_seconds"}
        server.start()
        back = wait_until(lambda: (s := metrics.scrape()).value("dq_up") == 1 and s, "Redis is back")
        assert back.of("first")["dq_requests waiting"] == 3
        assert metrics.end(signal.SIGTERM) == 0
        assert metrics.log.read_text() == ""
        assert PASSWORD not in metrics.printed + up.text + down.text


def test_metrics_need_the_token_or_a_local_name(server: RedisServer, tmp_path: Path) -> None:
    """If there is a token, clients need it and may use any host name. If not, the host name must be local."""
    with MetricsServer(tmp_path, server.url, "first") as metrics:
        assert metrics.ask("/metrics")[0] == 200
        assert metrics.ask("/metrics", Host="localhost:1")[0] == 200
        assert metrics.ask("/metrics", Host="rebound.example")[0] == 421
        assert metrics.ask("/other")[0] == 404
        assert metrics.ask("/metrics", "POST", "{}")[0] == 403
    with MetricsServer(tmp_path, server.url, "first", token=TOKEN) as metrics:
        status, headers, _ = metrics.ask("/metrics", Authorization="Bearer wrong")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert metrics.ask("/metrics", Host="crawls.example")[0] == 200
        assert TOKEN not in metrics.printed + metrics.log.read_text()


def test_the_web_page_also_serves_metrics(
    server: RedisServer, tmp_path: Path, live: LiveFrontier, worker: HandWorker
) -> None:
    """The metrics are at /metrics, under the same access rules as the page."""
    worker.exchange(put(1))
    with WebPage(tmp_path, server.url, token=TOKEN) as page:
        status, headers, text = page.ask("/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert live.crawl in Samples(text).crawls
        page.token = ""
        assert page.ask("/metrics")[0] == 401
        assert page.ask("/metrics", Host="rebound.example")[0] == 421


def test_a_mounted_app_reports_that_redis_is_not_reachable_yet() -> None:
    """The server of the app may start before Redis is reachable."""
    mounted = app(Settings({"REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}))
    status, text = asyncio.run(ask_app(mounted, "/metrics"))
    assert status == 200
    assert Samples(text).value("dq_up") == 0


def test_an_error_at_the_start_is_printed_in_one_line(server: RedisServer, tmp_path: Path) -> None:
    """Errors are a public address without a token, an unreachable Redis, and a missing package."""
    for words, without, status, said in (
        (["--host", "0.0.0.0"], "", 2, "lets other machines read the metrics: give a token"),
        (["-s", f"REDIS_URL=redis://:{PASSWORD}@127.0.0.1:1/0"], "", 1, "cannot be reached"),
        ([], "prometheus_client", 1, "need prometheus_client: pip install prometheus_client"),
    ):
        ended, line = refused(tmp_path, server.url, "metrics", "--port", "0", *words, without=without)
        assert (ended, said in line, PASSWORD in line) == (status, True, False), line
