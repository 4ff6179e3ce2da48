"""A fed crawl with items in Redis, and the commands on it, behind Redis Sentinel and in a Redis Cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scrapy_dq.frontier import keys
from support.clusters import Cluster
from support.project import Project
from support.scrapy_redis_crawl import run_dq_each
from support.sentinels import Sentinels
from support.tree_site import TreeSite

FED = """\
from scrapy_dq import RedisSpider
from support.tree_spider import TreeSpider
from tree_project.settings import SPIDER_NAME

class ProjectSpider(RedisSpider, TreeSpider):
    name = SPIDER_NAME
    redis_key = "{%(name)s}:start_urls"
"""
SETTINGS = {"MAX_IDLE_TIME_BEFORE_CLOSE": 0.3, "ITEM_PIPELINES": {"scrapy_dq.RedisPipeline": 1}}
Run = Callable[..., Any]


@pytest.fixture(scope="module", params=["sentinel", "cluster"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Run]]:
    """Yield a URL, and what runs a command on the server that has its first argument, a key."""
    if request.param == "sentinel":
        with Sentinels(password="pass") as sentinels, sentinels.master.client() as client:
            yield sentinels.url, client.execute_command
    else:
        with Cluster(password="pass") as cluster:
            yield cluster.url, lambda *command: cluster.run(cluster.owner(command[1]), *command)


def test_a_fed_crawl_and_its_commands(
    place: tuple[str, Run], make_project: Callable[..., Project], start_site: Callable[..., TreeSite]
) -> None:
    """Two workers crawl it; each command finds it, and clear leaves nothing."""
    (url, run), site = place, start_site(pages=60)
    project = make_project([], redis_url=url, spider=FED, settings=SETTINGS)
    name = project.name
    assert run("RPUSH", f"{{{name}}}:start_urls", site.start_url) == 1
    project.start_workers(2)
    assert project.wait(120) == ["finished"] * 2
    assert project.count() == dict.fromkeys(site.paths, 1)
    assert run("LLEN", f"{name}:items") == 60
    pushed, status, doctor = run_dq_each(
        project,
        [
            ("push", name, f"{site.start_url}?more"), ("status", name, "--no-rate", "--json"),
            ("doctor", name, "--audit", "--json"),
        ],
    )  # fmt: skip
    assert pushed.returncode == 0, pushed.stderr
    assert status.returncode == doctor.returncode == 0, status.stderr + doctor.stderr
    assert json.loads(status.stdout)["waiting"] == 1
    assert "pass" not in json.loads(doctor.stdout)["redis"]
    assert {each["what"]: each["level"] for each in json.loads(doctor.stdout)["findings"]}["crawl"] == "ok"
    (cleared,) = run_dq_each(project, [("clear", name, "--yes")])
    assert cleared.returncode == 0, cleared.stderr
    assert run("EXISTS", keys.meta(name)) == 0


@pytest.mark.parametrize("place", ["cluster"], indirect=True)
def test_a_start_key_in_another_slot_is_refused(
    place: tuple[str, Run], make_project: Callable[..., Project]
) -> None:
    """No script could take from it; the error has a name that is in the right slot."""
    url, _ = place
    source = FED.replace("{%(name)s}:start_urls", "%(name)s:start_urls:elsewhere")
    worker = make_project([], redis_url=url, spider=source, settings=SETTINGS).run_worker()
    assert worker.close_reason != "finished"
    assert "they cannot be changed in one step. Give the key the crawl's hash tag" in worker.text
