"""Fixtures of the tests of `scrapy dq`: commands that run in this process, and a crawl for them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.spiderloader import SpiderLoader

from scrapy_dq.commands.group import subcommands
from scrapy_dq.frontier.model import Order
from support.live_frontier import HandWorker, LiveFrontier
from support.redis_server import RedisServer
from support.web_page import TOKEN, WebPage

PASSWORD = "s3cr3t-w0rd"
CHANGES = ("retry", "push", "clear", "limit", "complete", "move", "export", "import")
"""Commands that may write messages to standard error beside their output."""

READ_ONLY = ("status", "workers", "search", "failed", "dead", "events", "doctor")
"""Commands that only read, and need no argument except the crawl."""

LISTS = {
    "status": "crawls", "workers": "workers", "search": "entries", "failed": "entries", "dead": "entries",
    "events": "events", "metrics": "samples",
}  # fmt: skip
"""For each command: the key of the list in its JSON output."""


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """Yield one server with a password. The kind of server makes no difference to these tests."""
    with RedisServer(appendonly=True, password=PASSWORD) as server:
        yield server


@pytest.fixture
def live(server: RedisServer, crawl_name: str) -> Iterator[LiveFrontier]:
    """Yield a frontier that no other test uses."""
    with closing(LiveFrontier(server.url, crawl_name, Order.PRIORITY_LIFO)) as live:
        yield live


@pytest.fixture
def worker(live: LiveFrontier) -> HandWorker:
    """Return a worker that has joined."""
    return HandWorker(live, "worker")


class Dq:
    """Runs commands in this process, as `scrapy dq` does. `text` and `found` return their output."""

    def __init__(self, url: str, crawl: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.crawl = crawl
        self.status = 0
        self.said: list[str] = []
        """Lines on standard error."""
        self.printed = ""
        """The output, even if the command ended with an error."""
        self.may_say = False
        """Whether a command that only reads may also write to standard error in this test."""
        self._capsys = capsys

    def text(self, name: str, *words: str, **settings: Any) -> str:
        """Run a command on the crawl and return its output, in 80 columns, without colour or password.

        Commands that change a crawl write each message on one line of any length.
        """
        shown = self._run(name, words, settings)
        assert "\x1b" not in shown
        assert max(map(len, shown.splitlines())) <= 80 or name in CHANGES
        return shown

    def found(self, name: str, *words: str, **settings: Any) -> Any:
        """Run a command with --json and return the parsed output."""
        found = json.loads(self._run(name, (*words, "--json"), settings))
        assert isinstance(found, dict)  # not a list, because a later version can add keys
        return found

    def listed(self, name: str, *words: str, **settings: Any) -> list[dict[str, Any]]:
        """Run a command with --json and return the list that LISTS names."""
        return list(self.found(name, *words, **settings)[LISTS[name]])

    def lines(self, name: str, *words: str, **settings: Any) -> list[str]:
        """Run a command whose lines may have any length, and return the lines."""
        return self._run(name, words, settings).splitlines()

    def _run(self, name: str, words: Sequence[str], settings: dict[str, Any]) -> str:
        (subcommand,) = subcommands([name])
        parser = argparse.ArgumentParser()
        subcommand.add_options(parser)
        parser.add_argument("--crawl", default=self.crawl)
        options = parser.parse_args(words)
        given = Settings({"REDIS_URL": self.url} | settings)
        if options.crawl:
            given.set("DQ_CRAWL", options.crawl.replace("%", "%%"), "cmdline")
        try:
            self.status = subcommand.run(given, options)
        finally:
            shown = self._capsys.readouterr()
            self.said = shown.err.splitlines()
            self.printed = shown.out
            assert PASSWORD not in shown.out + shown.err
        assert shown.err == "" or self.may_say or name in (*CHANGES, "metrics")
        return shown.out


def loader_of(*names: str, **custom_settings: dict[str, Any]) -> type:
    """Return a SPIDER_LOADER_CLASS with a spider of each name. A spider's crawl has the spider's name.

    Args:
        custom_settings: the custom settings of some spiders, by spider name.
    """

    def spider(name: str) -> type:
        return type("Named", (Spider,), {"name": name, "custom_settings": custom_settings.get(name)})

    class Loader(SpiderLoader):
        def _load_all_spiders(self) -> None:
            self._spiders = {name: spider(name) for name in names}

    return Loader


@pytest.fixture
def dq(live: LiveFrontier, server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Dq:
    """Return a runner of commands for the crawl of `live`."""
    return Dq(server.url, live.crawl, capsys)


@pytest.fixture
def dq_at(capsys: pytest.CaptureFixture[str]) -> Callable[[str], Dq]:
    """Return a function that returns a runner of commands for the Redis at a URL."""
    return lambda url: Dq(url, "crawl", capsys)


@pytest.fixture(scope="module")
def pages(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WebPage]]:
    """Yield two pages: one only reads and has no token, the other steers and has a token."""
    with ExitStack() as stack:
        folders = {name: tmp_path_factory.mktemp(name) for name in ("reads", "steers")}
        yield {
            "reads": stack.enter_context(WebPage(folders["reads"], server.url)),
            "steers": stack.enter_context(
                WebPage(folders["steers"], server.url, "--allow-steering", token=TOKEN)
            ),
        }


@pytest.fixture
def page(pages: dict[str, WebPage]) -> WebPage:
    return pages["reads"]


@pytest.fixture
def steering(pages: dict[str, WebPage]) -> WebPage:
    return pages["steers"]
