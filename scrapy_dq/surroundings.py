"""What a crawl finds around it: the reactor, the data directory, the names and arguments of its spider."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured
from scrapy.utils.project import data_path

from scrapy_dq.settings import ConfigError

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

SCRAPYD_ARGUMENT = "_job"
_COMMAND_LINES = (("scrapy", "__main__.py"), ("scrapy", "cmdline.py"), ("scrapyd", "runner.py"))
"""What runs `scrapy crawl`, beside the console script."""


def need_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "the installed Twisted reactor is not asyncio's. Set TWISTED_REACTOR = "
            "'twisted.internet.asyncioreactor.AsyncioSelectorReactor' (Scrapy's default), or use Scrapy's "
            "reactor-less mode"
        ) from None


def data_dir() -> Path:
    """Return the folder of the embedded Redis, in Scrapy's data directory."""
    try:
        return Path(data_path("dq"))
    except FileExistsError:
        # Scrapy makes .scrapy without expecting that a worker beside us makes it at the same moment.
        return Path(data_path("dq"))
    except NotConfigured:
        # Settings that SCRAPY_SETTINGS_MODULE names, and no scrapy.cfg: as without a project.
        return Path(".scrapy", "dq")


def names_of(crawler: Crawler, spider: Spider) -> dict[str, str]:
    """What DQ_CRAWL may refer to: spider, project, Scrapyd's job, and the spider's arguments."""
    names = {key: str(value) for key, value in vars(spider).items() if isinstance(value, (str, int))}
    names |= {"spider": spider.name, "project": crawler.settings["BOT_NAME"]}
    # Scrapyd names its job in one of these, by its version; each passes it as an argument.
    job = os.environ.get("SCRAPY_JOB") or os.environ.get("SCRAPYD_JOB") or names.get(SCRAPYD_ARGUMENT)
    return names | {"job": job} if job else names


def spider_args(spider: Spider) -> dict[str, str]:
    """Return the spider's arguments, each value as a digest: it may be secret.

    Those of the command line (`-a NAME=VALUE`). In a script nobody tells what the spider was made with: there
    all its attributes that may be arguments are. Without Scrapyd's own: another job is no other crawl.
    """
    # Scrapy takes the command out of sys.argv, and an argument of a script's own may look like it.
    started = Path(sys.argv[0])
    if started.stem == "scrapy" or started.parts[-2:] in _COMMAND_LINES:
        given = [value for flag, value in pairwise(sys.argv) if flag == "-a"]
        given += [value[2:] for value in sys.argv if value.startswith("-a") and "=" in value[2:]]
        pairs = [pair.split("=", 1) for pair in given if "=" in pair]
    else:
        own = vars(spider).items()
        pairs = [[name, str(value)] for name, value in own if name != "name" and value and _plain(value)]
    return {name: _digest(value) for name, value in pairs if name != SCRAPYD_ARGUMENT}


def _plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return isinstance(value, (str, int, float))


def differing(stored: str, ours: str) -> list[str]:
    """Return the names of the spider arguments that are not the same."""
    try:
        first, second = dict(json.loads(stored)), dict(json.loads(ours))
    except (TypeError, ValueError):
        return ["unknown"]
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def _digest(text: str) -> str:
    # The command line may hold bytes that are not UTF-8; Python has surrogates for them.
    return blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
