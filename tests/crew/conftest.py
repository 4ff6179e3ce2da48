"""Fixtures of the tests of `scrapy dq crawl`: a project with a feed, and crews that crawl it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.crew_process import CrewProcess
from support.given import MakeProject, StartSite
from support.project import SPIDER, Project
from support.redis_server import RedisServer
from support.tree_site import TreeSite


class Scene:
    """A site, a project that crawls it, and the crews that a test has started for it."""

    def __init__(self, site: TreeSite, project: Project, stack: ExitStack) -> None:
        self.site = site
        self.project = project
        self.feed = project.folder / "items.jsonl"
        self._stack = stack
        self._crews = 0

    def crew(self, *words: str) -> CrewProcess:
        """Start `scrapy dq crawl SPIDER` with more *words*."""
        self._crews += 1
        crew = CrewProcess(self.project, *words, number=self._crews)
        self._stack.callback(crew.close)
        return crew

    def done(self) -> int:
        return len(self.project.count("done"))


SetScene = Callable[..., Scene]


@pytest.fixture
def scene(redis_server: RedisServer, start_site: StartSite, make_project: MakeProject) -> Iterator[SetScene]:
    """Yield a function that makes a Scene, given project settings, a spider, and options of the site."""
    with ExitStack() as stack:

        def make(project: dict[str, Any] | None = None, spider: str = SPIDER, **tree: Any) -> Scene:
            site = start_site(**tree)
            settings = {"CONCURRENT_REQUESTS": 4, "DQ_SHUTDOWN_GRACE": 1} | (project or {})
            url = redis_server.url
            made = make_project([site.start_url], redis_url=url, settings=settings, spider=spider)
            return Scene(site, made, stack)

        yield make
