"""`scrapy dq` with one silent shard: commands cover the other shards, and name the silent shard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from scrapy.settings import Settings

from commands.conftest import PASSWORD, Dq, loader_of
from scrapy_dq.backend.connection import Connection
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.crew import monitor
from scrapy_dq.factory import frontiers_of
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.crawls import CrawlSearch
from scrapy_dq.frontier.admin.shards import Shards
from scrapy_dq.frontier.model import FrontierError, FrontierRefused, FrontierUnavailable
from scrapy_dq.inspection import crawls
from scrapy_dq.inspection.crawls import CrawlList
from scrapy_dq.inspection.entries import read_failure, read_failures
from scrapy_dq.inspection.history import read_curves
from scrapy_dq.inspection.metrics import Metrics
from scrapy_dq.inspection.place import NoSuchCrawl, opened, project_config
from scrapy_dq.scheduling import progress_log
from scrapy_dq.settings import Config
from scrapy_dq.web.commands import execute
from scrapy_dq.web.reads import Reads
from support.clusters import Cluster
from support.live_frontier import HandWorker, LiveFrontier
from support.live_shards import HOSTS, SHARDS
from support.redis_server import RedisServer
from support.silent_shards import SILENT, Spread
from support.waiting import wait_until
from worker.engine import until

QUICK_S = 0.3
QUICK = {"REDIS_PARAMS": {"socket_timeout": QUICK_S}}
UNANSWERED = f"no answer from shard {SILENT}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster in which no replica takes over."""
    with Cluster(password=PASSWORD, timeout_ms=600_000) as cluster:
        yield cluster


@pytest.fixture
def crawl(cluster: Cluster) -> Iterator[Spread]:
    with ExitStack() as stack:
        yield Spread(cluster, stack)


@pytest.fixture
def dq(crawl: Spread, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Dq:
    dq = Dq(cluster.url, crawl.crawl, capsys)
    dq.may_say = True
    return dq


def test_doctor_reports_a_late_failover(dq: Dq, crawl: Spread) -> None:
    """Here a cut-off master confirms writes for up to 600 s, but workers can repeat only 10 s of them."""
    failover = lambda **more: [  # noqa: E731
        (each["level"], each["text"]) for each in dq.found("doctor", **more)["findings"]
        if each["what"] == "failover"
    ]  # fmt: skip
    ((level, text),) = failover()
    assert level == "warn"
    assert "is replaced after 600 s (cluster-node-timeout), and DQ_ROLLBACK_HORIZON is 10 s" in text
    assert [level for level, _ in failover(DQ_WAIT_REPLICAS=1)] == ["ok"]


def test_entries_of_the_answering_shards_are_shown(dq: Dq, crawl: Spread) -> None:
    """Each command that only reads names the silent shard, and ends within a bounded time."""
    crawl.fail_all()
    elsewhere = len(HOSTS) - crawl.kept(SILENT)
    assert 0 < elsewhere < len(HOSTS)
    with crawl.silent():
        assert len(dq.listed("failed", "-n", "100", **QUICK)) == elsewhere
        assert dq.said == [f"scrapy dq: {UNANSWERED}: the data there is neither shown nor counted"]
        assert f"{elsewhere} failed requests." in dq.text("failed", "-n", "100", **QUICK)
        for name in ("dead", "search", "events", "workers"):
            assert dq.found(name, **QUICK)["unreachable_shards"] == [SILENT]
            assert any(UNANSWERED in line for line in dq.said), name
        assert dq.found("search", "unreadable", **QUICK)["looked_at"] == elsewhere
        assert any(UNANSWERED in line for line in dq.said)
        assert any(UNANSWERED in line for line in dq.lines("status", "--no-rate", **QUICK))
        found = dq.found("report", **QUICK)
        assert found["status"]["unreachable_shards"] == [SILENT]
        assert any(UNANSWERED in line for line in dq.lines("report", **QUICK))
    assert len(dq.listed("failed", "-n", "100", **QUICK)) == len(HOSTS)
    assert dq.said == []


def test_a_retry_moves_the_requests_of_other_shards_and_fails(dq: Dq, crawl: Spread) -> None:
    """When the silent shard answers again, the next retry moves its requests."""
    crawl.fail_all()
    there = crawl.kept(SILENT)
    with crawl.silent():
        found = dq.found("retry", "--all", "--yes", **QUICK)
    assert (found["failed"], found["left"]) == (len(HOSTS) - there, 0)
    assert found["unreachable_shards"] == [SILENT]
    assert dq.status == 1
    assert any(f"{UNANSWERED}: selected requests there may not have been retried" in line for line in dq.said)
    found = dq.found("retry", "--all", "--yes", **QUICK)
    assert (found["failed"], dq.status) == (there, 0)


def test_an_entry_that_is_not_found_may_be_in_the_silent_shard(dq: Dq, crawl: Spread) -> None:
    with crawl.silent(), pytest.raises(CommandError, match=f"has no failed request .*{UNANSWERED}"):
        dq.text("failed", "0" * 24, **QUICK)


def test_the_web_page_names_the_silent_shard(crawl: Spread, cluster: Cluster) -> None:
    """The page names it beside failures and events, and after a retry that left requests there."""
    crawl.fail_all()
    config = Config.read({"DQ_CRAWL": crawl.crawl, "REDIS_URL": cluster.url, **QUICK}, {})
    there = crawl.kept(SILENT)
    with opened(config) as place:
        with crawl.silent():
            found = read_failures(place, "failed", 100)
            assert len(found["rows"]) == found["kept"] == len(HOSTS) - there
            assert found["missing"] == [f"{UNANSWERED}: the data there is neither shown nor counted"]
            assert read_curves(place, minutes=False)["missing"] == found["missing"]
            with pytest.raises(FrontierUnavailable, match=UNANSWERED):
                read_failure(place, "failed", b"no such id!!")
            done = execute(place, Settings(), {"action": "retry", "kind": "failed", "all": True})
            assert done.endswith(f" No answer from shard {SILENT}: retry again later.")
        assert read_failure(place, "failed", b"no such id!!") is None
        with crawl.silent():
            assert place.overview().unreachable == (SILENT,)
        assert read_curves(place, minutes=False)["missing"] == []
        with crawl.silent():
            assert place.overview().unreachable == (SILENT,)
        assert place.overview().unreachable == ()
        assert read_failures(place, "failed", 100)["kept"] == there


def test_a_drain_is_not_over_while_a_shard_does_not_answer(dq: Dq, crawl: Spread) -> None:
    with crawl.silent(), pytest.raises(CommandError, match=f"still registered; {UNANSWERED}"):
        dq.text("drain", "--wait", "0.1", **QUICK)
    assert len([line for line in dq.said if UNANSWERED in line]) == 1
    dq.lines("drain", "--wait", "5", **QUICK)
    assert dq.status == 0


def test_a_node_that_evicts_is_refused_and_watched(
    cluster: Cluster, crawl: Spread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has its own policy, which may change during the crawl."""
    monkeypatch.setattr(progress_log, "EVERY_S", 0.01)
    client = crawl.workers[SILENT].live.redis
    config = Config.read({"DQ_CRAWL": crawl.crawl, "REDIS_URL": cluster.url, "DQ_SHARDS": SHARDS}, {})

    async def look() -> None:
        connection = Connection(config, Path())
        try:
            await connection.open()
            clients = [each.client for each in await frontiers_of(config, connection)]
            monitor = progress_log.HealthMonitor(clients, "target", embedded=False)
            await until(lambda: len(monitor._known) == SHARDS, "a look at each")
            client.config_set("maxmemory-policy", "allkeys-lru")
            await until(lambda: "Changed during the crawl" in caplog.text, "the change")
            monitor.stop()
        finally:
            await connection.close()
        connection = Connection(config, Path())
        try:
            await connection.open()
            with pytest.raises(FrontierRefused, match="allkeys-lru"):
                await frontiers_of(config, connection)
        finally:
            await connection.close()

    try:
        asyncio.run(look())
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert f":{crawl.nodes[SILENT].port}" in caplog.text


def test_health_checks_end_even_if_redis_py_loses_the_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.12, redis-py ignores a cancellation that comes at the same time as an answer."""
    monkeypatch.setattr(progress_log.HealthMonitor, "_compare", Mock())

    async def look() -> None:
        asked = asyncio.Event()

        async def info() -> dict[str, str]:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return {}

        client = SimpleNamespace(connection_pool=SimpleNamespace(), info=info)
        monitor = progress_log.HealthMonitor([client], "target", embedded=False)
        await asked.wait()
        monitor.stop()
        await monitor._checks._task

    asyncio.run(look())


def test_the_crawls_of_all_nodes_are_found(
    crawl: Spread, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, page, and the hint for a mistyped name list all crawls, except the crawls of silent nodes."""
    monkeypatch.setattr(crawls, "EVERY_S", 0.0)
    names: dict[str, RedisServer] = {crawl.crawl: crawl.nodes[0]}
    for name in map("another {}".format, count()):
        if len(names) == SHARDS:
            break
        node = cluster.owner(keys.meta(name))
        if node not in names.values():
            names[name] = node
    with ExitStack() as stack:
        for name in list(names)[1:]:
            HandWorker(stack.enter_context(closing(LiveFrontier(names[name].url, name))), "worker")
        config = Config.read({"DQ_CRAWL": crawl.crawl, "REDIS_URL": cluster.url, **QUICK}, {})
        found = CrawlList()
        with opened(config) as place:
            search, hidden = CrawlSearch(), list(names)[1]

            def missing() -> set[str]:
                return {*names} - {*search.scan_more(place.nodes, budget_s=60)}

            def hint() -> str:
                with pytest.raises(NoSuchCrawl) as told:
                    replace(place, config=replace(config, crawl=f"{hidden}x")).overview()
                return str(told.value)

            def read(since: float = 0.0) -> set[str]:
                rows = found.refresh(place).rows
                return {row.crawl for row in rows if row.snapshot and row.asked_at > since}

            def error() -> str:
                return "".join(row.error for row in found.refresh(place).rows if row.crawl == hidden)

            # A busy node may not answer within the short time-out.
            wait_until(lambda: read() >= {*names}, "all are read", 60)
            wait_until(lambda: found.refresh(place).searched, "all keys are examined", 60)
            wait_until(lambda: f"did you mean --crawl '{hidden}'" in hint(), "the hint", 60)
            monkeypatch.setattr(crawls, "LONGEST_S", QUICK_S / 2)
            names[hidden].suspend()
            try:
                silent_at = time.monotonic()
                wait_until(
                    lambda: read(silent_at) >= {*names} - {hidden}, "the other crawls have newer figures", 60
                )
                with pytest.raises(FrontierUnavailable):
                    CrawlList(hidden).refresh(place)
                wait_until(lambda: "does not answer" in error(), "the error", 60)
                wait_until(lambda: missing() == {hidden}, "the other nodes' crawls are found", 60)
                assert not search.complete
            finally:
                names[hidden].resume()
            wait_until(lambda: not missing() and search.complete, "all crawls are found", 60)


def test_status_of_all_crawls_names_the_crawl_that_does_not_answer(
    dq: Dq, crawl: Spread, cluster: Cluster
) -> None:
    """The status still counts the other crawls."""
    other = next(
        name for n in count() if cluster.owner(keys.meta(name := f"x {n}")) is crawl.nodes[SHARDS - 1]
    )
    hidden, dq.crawl = dq.crawl, ""
    settings = {"SPIDER_LOADER_CLASS": loader_of(hidden, other), **QUICK}

    def phases() -> list[str]:
        return [row["phase"] for row in dq.listed("status", **settings) if row["spider"]]

    # A busy node may not answer within the short time-out.
    wait_until(lambda: phases() == ["open", "absent"], "both crawls are known", 60)
    with crawl.silent(0):
        wait_until(lambda: phases() == ["unknown", "absent"], "the other crawl is known", 60)
        silent, *_ = dq.listed("status", **settings)
        assert "does not answer" in silent["why"]
        assert any(line.endswith(f"{hidden}: {hidden}") for line in dq.lines("status", **settings))
        assert any(f"crawl {hidden!r}: Redis does not answer" in line for line in dq.said)


def test_no_single_node_prevents_the_page_and_the_metrics_of_all_crawls(
    dq: Dq, cluster: Cluster, tmp_path: Path
) -> None:
    """Without a crawl's name, commands use a placeholder. The node for its key may also be silent."""
    dq.crawl = ""
    config = project_config(Settings({"REDIS_URL": cluster.url, **QUICK}))

    def up() -> bool:
        return [each["value"] for each in dq.listed("metrics", **QUICK) if each["name"] == "dq_up"] == [1]

    async def open_page() -> bool:
        looks = Reads(config)
        try:
            return bool(await looks.open())
        except FrontierError:
            return False
        finally:
            await looks.close()

    node = cluster.owner(keys.meta(config.crawl))
    node.suspend()
    try:
        wait_until(up, "the metrics", 60)
        wait_until(lambda: asyncio.run(open_page()), "the page", 60)
    finally:
        node.resume()


def test_an_audit_examines_the_other_shards(dq: Dq, crawl: Spread) -> None:
    with crawl.silent():
        found = by_what(dq.found("doctor", "--audit", **QUICK))
    assert found["crawl"][0].endswith(f"; shard {SILENT} could not be examined")
    assert dq.status == 1


def test_a_look_waits_for_few_timeouts_of_a_silent_node(crawl: Spread, cluster: Cluster) -> None:
    """The number of shards on the silent node makes no difference."""
    config = Config.read(
        {"DQ_CRAWL": crawl.crawl, "REDIS_URL": cluster.url, "REDIS_PARAMS": {"socket_timeout": 1}}, {}
    )
    timeouts = []

    def look(client: Any, shard: keys.Shard) -> int:
        try:
            client.exists(keys.meta(shard))
        except redis.TimeoutError:
            timeouts.extend({shard.number} & there)
            raise
        return shard.number

    with opened(config) as place:
        shards = Shards(place.crawl, 24, lambda number: place.connect(number) if number else place.client)
        there = {
            number
            for number in range(24)
            if cluster.owner(keys.meta(keys.Shard(crawl.crawl, number))) is crawl.nodes[SILENT]
        }
        assert len(there) > 1

        def found() -> set[int]:
            shards.ask_all()
            timeouts.clear()
            return {*shards.each(look)}

        # A busy node may not answer within the time-out.
        wait_until(lambda: found() == {*range(24)}, "all answer", 60)
        for _ in range(2):
            with crawl.silent():
                wait_until(lambda: found() == {*range(24)} - there, "all other shards answer", 60)
            assert len(timeouts) < len(there)


def test_unreachable_nodes_in_the_url_hide_no_shard(dq: Dq, crawl: Spread, cluster: Cluster) -> None:
    """The search for each shard begins at the node where home was found."""
    dq.url = cluster.url.replace("@", "@127.0.0.1:1,127.0.0.1:2,")
    assert dq.found("status", "--no-rate")["unreachable_shards"] == []


def test_a_crew_with_flush_on_start_deletes_all_shards(
    crawl: Spread, cluster: Cluster, tmp_path: Path
) -> None:
    """Afterwards, no connection of the event loop that deleted the crawl is left open."""
    crawl.fail_all()
    settings = {"DQ_CRAWL": crawl.crawl, "REDIS_URL": cluster.url, "SCHEDULER_FLUSH_ON_START": True}
    config = Config.read({**settings, "DQ_SHARDS": SHARDS, "DQ_WORKER_TTL": 1}, {})
    with monitor.opened(config, tmp_path) as place:
        assert place.client.exists(keys.meta(crawl.crawl)) == 0
    assert all(crawl.kept(shard) == 0 for shard in range(SHARDS))


@pytest.mark.parametrize("name", ["failed", "status", "retry"])
def test_without_home_a_command_raises_one_clear_error(dq: Dq, crawl: Spread, name: str) -> None:
    words = ("--all", "--yes") if name == "retry" else ()
    with crawl.silent(0), pytest.raises(FrontierError, match=r"reached|answer"):
        dq.text(name, *words, **QUICK)


def test_metrics_do_not_fall_when_a_shard_is_silent(
    crawl: Spread, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a count fell and rose again, Prometheus would count new failures."""
    monkeypatch.setattr(crawls, "EVERY_S", 0.0)
    crawl.fail_all()
    config = Config.read({"DQ_CRAWL": crawl.crawl, "REDIS_URL": cluster.url, **QUICK}, {})
    metrics = Metrics(CrawlList(crawl.crawl))

    def counts() -> tuple[float, float]:
        found = {each["name"]: each["value"] for each in metrics.samples(place)}
        return found["dq_requests_failed_total"], found["dq_unreachable_shards"]

    with opened(config) as place:
        assert counts() == (len(HOSTS), 0)
        with crawl.silent():
            assert counts() == (len(HOSTS), 1)
        assert counts() == (len(HOSTS), 0)


def test_doctor_examines_each_node_and_names_it(dq: Dq, crawl: Spread) -> None:
    """A finding that is the same for all nodes appears once."""
    found = by_what(dq.found("doctor"))
    assert found["version"] == found["version"][:1]
    assert found["persistence"] == found["persistence"][:1]
    node = crawl.nodes[SILENT]
    client = crawl.workers[SILENT].live.redis
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = by_what(dq.found("doctor"))
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    ok, bad = sorted(found["eviction"], key=lambda text: "allkeys-lru" in text)
    assert dq.status == 1
    assert bad.startswith(f"127.0.0.1:{node.port} (shard {SILENT}): Redis at ")
    assert "(shard 0)" in ok
    assert "(shard 2)" in ok
    with crawl.silent():
        found = by_what(dq.found("doctor", **QUICK))
    there, missing = found["shards"]
    assert there.split("; ") == [
        f"127.0.0.1:{crawl.nodes[shard].port}: shard {shard}" for shard in range(SHARDS) if shard != SILENT
    ]
    assert missing == f"{UNANSWERED}: the data there is neither shown nor counted"


def by_what(found: Any) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for each in found["findings"]:
        texts.setdefault(each["what"], []).append(each["text"])
    return texts
