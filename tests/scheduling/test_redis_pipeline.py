"""`scrapy crawl` with scrapy_dq.RedisPipeline stores items before their requests are acked."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.given import Errors, Look, MakeProject, StartProxy, StartSite, Tree
from support.project import PLAIN, Project
from support.proxy import RedisProxy
from support.tree_site import TreeSite
from support.tree_spider import spider_of
from support.waiting import wait_until
from support.worker import Worker

PIPELINES = {"scrapy_dq.RedisPipeline": 300, "support.tree_spider.ItemRecord": 500}
BY_ADDON = {"SCHEDULER": None, "DUPEFILTER_CLASS": None, "ADDONS": {"scrapy_dq.Addon": 500}}


def stored(client: redis.Redis, key: str) -> Counter[str]:
    """Return how often the item of each page is stored under *key*, a list or a stream."""
    if client.type(key) == b"stream":
        items = [fields[b"item"] for _, fields in client.xrange(key)]
    else:
        items = client.lrange(key, 0, -1)
    return Counter(json.loads(item)["path"] for item in items)


def warnings_of(worker: Worker) -> list[str]:
    """Return the warnings of Python and of scrapy_dq in the worker's log."""
    return re.findall(r"^.*(?:Deprecat|scrapy_dq.*WARNING:).*$", worker.text, re.M)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"DQ_ITEMS_TYPE": "stream", "REDIS_ITEMS_KEY": "stream of %(spider)s"},
        PLAIN,
        {"DQ_ENABLED": False},
        BY_ADDON | {"DQ_ENABLED": False, "FEEDS": {"items-%(dq_worker)s.jsonl": {"format": "jsonlines"}}},
        {"ITEM_PIPELINES": {"scrapy_dq.pipelines.RedisPipeline": 300, "support.tree_spider.ItemRecord": 500}},
    ],
    ids=["list", "stream", "Scrapy's scheduler", "not enabled", "add-on not enabled", "as in scrapy-redis"],
)
def test_every_item_is_stored_once_and_continues_to_the_next_pipeline(
    tree: Tree, client: redis.Redis, look: Look, settings: dict[str, Any]
) -> None:
    """With either scheduler, each item is stored, and neither Scrapy nor scrapy_dq logs a warning."""
    site, project = tree(settings={"ITEM_PIPELINES": PIPELINES} | settings, pages=60)
    worker = project.run_to_end(timeout_s=20)
    key = "stream of " + project.name if "REDIS_ITEMS_KEY" in settings else project.name + ":items"
    assert stored(client, key) == dict.fromkeys(site.paths, 1)
    assert project.count("item") == dict.fromkeys(site.paths, 1)
    assert worker.stats["dq/items/stored"] == worker.stats["item_scraped_count"] == 60
    assert warnings_of(worker) == []
    shared = settings not in (PLAIN,) and settings.get("DQ_ENABLED", True)
    assert look(project).phase == ("finished" if shared else "absent")
    assert worker.text.count("DQ_ENABLED = False") == (settings.get("DQ_ENABLED") is False)
    if "FEEDS" in settings:
        assert len((project.folder / "items-local.jsonl").read_text().splitlines()) == 60
    client.delete(key)


# This pipeline connects to ITEMS_URL, not to the Redis of the requests.
OWN_REDIS = spider_of(
    """
class OwnPipeline(RedisPipeline):
    def open_spider(self, spider=None):
        super().open_spider(spider)
        url = self.crawler.settings.get("ITEMS_URL")
        if url:
            config = Config("", redis_url=url, redis_params={"socket_timeout": 0.3})
            self._writer.connection = Connection(config, Path())
""",
    before="""
from scrapy_dq import RedisPipeline
from scrapy_dq.backend.connection import Connection
from scrapy_dq.settings import Config
""",
)
OWN_PIPELINES = {"tree_project.spiders.spider.OwnPipeline": 300, "support.tree_spider.ItemRecord": 500}


@pytest.fixture
def cut_off(redis_url: str, tree: Tree, start_proxy: StartProxy, client: redis.Redis) -> Callable[..., Any]:
    """Return a function that starts a crawl, and cuts its pipeline off after some items are stored."""

    def begin(pages: int, some: int, **more: Any) -> tuple[TreeSite, Project, str, Worker, RedisProxy]:
        proxy, own = start_proxy(redis_url), {"ITEM_PIPELINES": OWN_PIPELINES, "CONCURRENT_REQUESTS": 8}
        site, project = tree(settings=own | more, spider=OWN_REDIS, pages=pages, latency_s=0.02)
        key = project.name + ":items"
        worker = project.start_worker(settings={"ITEMS_URL": proxy.url})
        wait_until(lambda: client.llen(key) >= some, "some items are stored", 20)
        proxy.black_hole()
        wait_until(lambda: "Items wait" in worker.text, "the pipeline knows that Redis is away", 10)
        return site, project, key, worker, proxy

    return begin


def test_items_that_a_killed_worker_had_not_stored_are_scraped_again(
    cut_off: Callable[..., Any], client: redis.Redis
) -> None:
    """Requests with waiting items are not acked. So a kill -9 loses none of these items."""
    site, project, key, worker, proxy = cut_off(80, 20)
    wait_until(
        lambda: len(project.count()) > len(project.count("item")), "items of finished callbacks wait", 10
    )
    worker.kill()
    proxy.pass_through()
    assert len(stored(client, key)) < 80
    project.run_to_end(timeout_s=30)
    assert stored(client, key).keys() == site.paths
    client.delete(key)


def test_a_stop_during_an_outage_gives_the_requests_back_and_fails_the_items(
    cut_off: Callable[..., Any], client: redis.Redis, look: Look, errors: Errors
) -> None:
    """After SIGTERM and the grace, one ERROR reports the outage. The next crawl stores all items."""
    site, project, key, worker, proxy = cut_off(60, 10, DQ_SHUTDOWN_GRACE=1)
    worker.terminate()
    assert worker.wait(20) == 0
    assert worker.close_reason == "shutdown"
    [said] = [line for line in errors(worker) if line.startswith("scrapy_dq.")]
    assert "Their requests are released" in said
    assert worker.stats["dq/items/failed"] >= 1
    assert worker.stats.get("dq/acked", 0) == worker.stats["dq/items/stored"]
    proxy.pass_through()
    left = look(project)
    assert (left.phase, left.census.in_flight, left.members) == ("open", 0, [])
    assert project.run_worker(timeout_s=30).close_reason == "finished"
    assert stored(client, key).keys() == site.paths
    client.delete(key)


OWN_ITEMS = spider_of(
    """
    def parse(self, response):
        path = page_path(response)
        yield from response.follow_all(css="a", callback=self.parse)
        number = int(path[3:])
        bad = {7: object(), 8: {1, 2}}.get(number)
        yield {"path": path, "kind": number % 3} | ({"bad": bad} if bad else {})
        self.record("done", path)

class OwnPipeline(RedisPipeline):
    def item_key(self, item, spider):
        return f"{spider.name}:items:{item['kind']}"
""",
    before="from scrapy_dq import RedisPipeline\n",
)


def test_a_subclass_of_the_pipeline_chooses_the_key(tree: Tree, client: redis.Redis, errors: Errors) -> None:
    """One item cannot be serialized, and another program uses one of the three keys."""
    _, project = tree(
        spider=OWN_ITEMS,
        settings={"ITEM_PIPELINES": {"tree_project.spiders.spider.OwnPipeline": 300}},
        pages=30,
    )
    keys = [f"{project.name}:items:{kind}" for kind in range(3)]
    client.set(keys[2], "mine")
    worker = project.run_to_end(timeout_s=20)
    assert len(project.count()) == 30
    assert stored(client, keys[0]).keys() == {f"/p/{k}" for k in range(0, 30, 3)}
    assert stored(client, keys[1]).keys() == {f"/p/{k}" for k in range(1, 30, 3) if k != 7}
    assert client.get(keys[2]) == b"mine"
    assert (worker.stats["dq/items/stored"], worker.stats["dq/items/failed"]) == (19, 10)
    [said] = [line for line in errors(worker) if line.startswith("scrapy_dq.")]
    assert keys[2] in said
    assert "REDIS_ITEMS_KEY" in said
    assert worker.text.count("Error processing") == 11
    client.delete(*keys)


HUGE_ITEM = spider_of("""

def padded(item):
    return json.dumps(item) + " " * (2**21 if item["path"] == "/p/3" else 0)
""")


def test_an_item_that_is_too_large_for_redis_fails_alone(tree: Tree, client: redis.Redis) -> None:
    """Redis closes the connection if an item is too large. Other items are still stored."""
    site, project = tree(
        spider=HUGE_ITEM,
        settings={
            "ITEM_PIPELINES": {"scrapy_dq.RedisPipeline": 300},
            "REDIS_ITEMS_SERIALIZER": "tree_project.spiders.spider.padded",
        },
        pages=30,
    )
    before = client.config_get("proto-max-bulk-len")
    client.config_set("proto-max-bulk-len", 2**20)
    try:
        worker = project.run_to_end(timeout_s=60)
    finally:
        client.config_set("proto-max-bulk-len", before["proto-max-bulk-len"])
    assert stored(client, project.name + ":items").keys() == {*site.paths} - {"/p/3"}
    assert (worker.stats["dq/items/failed"], worker.stats["dq/failed"]) == (1, 1)


def test_settings_that_cannot_be_used_end_the_crawl_at_its_start(
    make_project: MakeProject, errors: Errors
) -> None:
    """scrapy_dq logs one ERROR line, even with Scrapy's own scheduler."""
    settings = {"ITEM_PIPELINES": PIPELINES, "REDIS_ITEMS_KEY": "%(name)s:items", **PLAIN}
    project = make_project([], settings=settings)
    worker = project.run_worker(timeout_s=20)
    [said] = [line for line in errors(worker) if line.startswith("scrapy_dq.")]
    assert "there is no 'name' here; use %(spider)s" in said
    assert said.startswith("scrapy_dq.items.pipeline: scrapy_dq.RedisPipeline cannot start: ")


def test_items_go_to_the_embedded_redis_if_none_is_named(
    make_project: MakeProject, start_site: StartSite
) -> None:
    """The pipeline and the scheduler of a process share the embedded Redis. The last of them stops it."""
    site = start_site(pages=20)
    project = make_project([site.start_url], settings={"ITEM_PIPELINES": PIPELINES})
    worker = project.run_to_end(timeout_s=30)
    assert worker.stats["dq/items/stored"] == 20
    assert worker.text.count("Embedded Redis: started") == 1
    assert worker.text.count("Embedded Redis: stopped") == 1
    plain = project.run_worker(settings={"DQ_ENABLED": 0}, timeout_s=30)
    assert plain.stats["dq/items/stored"] == 20
    assert "Embedded Redis: stopped" in plain.text
    aof = b"".join(path.read_bytes() for path in (project.folder / ".scrapy/dq").rglob("*.aof"))
    assert aof.upper().count(b"RPUSH") >= 2
