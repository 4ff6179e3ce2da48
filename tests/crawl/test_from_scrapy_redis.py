"""A project for scrapy-redis runs with scrapy_dq after a change of its import paths."""

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
    """Return a server for one test, because the names of the project's keys are fixed."""
    return start_redis(appendonly=True)


@pytest.fixture
def site(start_site: StartSite) -> TreeSite:
    return start_site(pages=PAGES)


@pytest.fixture(params=["scrapy_redis", "scrapy_dq"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer, site: TreeSite
) -> ScrapyRedisProject:
    """Return the same project for both packages: each test must pass with both."""
    return ScrapyRedisProject(tmp_path, request.param, redis.url, site.start_url)


@pytest.fixture
def run(project: ScrapyRedisProject) -> Iterator[Crawl]:
    """Yield a function that starts a spider. At the end of the test, running spiders are killed."""
    with ExitStack() as started:

        def start(spider: str) -> Worker:
            worker = project.crawl(spider)
            started.callback(lambda: worker.running and worker.kill())
            return worker

        yield start


def test_a_consumer_takes_the_items_of_a_crawl_spider(
    project: ScrapyRedisProject, run: Crawl, site: TreeSite
) -> None:
    """Each page's item is in Redis with additions of the pipelines, and `process_items.py` takes it."""
    worker = run("tree")
    consumer = project.process_items("tree:items", PAGES - 1)
    assert worker.wait(60) == 0
    assert worker.close_reason == "finished"
    assert consumer.wait(30) == 0
    lines = consumer.text.splitlines()
    # No page links to the start page, so no item of it exists.
    assert {line.split()[0] for line in lines} == {site.url(path) for path in site.paths - {"/p/0"}}
    assert len(lines) == PAGES - 1


@pytest.mark.parametrize("spider", ["fed", "fed_crawl"])
def test_a_fed_spider_crawls_its_urls_and_closes_when_idle(
    run: Crawl, redis: RedisServer, site: TreeSite, spider: str
) -> None:
    """URLs in the start key are crawled. After MAX_IDLE_TIME_BEFORE_CLOSE, the spider closes."""
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


def test_scrapy_dq_finishes_a_run_with_the_settings_of_scrapy_redis(
    tmp_path: Path, redis: RedisServer, site: TreeSite
) -> None:
    """scrapy_dq understands the settings, and logs no warning."""
    project = ScrapyRedisProject(tmp_path, "scrapy_dq", redis.url, site.start_url)
    worker = project.crawl("tree")
    worker.wait(60)
    with connect_url(redis.url) as client:
        assert peek(client, "tree").phase == "finished"
    assert "WARNING" not in worker.text
    assert worker.stats["dq/acked"] == PAGES
