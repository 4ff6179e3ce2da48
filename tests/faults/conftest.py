"""Fixtures of the fault tests. tests/conftest.py prints their figures after a test run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.clusters import Cluster
from support.fault_crawl import FIGURES, FaultCrawl, Verdict
from support.given import Figures, MakeCrawl, MakeProject, StartProxy, StartRedis, StartSite
from support.redis_server import RedisServer
from support.sentinels import Sentinels

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
"""Each host is a partition. On Linux, all addresses of 127.0.0.0/8 are this machine."""


@pytest.fixture
def fault_redis(start_redis: StartRedis) -> RedisServer:
    """Return a Redis for this test alone, with an AOF and appendfsync everysec."""
    return start_redis(appendonly=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield three masters with one replica each, for all tests of a file."""
    with Cluster(password="pass") as made:
        yield made


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    """Yield a master, its replica and three sentinels, for this test alone."""
    with Sentinels(password="pass") as made:
        yield made


@pytest.fixture
def fault_crawl(
    request: pytest.FixtureRequest,
    start_site: StartSite,
    start_proxy: StartProxy,
    make_project: MakeProject,
    figures: Figures,
) -> MakeCrawl:
    """Return a function that makes a tree site, and a project that crawls it.

    Its arguments are the Redis (by default `fault_redis`; None for an embedded Redis), `proxied` (use a proxy
    between the workers and Redis), `through` (another URL of the same Redis), `site` (the options of the
    site) and the arguments of Project. By default, the pages have four hosts and take 60 ms each.

    DQ_MAX_ATTEMPTS is 100, because tests kill workers at random, and more than three of the killed workers
    may hold the same suspect.
    """

    def make(
        *redis: Any,
        proxied: bool = False,
        through: str = "",
        site: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> FaultCrawl:
        tree = start_site(**({"pages": 300, "latency_s": 0.06, "hosts": HOSTS} | (site or {})))
        (server,) = redis or (request.getfixturevalue("fault_redis"),)
        proxy = start_proxy(server.url) if proxied else None
        project = make_project(
            options.pop("start_urls", [tree.start_url]),
            redis_url=proxy.url if proxy else through or (server.url if server else None),
            settings={"DQ_WORKER_TTL": 2, "DQ_MAX_ATTEMPTS": 100} | (settings or {}),
            **options,
        )
        return FaultCrawl(project, tree, server, proxy, figures)

    return make


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Return a function that records the figures of a test for the table after the test run.

    Its arguments are a Verdict or None, and further figures as `name=value`.
    """

    def note(verdict: Verdict | None = None, **more: Any) -> None:
        shown: dict[str, Any] = {}
        if verdict is not None:
            shown = {"pages": verdict.pages, "lost": len(verdict.lost), "repeats": verdict.repeats}
        line = ", ".join(f"{k}={v}" for k, v in (shown | more).items())
        # The figures are a part of the report, because another process prints the table.
        request.node.user_properties.append((FIGURES, f"{request.node.name}: {line}"))

    return note
