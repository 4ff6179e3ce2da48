"""The types of the fixtures in conftest.py files, for type annotations."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_dq.frontier import Overview
from support.fault_crawl import FaultCrawl
from support.project import Project
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.tree_site import TreeSite
from support.worker import Worker

StartRedis = Callable[..., RedisServer]
StartProxy = Callable[[str], RedisProxy]
StartSite = Callable[..., TreeSite]
MakeProject = Callable[..., Project]
MakeCrawl = Callable[..., FaultCrawl]
Figures = Callable[..., None]
Tree = Callable[..., tuple[TreeSite, Project]]
StartScript = Callable[[Project, str], Worker]
Look = Callable[[Project], Overview]
Errors = Callable[[Worker], list[str]]
Reasons = Callable[[Project], list[str]]
