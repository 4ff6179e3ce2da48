"""Find the crawl that a command or the web page shows, and a blocking client of its Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from scrapy import Spider
from scrapy.addons import AddonManager
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from scrapy_dq.backend.connection import client_for_commands
from scrapy_dq.environment import data_dir
from scrapy_dq.frontier.admin.crawls import CrawlSearch
from scrapy_dq.frontier.admin.overview import Overview, peek
from scrapy_dq.frontier.admin.shards import Shards, count_of
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.settings import Config
from scrapy_dq.text import suggestion


class NoSuchCrawl(FrontierError):
    """Redis has no crawl of that name; the message names existing ones."""


@dataclass(frozen=True)
class Place:
    """A crawl, whether it exists or not, and a blocking client of its Redis."""

    client: Any
    """Reaches the keys of the home shard."""
    target: str
    config: Config
    connect: Callable[[int], Any]
    """Returns a client for the keys of another shard."""
    nodes: Callable[[], Sequence[Any]]
    """Returns a client for each master of a cluster; without a cluster, only *client*."""

    @property
    def crawl(self) -> str:
        return self.config.crawl

    @cached_property
    def shards(self) -> Shards:
        """Shards of the crawl, for the functions of `frontier.admin`; for a new crawl, DQ_SHARDS of them.

        The results of these functions lack data of shards that do not answer; `unreachable` lists these.
        """
        count = count_of(self.client, self.crawl) or self.config.shards
        return Shards(
            self.crawl, count, lambda number: self.client if number == HOME else self.connect(number)
        )

    def ask_all(self) -> None:
        """Let the next read ask all shards, including shards that did not answer an earlier read.

        The number of shards is read again, because `move` may change it.
        """
        known = self.__dict__.get("shards")
        if known is not None and count_of(self.client, self.crawl) not in (0, len(known)):
            del self.__dict__["shards"]
        self.shards.ask_all()

    def of(self, crawl: str) -> Place:
        """Return another crawl in the same Redis. All crawls share one client, because there may be many."""
        client = self.client
        return replace(
            self, config=replace(self.config, crawl=crawl, shards=1), connect=lambda number: client
        )

    def peek(self, most_members: int | None = None) -> Overview:
        """Return the crawl's current state; its phase is `absent` if there is no such crawl.

        Args:
            most_members: read the records of at most this many workers; all are counted.
        Raises:
            FrontierRefused: a key has a foreign type.
        """
        self.ask_all()
        return peek(self.shards, self.crawl, most_members=most_members)

    def overview(self, *, hint: bool = True, most_members: int | None = None) -> Overview:
        """Return the crawl's current state; see `peek`.

        Args:
            hint: if there is no such crawl, search Redis for similar names.
        Raises:
            NoSuchCrawl: there is no such crawl.
        """
        found = self.peek(most_members)
        if found.phase == "absent":
            raise self.no_such_crawl(hint=hint)
        return found

    def no_such_crawl(self, *, hint: bool = True) -> NoSuchCrawl:
        """Return the error for a missing crawl; *hint* is the same as for `overview`."""
        absent = f"there is no crawl {self.crawl!r} at {self.target}"
        if not hint:
            return NoSuchCrawl(absent)
        names = CrawlSearch().scan_more(self.nodes)
        return NoSuchCrawl(f"{absent}: {suggestion(self.crawl, names, 'crawls', '--crawl ')}")

    def now(self) -> float:
        """Return seconds since 1970 by the clock of Redis."""
        seconds, microseconds = self.client.time()
        return float(seconds + microseconds / 1e6)


def project_settings(settings: Settings) -> Settings:
    """Return the settings of the project and its add-ons, without any spider's."""
    settings = settings.copy()
    AddonManager.load_pre_crawler_settings(settings)
    crawler = Crawler(Spider, settings)
    crawler.addons.load_settings(crawler.settings)
    return crawler.settings


def project_config(settings: Settings, *, of_crawl: bool = False) -> Config:
    """Return the Config of a project for no particular crawl; with *of_crawl*, for the crawl in DQ_CRAWL.

    Raises:
        ConfigError: a setting is wrong.
    """
    settings = settings.copy()
    if not of_crawl:
        settings.set("DQ_CRAWL", "-", "cmdline")
    settings.set("DQ_RUN_NAME", "", "cmdline")  # the name may depend on values that only workers have
    return Config.read(project_settings(settings), {})


@contextmanager
def opened(config: Config, *, any_node: bool = False) -> Iterator[Place]:
    """Yield the crawl of *config*, whether it exists or not.

    Args:
        any_node: an answer from any node of a cluster is enough, because the caller wants all crawls.
    Raises:
        FrontierRefused: Redis is not usable.
        FrontierUnavailable: Redis has stopped answering.
    """
    with client_for_commands(config, data_dir(config.data_dir), any_node=any_node) as found:
        client, target, connect, nodes = found
        yield Place(client, target, config, connect, nodes)
