"""Crawls, queues, commands and the web page work at each kind of address.

The kinds are TCP, a unix socket, TLS with client certificates, Sentinel and a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from scrapy import Request
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue

from scrapy_dq import Queue
from scrapy_dq.commands.group import subcommands
from scrapy_dq.frontier import keys
from support.certificates import Authority
from support.clusters import Cluster
from support.crew_process import CrewProcess, paths_of
from support.given import MakeProject, StartSite
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq_each
from support.sentinels import Sentinels
from support.tree_spider import FED
from support.waiting import wait_until
from support.web_page import TOKEN, WebPage

FED_BY_SLOT = FED + '    redis_key = "{%(name)s}:start_urls"\n'
SETTINGS = {"MAX_IDLE_TIME_BEFORE_CLOSE": 0.3, "ITEM_PIPELINES": {"scrapy_dq.RedisPipeline": 1}}


class Place(NamedTuple):
    """An address of Redis: the value of REDIS_URL, and a function that returns a client for a key's node."""

    url: str
    client: Callable[[str], redis.Redis]


@pytest.fixture(scope="module", params=["tcp", "unix", "tls", "sentinel", "cluster"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param == "cluster":
            cluster = stack.enter_context(Cluster(password="pass"))
            yield Place(cluster.url, lambda key: cluster.owner(key).client())
        elif request.param == "sentinel":
            sentinels = stack.enter_context(Sentinels(password="pass"))
            yield Place(sentinels.url, lambda _: sentinels.master.client())
        else:
            server = stack.enter_context(RedisServer(unix=request.param == "unix", password="pass"))
            url = server.url
            if request.param == "tls":
                authority = Authority(tmp_path_factory.mktemp("authority"))
                proxy = stack.enter_context(RedisProxy(url, authority.context(of_clients=True)))
                own = authority.certificate()
                url = f"{proxy.url}?ssl_ca_certs={authority.path}&ssl_certfile={own}&ssl_keyfile={own}"
            yield Place(url, lambda _: server.client())


def test_a_fed_crawl_stores_its_items(place: Place, make_project: MakeProject, start_site: StartSite) -> None:
    """Two workers crawl the URL of a start key, and store their items."""
    site = start_site(pages=60)
    project = make_project([], redis_url=place.url, spider=FED_BY_SLOT, settings=SETTINGS)
    name = project.name
    with place.client(f"{{{name}}}") as client:
        client.rpush(f"{{{name}}}:start_urls", site.start_url)
    project.start_workers(2)
    assert project.wait(120) == ["finished"] * 2
    assert project.count() == dict.fromkeys(site.paths, 1)
    with place.client(f"{name}:items") as client:
        assert client.llen(f"{name}:items") == 60


def test_a_crew_crawls_a_site(place: Place, make_project: MakeProject, start_site: StartSite) -> None:
    site = start_site(pages=60)
    project = make_project([site.start_url], redis_url=place.url)
    crew = CrewProcess(project, "--workers", "2", "-o", "pages.jsonl")
    try:
        assert crew.wait(120) == 0, crew.err
    finally:
        crew.close()
    assert paths_of(project.folder / "pages.jsonl") == dict.fromkeys(site.paths, 1)


def test_every_command_finds_the_crawl(place: Place, make_project: MakeProject) -> None:
    """Each command finds the crawl and can change it. `clear` leaves no key behind."""
    project = make_project([], redis_url=place.url)
    name = project.name
    commands: list[list[str]] = [
        ["push", name, "http://example.com/1", "http://example.com/2"],
        ["status", name, "--no-rate", "--json"],
        ["workers", name, "--json"],
        ["search", name, "http://example.com/1", "--json"],
        ["failed", name, "--json"],
        ["dead", name, "--json"],
        ["events", name, "--curves", "--json"],
        ["report", name, "--json"],
        ["metrics", name, "--json"],
        ["doctor", name, "--audit", "--json"],
        ["pause", name],
        ["drain", name],
        ["resume", name],
        ["limit", name, "--site", "example.com", "--delay", "2"],
        ["retry", name, "--all"],
        ["move", name, "--seen", "compact"],
        ["export", name, "crawl.jsonl"],
        ["complete", name],
        ["stop", name],
        ["clear", name, "--all", "--yes"],
    ]
    assert {words[0] for words in commands} | {"crawl", "items", "adopt", "web", "import"} == {
        each.name for each in subcommands()
    }
    crawls, clear = ["status", "--json"], commands[-1]
    *others, listed, cleared = run_dq_each(project, [*commands[:-1], crawls, clear])
    imported, again = run_dq_each(
        project, [["import", name, "crawl.jsonl", "-s", "DQ_SEEN=compact"], ["clear", name, "--all", "--yes"]]
    )
    assert (imported.returncode, again.returncode) == (0, 0), imported.stderr
    ended = dict(zip([words[0] for words in commands], [*others, cleared], strict=True))
    assert json.loads(listed.stdout)["crawls"][0]["crawl"] == name
    assert {command: done for command, done in ended.items() if done.returncode} == {}
    assert not [command for command, done in ended.items() if ":pass" in done.stdout + done.stderr]
    assert json.loads(ended["status"].stdout)["waiting"] == 2
    found = json.loads(ended["search"].stdout)
    assert (len(found["entries"]), found["seen"]) == (1, True)
    samples = {(each["name"], each["labels"].get("state")): each["value"]
               for each in json.loads(ended["metrics"].stdout)["samples"]}  # fmt: skip
    assert (samples["dq_up", None], samples["dq_requests", "waiting"]) == (1, 2)
    doctor = json.loads(ended["doctor"].stdout)
    assert {each["what"]: each["level"] for each in doctor["findings"]}["crawl"] == "ok"
    with place.client(keys.meta(name)) as client:
        assert client.exists(keys.meta(name)) == 0


def test_the_web_page_finds_and_changes_the_crawl(place: Place, crawl_name: str, tmp_path: Path) -> None:
    """The page finds, shows and changes the crawl, and serves its metrics. It shows no password."""
    pytest.importorskip("starlette", reason="the extra `web` is not installed")
    with Queue(crawl_name, url=place.url) as queue:
        queue.put_all(range(4))
        with WebPage(tmp_path, place.url, "--allow-steering", token=TOKEN) as page:
            look = page.data("crawl", crawl_name)["look"]
            assert (look["waiting"], look["hold"], look["redis"]) == (4, "", page.redis)
            assert page.do({"action": "pause", "crawl": crawl_name})[0] == 200
            wait_until(
                lambda: page.data("crawl", crawl_name)["look"]["hold"] == "paused", "the page shows the pause"
            )
            wait_until(
                lambda: crawl_name in [row["crawl"] for row in page.data("crawls")["look"]["crawls"]],
                "the crawl is found",
            )
            metrics = page.ask("/metrics")[2]
            assert f'dq_on_hold{{crawl="{crawl_name}"}} 1.0' in metrics
            said = page.printed + json.dumps(look) + page.ask("/settings")[2]
            assert page.end() == 0
        assert ":pass" not in said + page.log.read_text()


def test_two_programs_share_a_queue(place: Place, crawl_name: str) -> None:
    """Both programs get items in the order of the puts."""
    with Queue(crawl_name, url=place.url) as first, Queue(crawl_name, url=place.url) as second:
        first.put_all(range(4))
        assert [queue.get(timeout=60) for queue in (first, second, first, second)] == [0, 1, 2, 3]
        for queue in (first, second, first, second):
            queue.task_done()
        first.join()
        assert second.qsize() == 0


class Named:
    """The part of a spider that scrapy-redis's queue needs."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_a_crawl_of_scrapy_redis_is_adopted(place: Place, make_project: MakeProject) -> None:
    """In a cluster, the old queue, the old dupefilter and the new crawl may be in three slots."""
    project = make_project([], redis_url=place.url)
    name, queue, seen = project.name, f"{project.name}:requests", f"{project.name}:dupefilter"
    with place.client(queue) as of_queue, place.client(seen) as of_seen:
        theirs, filter_ = PriorityQueue(of_queue, Named(name), queue), RFPDupeFilter(of_seen, seen)
        for number in range(5):
            request = Request(f"http://example.com/{number}")
            filter_.request_seen(request)
            theirs.push(request)
    adopted, status = run_dq_each(
        project, [["adopt", name, "--trust-pickle"], ["status", name, "--no-rate", "--json"]]
    )
    assert adopted.returncode == 0, adopted.stdout + adopted.stderr
    assert json.loads(status.stdout)["waiting"] == 5


@pytest.mark.parametrize("place", ["cluster"], indirect=True)
def test_a_start_key_in_another_slot_is_refused(place: Place, make_project: MakeProject) -> None:
    """No script could take payloads from such a key. The error suggests a name in the right slot."""
    source = FED_BY_SLOT.replace("{%(name)s}:start_urls", "%(name)s:start_urls:elsewhere")
    worker = make_project([], redis_url=place.url, spider=source, settings=SETTINGS).run_worker()
    assert worker.close_reason != "finished"
    assert "they cannot be changed in one step. Give the key the crawl's hash tag" in worker.text
