"""A crawl's environment: the reactor, the data directory, and the spider's names and arguments."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.utils.conf import closest_scrapy_cfg, get_config
from scrapy.utils.project import DATADIR_CFG_SECTION, inside_project

from scrapy_dq import gc_tuning
from scrapy_dq.settings import ConfigError

SCRAPYD_ARGUMENT = "_job"
UNNAMED = "\0"
"""The prefix of a digest that identifies only the type of an argument: its value has no stable text."""


def require_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "the installed Twisted reactor is not asyncio's. Set TWISTED_REACTOR = "
            "'twisted.internet.asyncioreactor.AsyncioSelectorReactor' (Scrapy's default), or use Scrapy's "
            "reactor-less mode"
        ) from None


def data_dir(named: str | None) -> Path:
    """Return the folder for the files of scrapy_dq. The folder need not exist.

    One kind of file is an exception: without DQ_DATA_DIR, a long outbox goes to the system's folder of
    temporary files.

    Args:
        named: DQ_DATA_DIR; if it is empty, the folder is `dq` in Scrapy's data directory.
    """
    if named:
        return Path(named).expanduser()
    # Scrapy's data_path() would create .scrapy, which fails on a read-only disk.
    # Source: scrapy/utils/project.py::project_data_dir
    config = get_config()
    if inside_project() and config.has_option(DATADIR_CFG_SECTION, "default"):
        return Path(config.get(DATADIR_CFG_SECTION, "default"), "dq")
    # There is no scrapy.cfg if SCRAPY_SETTINGS_MODULE names the settings.
    project_file = closest_scrapy_cfg()
    return Path(project_file).parent.resolve() / ".scrapy" / "dq" if project_file else Path(".scrapy", "dq")


def names_of(crawler: Crawler, spider: Spider) -> dict[str, str]:
    """Return the values for placeholders in DQ_CRAWL: spider, project, Scrapyd's job, spider arguments."""
    names = {key: str(value) for key, value in vars(spider).items() if isinstance(value, (str, int))}
    names |= {"spider": spider.name, "project": crawler.settings["BOT_NAME"]}
    # The name of the variable depends on Scrapyd's version. Every version passes the job as an argument.
    job = os.environ.get("SCRAPY_JOB") or os.environ.get("SCRAPYD_JOB") or names.get(SCRAPYD_ARGUMENT)
    return names | {"job": job} if job else names


def spider_args(crawler: Crawler) -> dict[str, str]:
    """Return the spider's arguments by name. A digest stands for each value, because a value may be secret.

    Scrapyd's job argument is left out, because another job does not mean another crawl. If a command makes a
    spider and crawls nothing, the spider's arguments come from the command line (`-a NAME=VALUE`).
    """
    made_with = _made_with(crawler)
    if made_with is None and gc_tuning.thaw():  # an earlier crawl in this process hides objects from gc
        made_with = _made_with(crawler)
    if made_with is not None:
        pairs = [(name, _text(value)) for name, value in made_with.items()]
    else:
        given = [value for flag, value in pairwise(sys.argv) if flag == "-a"]
        given += [value[2:] for value in sys.argv if value.startswith("-a") and "=" in value[2:]]
        pairs = [(pair.split("=", 1)[0], pair.split("=", 1)[1]) for pair in given if "=" in pair]
    return {name: _digest(value) for name, value in pairs if name != SCRAPYD_ARGUMENT}


def _made_with(crawler: Crawler) -> dict[str, Any] | None:
    """Return the arguments of the `crawl()` call in progress, or None without such a call.

    Scrapy stores them nowhere else, and the command line does not show the arguments that a script passes.
    """
    # Source: scrapy/crawler.py::Crawler.crawl, Crawler.crawl_async
    for holder in gc.get_referrers(crawler):
        frame = holder.gi_frame if isinstance(holder, GeneratorType) else holder
        frame = holder.cr_frame if isinstance(holder, CoroutineType) else frame
        found = frame.f_locals if isinstance(frame, FrameType) else {}
        if found.get("self") is crawler and isinstance(found.get("kwargs"), dict):
            positional = {str(place): value for place, value in enumerate(found.get("args", ()))}
            return {**positional, **found["kwargs"]}
    return None


def _text(value: object) -> str:
    """Return a text that differs for different plain data and is the same in each process."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, sort_keys=True, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return f"{UNNAMED}{type(value).__qualname__}"


def _plain(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, map(_plain, value)))
    text = repr(value)
    # The repr() of an iterator or a client shows only a memory address, which differs in each process. If the
    # text contains "...", repr() may have left out the part that differs.
    if " at 0x" in text or "..." in text:
        raise TypeError
    return text


def are_comparable(args: dict[str, str]) -> bool:
    """Tell whether different values of these arguments would have different digests."""
    return not any(digest.startswith(UNNAMED) for digest in args.values())


def differing(stored: str, ours: str) -> list[str]:
    """Return the names of the spider arguments that differ. *stored* is empty if it was lost."""
    try:
        first, second = json.loads(stored), json.loads(ours)
    except ValueError:
        return ["unknown"]
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def compared(starts: str, ours: str) -> str:
    """Describe the arguments of a start() for a log, and whether they equal *ours*.

    Args:
        starts: one name from `Frontier.interrupted_starts`.
    """
    try:
        theirs, own = json.loads(starts.removeprefix("*")), json.loads(ours)
    except ValueError:
        return "unknown arguments"
    named = [f"-a {name} ({_beside(own.get(name), each)} here)" for name, each in sorted(theirs.items())]
    return (
        ", ".join(named + [f"no -a {name}" for name in sorted(own.keys() - theirs.keys())]) or "no arguments"
    )


def _beside(own: str | None, theirs: str) -> str:
    return "not given" if own is None else "the same" if own == theirs else "another value"


def _digest(text: str) -> str:
    if text.startswith(UNNAMED):
        return text
    # The command line may contain bytes that are not UTF-8. Python turns them into surrogates.
    return blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def is_one_off(crawler: Crawler) -> bool:
    """Return whether this process runs `scrapy shell`, `fetch`, `view`, `parse` or `check`, not a crawl."""
    if not crawler.crawling:  # the shell opens its engine without Crawler.crawl()
        return True
    start = getattr(type(crawler.spider), "start", None)
    return str(getattr(start, "__module__", "")).startswith("scrapy.commands.")
