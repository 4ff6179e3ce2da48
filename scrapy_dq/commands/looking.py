"""Shared by the commands: their common options, and the crawl and the Redis that they name."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.conf import arglist_to_dict

from scrapy_dq.commands.input.crawlers import prepared_crawler
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.factory import config_of
from scrapy_dq.frontier.admin.backlog import names_beside
from scrapy_dq.frontier.model import fits_a_partition
from scrapy_dq.hostnames import host_named
from scrapy_dq.inspection import place
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.words import unanswered
from scrapy_dq.settings import Config

MOST = 1000
"""Maximum number of entries that a command shows."""


def add_crawl_options(parser: argparse.ArgumentParser) -> None:
    """Add the spider and the common options."""
    parser.add_argument("spider", metavar="<spider>", nargs="?", default="", help="the name of the spider")
    add_common_options(parser)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all these commands have, without the spider."""
    parser.add_argument(
        "-a", dest="spargs", action="append", default=[], metavar="NAME=VALUE",
        help="set spider argument (may be repeated), if DQ_CRAWL depends on it",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def spider_args_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the arguments of the spider.

    Raises:
        WrongUsage: one is not NAME=VALUE.
    """
    try:
        return arglist_to_dict(options.spargs)
    except ValueError:
        raise WrongUsage("-a takes NAME=VALUE") from None


def spider_and(what: str, options: argparse.Namespace) -> tuple[str, str]:
    """Return the two `words` of a command: the spider, "" if --crawl names the crawl, and *what*.

    Raises:
        WrongUsage: there are more, or neither names the crawl.
    """
    words = options.words
    if len(words) > 2:
        raise WrongUsage(f"a spider and {what}, not {len(words)} words")
    if not words or (len(words) == 1 and not options.crawl):
        raise WrongUsage(f"name the spider first, or a crawl with --crawl; then {what}")
    return ("", *words)[-2], words[-1]


def add_site(parser: argparse.ArgumentParser, help_: str) -> None:
    """Add the option that names a site; *help_*: what it does."""
    parser.add_argument("--site", metavar="HOST", help=help_)


def spellings_of(site: str | None) -> frozenset[bytes] | None:
    """Return the partitions of a site: its name, and its usual spelling, which links have; None: all."""
    return None if site is None else frozenset((site.encode(), host_named(site).encode()))


def add_count(parser: argparse.ArgumentParser, count: int) -> None:
    """Add the option for how many entries are shown, *count* by default."""
    parser.add_argument(
        "-n", dest="count", type=whole(1, MOST), default=count, metavar="N",
        help=f"how many at most (default: {count})",
    )  # fmt: skip


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number from *least* to *most*."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def seconds(least: float, most: int) -> Callable[[str], float]:
    """Return the type of an option that is a time from *least* to *most*, in seconds."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= (number := float(text)) <= most:  # nor is nan
                return number
        raise argparse.ArgumentTypeError(f"expected {least:g} to {most} seconds, not {text!r}")

    return read


@contextmanager
def place_of(settings: Settings, options: argparse.Namespace) -> Iterator[Place]:
    """Yield the crawl that the command line names.

    Raises:
        CommandError, ConfigError, FrontierError: it names none, or Redis is not usable.
    """
    need_crawl(options)
    with opened(config_named(settings, options)) as found:
        yield found


def need_crawl(options: argparse.Namespace) -> None:
    """Require that the command line names a spider or a crawl.

    Raises:
        WrongUsage: it names none.
    """
    if not (options.spider or options.crawl):
        raise WrongUsage("name a spider, or a crawl with --crawl")


@contextmanager
def opened(config: Config, *, any_node: bool = False) -> Iterator[Place]:
    """Yield the crawl of *config*, whether it exists or not; *any_node*: as for `place.opened`.

    Raises:
        CommandError, FrontierError: Redis is not usable, or there turned out to be no such crawl.
    """
    with place.opened(config, any_node=any_node) as found:
        try:
            yield found
        except place.NoSuchCrawl as error:
            raise CommandError(str(error)) from error


def found_in(place: Place, **found: Any) -> dict[str, Any]:
    """Return what was *found* in a crawl, for `--json`: an object, so that a later version can add keys."""
    unreachable = list(place.shards.unreachable)
    return {"crawl": place.crawl, "redis": place.target, "unreachable_shards": unreachable} | found


def say_unanswered(place: Place) -> None:
    """Say on standard error which shards have not answered, if any: what was printed has nothing of them."""
    for line in unanswered(place.shards.unreachable):
        print(f"scrapy dq: {line}", file=sys.stderr)


def partition_named(place: Place, name: str) -> tuple[str, str]:
    """Return the partition that *name* means, and a hint if the crawl has nothing in it, else "".

    Links to a host are in the partition of its usual spelling. A slot may have capitals.
    """
    hint, usual = hint_of_partition(place, name), host_named(name)
    if hint and usual != name:
        usual_hint = hint_of_partition(place, usual)
        if not usual_hint or usual != name.lower():
            return usual, usual_hint
    return name, hint


def hint_of_partition(place: Place, partition: str) -> str:
    """Return a hint if the crawl has nothing in this partition: the name may be misspelled; else ""."""
    beside = names_beside(place.shards, place.crawl, partition) if fits_a_partition(partition) else None
    if beside is None:
        return ""
    near = difflib.get_close_matches(partition, beside, 1)
    hint = "this crawl has nothing in a partition of that name now"
    if near:
        return f"{hint}; did you mean {near[0]!r}?"
    if beside == [""]:
        return f"{hint}: everything is in one without a name ('')"
    named = [name for name in beside if name]
    if not named:
        return hint
    return f"{hint}; existing partitions: {', '.join(named[:5])}{', ...' if len(named) > 5 else ''}"


def config_named(settings: Settings, options: argparse.Namespace) -> Config:
    """Return the Config of the named spider; without one, that of the project, for the crawl `--crawl`."""
    return crawler_named(settings, options)[0]


def crawler_named(settings: Settings, options: argparse.Namespace) -> tuple[Config, Crawler | None]:
    """Like `config_named`; also return the crawler with the spider."""
    spider_args = spider_args_of(options)
    settings = settings.copy()
    # It may depend on environment variables that only workers have, and only workers need it.
    settings.set("DQ_RUN_NAME", "", "cmdline")
    if options.spider:
        crawler = prepared_crawler(settings, options.spider, spider_args)
        return config_of(crawler), crawler
    if not options.crawl:
        settings.set("DQ_CRAWL", "-", "cmdline")  # Redis alone is looked at
    return Config.read(place.project_settings(settings), {}), None
