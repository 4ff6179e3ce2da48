"""Shared by the commands: common options, and the crawl, Redis and requests on the command line."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, BinaryIO

from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinterProtocol

from scrapy_dq.commands.input.crawlers import prepared_crawler
from scrapy_dq.commands.output.display import ProgressBar
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.factory import config_of
from scrapy_dq.frontier.admin.backlog import other_names
from scrapy_dq.frontier.admin.overview import described
from scrapy_dq.frontier.model import fits_partition
from scrapy_dq.hostnames import host_named
from scrapy_dq.inspection.place import Place, opened, project_config
from scrapy_dq.inspection.words import unanswered
from scrapy_dq.pushing.lines import LONGEST, Line, lines_from, lines_of
from scrapy_dq.settings import Config
from scrapy_dq.text import suggestion

MAX_COUNT = 1000
"""Maximum number of entries that a command shows."""
ENTRY_ID = re.compile(r"[0-9a-f]{24}")
STDIN = "-"


def words_after_spider(
    options: argparse.Namespace, noun: str, fits: Callable[[str], bool] = lambda word: True, most: int = 1
) -> list[str]:
    """Set `options.spider` to the first word on the command line, and return the other words.

    If --crawl is given and all words are valid as other words, no word names a spider: `options.spider` is
    "", and all words are returned.

    Args:
        noun: description of the other words, for the error message.
        fits: returns whether a word is valid as one of the other words.
        most: maximum number of other words.
    Raises:
        WrongUsage: there are too many words, a word is invalid, or neither a spider nor a crawl is named.
    """
    words: list[str] = options.words
    options.spider = ""
    if not (options.crawl and len(words) <= most and all(map(fits, words))):
        options.spider, words = "".join(words[:1]), words[1:]
    if ENTRY_ID.fullmatch(options.spider) or "://" in options.spider:
        raise WrongUsage("name the spider first, or a crawl with --crawl")
    if len(words) > most:
        raise WrongUsage(f"a spider and {noun}, not {len(words) + 1} words")
    if wrong := [word for word in words if not fits(word)]:
        raise WrongUsage(f"{wrong[0]!r} is not {noun}")
    require_crawl(options)
    return words


def partitions_of_site(site: str | None) -> frozenset[bytes] | None:
    """Return the partitions that *site* may mean: the name as it is, and the usual spelling of this host.

    If *site* is None, return None, which means all partitions.
    """
    return None if site is None else frozenset((site.encode(), host_named(site).encode()))


def add_count(parser: argparse.ArgumentParser, count: int) -> None:
    """Add the option for the number of shown entries, *count* by default."""
    parser.add_argument(
        "-n", dest="count", type=whole(1, MAX_COUNT), default=count, metavar="N",
        help=f"how many at most (default: {count})",
    )  # fmt: skip


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the argparse type of an option that is a whole number from *least* to *most*."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def seconds(least: float, most: int) -> Callable[[str], float]:
    """Return the argparse type of an option that is a time from *least* to *most*, in seconds."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= (number := float(text)) <= most:  # also refuses nan
                return number
        raise argparse.ArgumentTypeError(f"expected {least:g} to {most} seconds, not {text!r}")

    return read


def place_of(settings: Settings, options: argparse.Namespace) -> AbstractContextManager[Place]:
    """Open the crawl that the command line names. The crawl need not exist.

    Raises:
        CommandError, ConfigError, FrontierError: no crawl is named, a setting is wrong, or Redis is unusable.
    """
    require_crawl(options)
    return opened(config_named(settings, options))


def require_crawl(options: argparse.Namespace) -> None:
    """Require that the command line names a spider or a crawl.

    Raises:
        WrongUsage: the command line names neither.
    """
    if not (options.spider or options.crawl):
        raise WrongUsage("name a spider, or a crawl with --crawl")


def found_in(place: Place, **found: Any) -> dict[str, Any]:
    """Return the object that `--json` prints: *found*, the crawl, its Redis, and shards that did not answer.

    It is an object, so that later versions can add keys.
    """
    unreachable = list(place.shards.unreachable)
    return {"crawl": place.crawl, "redis": place.target, "unreachable_shards": unreachable} | found


def warn_unanswered(place: Place) -> None:
    """Print to standard error which shards have not answered. The output lacks the data of these shards."""
    for line in unanswered(place.shards.unreachable):
        print(f"scrapy dq: {line}", file=sys.stderr)


def partition_named(place: Place, name: str) -> tuple[str, str]:
    """Return the partition that *name* means, and a hint if this partition is empty, else "".

    Requests to a host are in the partition of the host's usual spelling, in lower case. But the name of a
    download slot may contain capitals, so *name* is tried first as it is.
    """
    hint, canonical = hint_of_partition(place, name), host_named(name)
    if hint and canonical != name:
        canonical_hint = hint_of_partition(place, canonical)
        if not canonical_hint or canonical != name.lower():
            return canonical, canonical_hint
    return name, hint


def hint_of_partition(place: Place, partition: str) -> str:
    """Return a hint if this partition is empty, because the name may be misspelled; else ""."""
    others = other_names(place.shards, place.crawl, partition) if fits_partition(partition) else None
    if others is None:
        return ""
    nothing = "this crawl has no requests in a partition of that name"
    return f"{nothing}; {suggestion(partition, others, 'partitions')}"


def config_named(settings: Settings, options: argparse.Namespace) -> Config:
    """Return the Config of the named spider. Without a spider, return the project's Config for `--crawl`."""
    return crawler_named(settings, options)[0]


def crawler_named(settings: Settings, options: argparse.Namespace) -> tuple[Config, Crawler | None]:
    """Return the result of `config_named`, and a crawler with the spider, or None if no spider is named."""
    if not options.spider:
        return project_config(settings, of_crawl=bool(options.crawl)), None
    settings = settings.copy()
    # Only workers need the run's name, which may depend on environment variables that only workers have.
    settings.set("DQ_RUN_NAME", "", "cmdline")
    crawler, config = spider_named(settings, options)
    return config, crawler


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the options of a file of requests."""
    parser.add_argument(
        "--file", metavar="FILE",
        help="a URL or JSON object per line; # begins a comment line; - is standard input",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="stop at the first invalid line")


def spider_named(settings: Settings, options: argparse.Namespace) -> tuple[Crawler, Config]:
    """Return a crawler with the named spider, and its Config.

    Raises:
        CommandError, ConfigError: there is no such spider, or it cannot be created.
    """
    if not options.spider or "://" in options.spider:
        raise WrongUsage("name the spider before the URLs; --crawl alone is not enough to make requests")
    try:
        spider_args = arglist_to_dict(options.spargs)
    except ValueError:
        raise WrongUsage("-a takes NAME=VALUE") from None
    crawler = prepared_crawler(settings, options.spider, spider_args)
    return crawler, config_of(crawler)


def fingerprinter_of(crawler: Crawler) -> RequestFingerprinterProtocol:
    """Return the fingerprinter of a spider's requests."""
    assert crawler.request_fingerprinter is not None
    return crawler.request_fingerprinter


def require_fingerprinter(crawler: Crawler, place: Place) -> None:
    """Require that the spider has the fingerprinter of the stored crawl.

    Another fingerprinter would find none of the stored fingerprints.

    Raises:
        CommandError: the stored crawl has another fingerprinter.
    """
    ours = global_object_name(type(fingerprinter_of(crawler)))
    stored = described(place.client, place.crawl)["fingerprinter"]
    if stored not in ("", ours):
        raise CommandError(
            f"the stored crawl has REQUEST_FINGERPRINTER_CLASS {stored!r}, this spider {ours!r}"
        )


class Input:
    """Lines from the command line or from a file, with a progress bar for a file."""

    def __init__(
        self, command: str, urls: Sequence[str], options: argparse.Namespace, config: Config
    ) -> None:
        """Open the file that the command line names, if any.

        Raises:
            CommandError: the command line names neither URLs nor a file, or both, or the file cannot be read.
        """
        if bool(urls) == bool(options.file):
            raise WrongUsage("name URLs, or a --file" + (", not both" if urls else ""))
        self._command = command
        self._urls = urls
        self._max_bytes = LONGEST * config.max_entry_bytes
        self._file: BinaryIO | None = None
        self._bar = ProgressBar()
        if not options.file:
            return
        is_stdin = options.file == STDIN
        if is_stdin and sys.stdin is None:
            raise CommandError("standard input is closed")
        try:
            name = sys.stdin.fileno() if is_stdin else options.file
            self._file = open(name, "rb", closefd=not is_stdin)  # noqa: SIM115  # `close` does
        except OSError as error:
            raise CommandError(f"{options.file!r} cannot be read: {error.strerror}") from error

    def batches(self) -> AsyncIterator[Sequence[Line]]:
        """Yield the lines in batches. Each batch has all lines that are available at that time."""
        if self._file is None:
            return lines_from(self._urls)
        number = self._file.fileno()
        size = os.fstat(number).st_size
        if size:
            self._bar.begin("bytes", size)
            self._bar.__enter__()
        return lines_of(number, self._max_bytes, self._bar.advance if size else lambda count: None)

    def warn_invalid(self, name: str, reason: str) -> None:
        """Print one line about an invalid line."""
        self._bar.say(f"scrapy dq {self._command}: {name}: {reason}")

    def close(self) -> None:
        """Remove the progress bar and close the file; safe at any time."""
        self._bar.__exit__()
        if self._file is not None:
            self._file.close()
