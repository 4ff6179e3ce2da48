"""A project of scrapy-redis runs on scrapy_dq with other import paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import peek
from support.given import StartRedis, StartSite
from support.redis_server import RedisServer
from support.scrapy_redis_project import ScrapyRedisProject
from support.tree_site import TreeSite
from support.worker import Worker

PAGES = 40
Crawl = Callable[[str], Worker]


@pytest.fixture
def redis(start_redis: StartRedis) -> RedisServer:
    """A server of its own: the names of spiders and keys are fixed."""
    return start_redis(appendonly=True)


@pytest.fixture
def site(start_site: StartSite) -> TreeSite:
    return start_site(pages=PAGES)


@pytest.fixture(params=["scrapy_redis", "scrapy_dq"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer, site: TreeSite
) -> ScrapyRedisProject:
    """The same project under both: what holds for one has to hold for the other."""
    return ScrapyRedisProject(tmp_path, request.param, redis.url, site.start_url)


@pytest.fixture
def run(project: ScrapyRedisProject) -> Iterator[Crawl]:
    """Yield a function that starts a spider; it is killed at the end of the test."""
    with ExitStack() as started:

        def start(spider: str) -> Worker:
            worker = project.crawl(spider)
            started.callback(lambda: worker.running and worker.kill())
            return worker

        yield start


def test_a_crawl_spider_and_the_consumer_of_its_items(
    project: ScrapyRedisProject, run: Crawl, site: TreeSite
) -> None:
    """Every page is an item in Redis, with what the pipelines added; `process_items.py` takes them."""
    worker = run("tree")
    consumer = project.process_items("tree:items", PAGES - 1)
    assert worker.wait(60) == 0
    assert worker.close_reason == "finished"
    assert consumer.wait(30) == 0
    lines = consumer.text.splitlines()
    # No page links to the start page.
    assert {line.split()[0] for line in lines} == {site.url(path) for path in site.paths - {"/p/0"}}
    assert len(lines) == PAGES - 1


@pytest.mark.parametrize("spider", ["fed", "fed_crawl"])
def test_spiders_that_are_fed(run: Crawl, redis: RedisServer, site: TreeSite, spider: str) -> None:
    """What is pushed to `redis_key` is crawled, and the spider closes after MAX_IDLE_TIME_BEFORE_CLOSE."""
    with redis.client() as client:
        client.rpush(
            f"{spider}:start_urls", site.start_url, f'{{"url": "{site.url("/p/7")}", "meta": {{"a": 1}}}}'
        )
        worker = run(spider)
        assert worker.wait(60) == 0
        assert worker.close_reason == "finished"
        items = client.llen(f"{spider}:items")
        assert not client.exists(f"{spider}:start_urls")
    assert set(site.hits()) == ({"/p/0", "/p/7"} if spider == "fed" else site.paths)
    assert items == (2 if spider == "fed" else PAGES - 1)


def test_what_scrapy_redis_did_not_support(tmp_path: Path, redis: RedisServer, site: TreeSite) -> None:
    """On scrapy_dq the run is finished in the end; its settings are understood, nothing is warned about."""
    project = ScrapyRedisProject(tmp_path, "scrapy_dq", redis.url, site.start_url)
    worker = project.crawl("tree")
    worker.wait(60)
    with connect_url(redis.url) as client:
        assert peek(client, "tree").phase == "finished"
    assert "WARNING" not in worker.text
    assert worker.stats["dq/acked"] == PAGES
