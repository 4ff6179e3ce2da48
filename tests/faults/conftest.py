"""Fixtures of the fault tests, and the table of figures at the end of their run."""

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
"""Each host is its own partition. Linux has all addresses of 127.0.0.0/8."""


@pytest.fixture
def fault_redis(start_redis: StartRedis) -> RedisServer:
    """Return a Redis with an AOF, everysec, for this test alone."""
    return start_redis(appendonly=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield three masters with a replica each, for the tests of a file."""
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
    """Return a function that makes a tree site and a project for it.

    Its arguments: the Redis (by default `fault_redis`; None: embedded), `proxied` (put a proxy in between),
    `through` (another URL of that Redis), `site` (a dict for Tree) and Project's arguments. Unless *site*
    says otherwise, the pages have four hosts and take 60 ms each. No request is blamed for several deaths:
    workers that are killed at random may meet the same suspect more than three times.
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
    """Return a function that records a test's figures; the run ends with a table of all figures.

    Its arguments: the Verdict, or None, and further figures as `name=value`.
    """

    def note(verdict: Verdict | None = None, **more: Any) -> None:
        shown: dict[str, Any] = {}
        if verdict is not None:
            shown = {"pages": verdict.pages, "lost": len(verdict.lost), "repeats": verdict.repeats}
        line = ", ".join(f"{k}={v}" for k, v in (shown | more).items())
        # The figures travel with the report, because another process prints the table.
        request.node.user_properties.append((FIGURES, f"{request.node.name}: {line}"))

    return note
