"""What a crawl finds around it: the reactor, the data directory, the names and arguments of its spider."""

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
"""What the digest of an argument begins with that says nothing of itself but its type."""


def need_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "the installed Twisted reactor is not asyncio's. Set TWISTED_REACTOR = "
            "'twisted.internet.asyncioreactor.AsyncioSelectorReactor' (Scrapy's default), or use Scrapy's "
            "reactor-less mode"
        ) from None


def data_dir(named: str | None) -> Path:
    """Return the folder for all files but a long outbox, if that is not named; it need not exist.

    Args:
        named: DQ_DATA_DIR; empty: `dq` in Scrapy's data directory.
    """
    if named:
        return Path(named).expanduser()
    # Not by Scrapy's data_path(), which creates .scrapy: on a read-only disk that fails.
    # Source: scrapy/utils/project.py::project_data_dir
    config = get_config()
    if inside_project() and config.has_option(DATADIR_CFG_SECTION, "default"):
        return Path(config.get(DATADIR_CFG_SECTION, "default"), "dq")
    # SCRAPY_SETTINGS_MODULE may name the settings, without a scrapy.cfg.
    project_file = closest_scrapy_cfg()
    return Path(project_file).parent.resolve() / ".scrapy" / "dq" if project_file else Path(".scrapy", "dq")


def names_of(crawler: Crawler, spider: Spider) -> dict[str, str]:
    """What DQ_CRAWL may refer to: spider, project, Scrapyd's job, and the spider's arguments."""
    names = {key: str(value) for key, value in vars(spider).items() if isinstance(value, (str, int))}
    names |= {"spider": spider.name, "project": crawler.settings["BOT_NAME"]}
    # Scrapyd names its job in one of these, by its version; each passes it as an argument.
    job = os.environ.get("SCRAPY_JOB") or os.environ.get("SCRAPYD_JOB") or names.get(SCRAPYD_ARGUMENT)
    return names | {"job": job} if job else names


def spider_args(crawler: Crawler) -> dict[str, str]:
    """Return the spider's arguments, each value as a digest: it may be secret.

    Without Scrapyd's own: another job is no other crawl. Of a command that makes a spider and crawls nothing,
    those of its command line (`-a NAME=VALUE`).
    """
    made_with = _made_with(crawler)
    if made_with is None and gc_tuning.thaw():  # another crawl of this process has joined before
        made_with = _made_with(crawler)
    if made_with is not None:
        pairs = [(name, _text(value)) for name, value in made_with.items()]
    else:
        given = [value for flag, value in pairwise(sys.argv) if flag == "-a"]
        given += [value[2:] for value in sys.argv if value.startswith("-a") and "=" in value[2:]]
        pairs = [(pair.split("=", 1)[0], pair.split("=", 1)[1]) for pair in given if "=" in pair]
    return {name: _digest(value) for name, value in pairs if name != SCRAPYD_ARGUMENT}


def _made_with(crawler: Crawler) -> dict[str, Any] | None:
    """Return the arguments of the `crawl()` that is under way; None: there is none.

    Scrapy keeps them nowhere else, and the command line does not tell what a script hands on.
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
    """Return a text that tells plain data apart, the same in each process."""
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
    # An address is another one in each process, and says nothing of what an iterator, or a client, is for;
    # what is left out of a large table may be what differs.
    if " at 0x" in text or "..." in text:
        raise TypeError
    return text


def told_apart(args: dict[str, str]) -> bool:
    """Tell whether other arguments of the same names would look different."""
    return not any(digest.startswith(UNNAMED) for digest in args.values())


def differing(stored: str, ours: str) -> list[str]:
    """Return the names of the spider arguments that are not the same; *stored* may be lost, and empty."""
    try:
        first, second = json.loads(stored), json.loads(ours)
    except ValueError:
        return ["unknown"]
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def compared(starts: str, ours: str) -> str:
    """Return, for a log, which arguments a start() had, and whether they are *ours*.

    Args:
        starts: as `Frontier.interrupted_starts` returns it.
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
    # The command line may hold bytes that are not UTF-8; Python has surrogates for them.
    return blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def is_one_off(crawler: Crawler) -> bool:
    """Return whether this is `scrapy shell`, `fetch`, `view`, `parse` or `check`, not a crawl."""
    if not crawler.crawling:  # the shell opens its engine without Crawler.crawl()
        return True
    start = getattr(type(crawler.spider), "start", None)
    return str(getattr(start, "__module__", "")).startswith("scrapy.commands.")
