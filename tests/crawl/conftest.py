"""Fixtures for tests of whole crawls: a Redis for each test, a site, and a project that crawls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from support.given import MakeProject, StartRedis, StartSite
from support.project import SPIDER, Project
from support.redis_server import RedisServer
from support.tree_site import TreeSite


class Planted(NamedTuple):
    """A Redis, a site, and a project that crawls the site."""

    redis: RedisServer
    site: TreeSite
    project: Project


Plant = Callable[..., Planted]


@pytest.fixture
def plant(start_redis: StartRedis, start_site: StartSite, make_project: MakeProject) -> Plant:
    """Return a function that starts a Redis and a site, and makes a project that crawls the site.

    If *targets* are given, the spider starts there, not at the root. Further arguments are options of the
    site.
    """

    def make(
        spider: str = SPIDER,
        settings: dict[str, Any] | None = None,
        targets: Sequence[str] = (),
        **tree: Any,
    ) -> Planted:
        redis, site = start_redis(appendonly=True), start_site(**tree)
        urls = [site.url(target) for target in targets] or [site.start_url]
        return Planted(redis, site, make_project(urls, redis_url=redis.url, settings=settings, spider=spider))

    return make
