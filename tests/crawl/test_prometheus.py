"""The alerts and the dashboard in contrib/ fit the metrics, and promtool accepts them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from scrapy_dq.inspection.crawls import CrawlList
from scrapy_dq.inspection.metrics import Metrics
from support.live_frontier import HandWorker, LiveFrontier
from support.metrics_server import Samples
from support.place import place_of
from support.redis_server import RedisServer

CONTRIB = Path(__file__).parents[2] / "contrib"
RULES = CONTRIB / "prometheus" / "rules.yml"
DASHBOARD = CONTRIB / "grafana" / "dashboard.json"
needs_prometheus = pytest.mark.skipif(
    not shutil.which("promtool"),
    reason="Prometheus is not installed: apt-get install prometheus",
)


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text("utf-8"))


def expressions() -> Iterator[str]:
    """Yield each expression in the panels and variables of the dashboard."""
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
    """The documentation also names each metric and each alert."""
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


def test_grafana_can_read_the_dashboard() -> None:
    """Panels do not overlap, each uses the chosen data source, and their ids are unique."""
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


def promtool(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *words], input=given, cwd=RULES.parent, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip


@needs_prometheus
def test_promtool_accepts_the_rules_and_the_metrics(exposition: Samples) -> None:
    """promtool checks the configuration, the rules and the metrics, and runs the tests of the rules."""
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
