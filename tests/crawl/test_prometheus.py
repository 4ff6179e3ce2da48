"""contrib/: alerts and dashboard fit the metrics, promtool accepts them, and a real Prometheus alerts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from scrapy_dq.inspection.crawls import CrawlList
from scrapy_dq.inspection.metrics import Metrics
from support.given import MakeProject, StartRedis, StartSite
from support.live_frontier import HandWorker, LiveFrontier
from support.metrics_server import MetricsServer, Samples
from support.place import place_of
from support.redis_server import RedisServer
from support.waiting import free_port, wait_until

CONTRIB = Path(__file__).parents[2] / "contrib"
RULES = CONTRIB / "prometheus" / "rules.yml"
DASHBOARD = CONTRIB / "grafana" / "dashboard.json"
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="Prometheus is not installed: apt-get install prometheus",
)


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text("utf-8"))


def expressions() -> Iterator[str]:
    """Yield each expression of the dashboard and its variables."""
    found = dashboard()
    for panel in found["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["query"] for each in found["templating"]["list"] if each["type"] == "query")


@pytest.fixture(scope="module")
def exposition() -> Samples:
    """Return the metrics of a crawl."""
    with (
        RedisServer() as server,
        closing(LiveFrontier(server.url, "crawl")) as live,
        server.client() as client,
    ):
        HandWorker(live, "worker")
        return Samples(Metrics(CrawlList()).text(place_of(client, server.url, "crawl")).decode())


def test_alerts_and_dashboard_name_metrics_and_labels_that_exist(exposition: Samples) -> None:
    """And each is in the documentation."""
    labels: dict[str, set[str]] = {}
    for name, of in exposition.series:
        labels.setdefault(name, {"job", "instance"}).update(label for label, _ in of)
    states = {value for _, of in exposition.series for label, value in of if label == "state"}
    rules = "\n".join(line for line in RULES.read_text("utf-8").splitlines() if "`" not in line)
    texts = [rules, *expressions()]
    used = {name for text in texts for name in re.findall(r"\bdq_\w+", text)}
    assert used <= labels.keys()
    for text in texts:
        for name, matchers in re.findall(r"\b(dq_\w+)\{([^}]*)\}", text):
            pairs = re.findall(r'(\w+)=~?"([^"]*)"', matchers)
            assert {label for label, _ in pairs} <= labels[name]
            assert {
                state for label, value in pairs if label == "state" for state in value.split("|")
            } <= states
    documented = (CONTRIB.parent / "docs" / "watching.md").read_text("utf-8")
    for name in exposition.names:
        assert f"`{re.sub('_(sum|count)$', '', name)}`" in documented, name
    for alert in re.findall(r"alert: (\w+)", rules):
        assert f"`{alert}`" in documented


def test_the_dashboard_is_what_grafana_reads() -> None:
    """Panels do not overlap; each names the data source that is chosen; ids are unique."""
    found = dashboard()
    variables = {each["name"]: each for each in found["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["crawl"]["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    taken = set()
    for panel in found["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert x < 24
                assert (x, y) not in taken
                taken.add((x, y))
        for target in panel["targets"]:
            of_crawl = set(re.findall(r"\bdq_\w+", target["expr"])) - {
                "dq_up", "dq_redis_memory_bytes", "dq_redis_maxmemory_bytes",
            }  # fmt: skip
            assert target["expr"].count('crawl=~"$crawl"') >= len(of_crawl)


def test_the_dashboard_fits_grafanas_schema() -> None:
    """All fields are in the types that Grafana generates from it: nothing is lost when they read it."""
    sdk = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="the extra `lint` is missing")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins.register_default_plugins()
    back = json.loads(json.dumps(sdk.Dashboard.from_json(dashboard()), cls=encoder.JSONEncoder))
    assert lost(dashboard(), back) == []


def lost(ours: Any, back: Any, where: str = "") -> list[str]:
    """Return which fields of *ours* are not in *back*, or differ."""
    if isinstance(ours, dict) and isinstance(back, dict):
        return [
            each
            for name, value in ours.items()
            for each in (lost(value, back[name], f"{where}.{name}") if name in back else [f"{where}.{name}"])
        ]
    if isinstance(ours, list) and isinstance(back, list) and len(ours) == len(back):
        return [
            each
            for i, pair in enumerate(zip(ours, back, strict=True))
            for each in lost(*pair, f"{where}.{i}")
        ]
    return [] if ours == back else [where]


def promtool(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *words], input=given, cwd=RULES.parent, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip


@needs_prometheus
def test_promtool_accepts_all_of_it(exposition: Samples) -> None:
    """Configuration, rules, the tests of the rules, the metrics, and the expressions of the dashboard."""
    for words in (
        ("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ):  # fmt: skip
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("check", "metrics", given=exposition.text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    tested = (RULES.parent / "rules_test.yml").read_text("utf-8")
    for alert in re.findall(r"alert: (\w+)", RULES.read_text("utf-8")):
        assert re.search(rf"alertname: {alert}\n +exp_alerts:", tested), alert


@contextmanager
def prometheus(folder: Path, targets: dict[str, str], rules: str) -> Iterator[Callable[[str], Any]]:
    """Run a Prometheus that scrapes each second; yield what asks its API."""
    (folder / "rules.yml").write_text(rules)
    jobs = [{"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()]
    times = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    # JSON is YAML.
    config = {"global": times, "rule_files": ["rules.yml"], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
             f"--web.listen-address=127.0.0.1:{port}"],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip

    def ask(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            return None

    try:
        yield ask
    finally:
        process.kill()
        process.wait()


@needs_prometheus
def test_a_real_prometheus_alerts_when_a_worker_is_killed(
    make_project: MakeProject,
    start_site: StartSite,
    start_redis: StartRedis,
    tmp_path: Path,
) -> None:
    """The contributed rules, with shorter times; no alert while the worker lives."""
    site = start_site(pages=2000, latency_s=0.05)
    server = start_redis(appendonly=True)
    project = make_project([site.start_url], redis_url=server.url, settings={"CONCURRENT_REQUESTS": 2})
    rules = re.sub(r"for: \w+", "for: 2s", RULES.read_text("utf-8"))
    worker = project.start_worker()
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with MetricsServer(tmp_path, server.url, project.name) as metrics:
        address = f"{metrics.host}:{metrics.port}"
        with prometheus(folder, {"scrapy-dq": address}, rules) as ask:

            def value(query: str) -> float:
                found = ask(f"query?query={quote(query)}")
                return float(found["result"][0]["value"][1]) if found and found["result"] else 0.0

            def firing() -> set[str]:
                found = (ask("alerts") or {"alerts": []})["alerts"]
                return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}

            wait_until(lambda: value('dq_workers{state="alive"}') == 1, "the worker is seen alive", 60)
            wait_until(lambda: value("dq_requests_done_total") > 10, "pages are counted", 60)
            assert "DqWorkerSilent" not in firing()
            worker.kill()
            wait_until(lambda: "DqWorkerSilent" in firing(), "the alert fires", 60)
            assert value('dq_workers{state="dead"}') == 1
            (target,) = ask("targets")["activeTargets"]
            assert target["health"] == "up"
