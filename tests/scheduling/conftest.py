"""Fixtures for tests that run Scrapy: one Redis for all tests, scripts, and functions that read a crawl."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
import redis

from scrapy_dq import get_redis
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import Overview, keys, peek
from support.project import SPIDER, Project
from support.redis_server import RedisServer
from support.tree_site import TreeSite
from support.worker import Worker


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the URL of one server for all tests. The kind of server makes no difference to Scrapy."""
    with RedisServer(appendonly=True) as server:
        yield server.url


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """Yield a client of this server, made as a user's program would make it."""
    with get_redis(url=redis_url) as client:
        yield client


@pytest.fixture
def begin(
    redis_url: str, make_project: Callable[..., Project], start_site: Callable[..., TreeSite]
) -> Callable[..., tuple[TreeSite, Project]]:
    """Return a function that starts a site, and makes a project with a given spider that crawls it."""

    def make(spider: str, settings: dict[str, Any] | None = None, **tree: Any) -> tuple[TreeSite, Project]:
        site = start_site(pages=1, **tree)
        return site, make_project([site.url("")], redis_url=redis_url, spider=spider, settings=settings)

    return make


@pytest.fixture
def tree(
    redis_url: str, make_project: Callable[..., Project], start_site: Callable[..., TreeSite]
) -> Callable[..., tuple[TreeSite, Project]]:
    """Return a function that starts a tree and makes a project that crawls it from its root."""

    def make(
        spider: str = SPIDER, settings: dict[str, Any] | None = None, **tree: Any
    ) -> tuple[TreeSite, Project]:
        site = start_site(**tree)
        return site, make_project([site.start_url], redis_url=redis_url, spider=spider, settings=settings)

    return make


@pytest.fixture
def look(redis_url: str) -> Iterator[Callable[[Project | str], Overview]]:
    """Yield a function that reads the state of a crawl, given its name or its project."""
    client = connect_url(redis_url, 5.0)
    yield lambda crawl: peek(client, crawl.name if isinstance(crawl, Project) else crawl)
    client.close()


@pytest.fixture
def reasons(redis_url: str) -> Iterator[Callable[[Project], list[str]]]:
    """Yield a function that reads the reasons of a crawl's dead letters."""
    client = connect_url(redis_url)

    def read(project: Project) -> list[str]:
        letters = client.hgetall(keys.prefix(project.name) + "dead").values()
        return [msgpack.unpackb(letter, raw=True)[0].decode() for letter in letters]

    yield read
    client.close()


@pytest.fixture
def start_script() -> Callable[[Project, str], Worker]:
    """Return a function that runs *source* as a Python script in a project's folder, with its settings."""

    def start(project: Project, source: str) -> Worker:
        number = len(project.workers)
        script = project.folder / f"script-{number}.py"
        script.write_text(source)
        environ = project.environ() | {"SCRAPY_SETTINGS_MODULE": "tree_project.settings"}
        log = project.folder / f"script-{number}.log"
        worker = Worker([sys.executable, str(script)], project.folder, log, environ)
        project.workers.append(worker)
        return worker

    return start


@pytest.fixture
def errors() -> Callable[[Worker], list[str]]:
    """Return a function that reads the ERROR and CRITICAL lines of a worker's log as `logger: text`."""

    def read(worker: Worker) -> list[str]:
        pattern = r"^[-\d]+ [:\d]+ \[([\w.]+)\] (?:ERROR|CRITICAL): (.*)$"
        return [": ".join(found) for found in re.findall(pattern, worker.text, re.MULTILINE)]

    return read
