"""Shared by the commands that take requests: their source, and how invalid ones are reported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO

from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinterProtocol

from scrapy_dq.commands import common
from scrapy_dq.commands.input.crawlers import prepared_crawler
from scrapy_dq.commands.output.display import ProgressBar
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.factory import config_of
from scrapy_dq.frontier.admin.overview import described
from scrapy_dq.inspection.place import Place
from scrapy_dq.pushing.lines import LONGEST, Line, lines_from, lines_of
from scrapy_dq.settings import Config

STDIN = "-"


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the options of a file of requests."""
    parser.add_argument(
        "--file", metavar="FILE",
        help="a URL or a JSON object per line; blank lines and lines that begin with # are skipped; - is "
        "standard input",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="stop at the first invalid line")


def crawler_named(settings: Settings, options: argparse.Namespace) -> tuple[Crawler, Config]:
    """Return a crawler with the spider that is named, and its Config.

    Raises:
        CommandError, ConfigError: there is no such spider, or it cannot be created.
    """
    if not options.spider or "://" in options.spider:
        raise WrongUsage("name the spider before the URLs; --crawl alone is not enough to make requests")
    crawler = prepared_crawler(settings, options.spider, common.spider_args_of(options))
    return crawler, config_of(crawler)


def fingerprinter_of(crawler: Crawler) -> RequestFingerprinterProtocol:
    """Return what gives the fingerprints of a spider's requests."""
    assert crawler.request_fingerprinter is not None
    return crawler.request_fingerprinter


def need_fingerprinter(crawler: Crawler, place: Place) -> None:
    """Require that of the stored crawl: with another one, no fingerprint is found there.

    Raises:
        CommandError: the stored crawl has another one.
    """
    ours = global_object_name(type(fingerprinter_of(crawler)))
    stored = described(place.client, place.crawl)["fingerprinter"]
    if stored not in ("", ours):
        raise CommandError(
            f"the stored crawl has REQUEST_FINGERPRINTER_CLASS {stored!r}, this spider {ours!r}"
        )


class Input:
    """The lines that the command line names, with a progress bar over a file."""

    def __init__(
        self, command: str, urls: Sequence[str], options: argparse.Namespace, config: Config
    ) -> None:
        """
        Raises:
            CommandError: it names no requests, or a file that cannot be read.
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
        """Yield the lines, as many at a time as are available."""
        if self._file is None:
            return lines_from(self._urls)
        number = self._file.fileno()
        size = os.fstat(number).st_size
        if size:
            self._bar.begin("bytes", size)
            self._bar.__enter__()
        return lines_of(number, self._max_bytes, self._bar.advance if size else lambda count: None)

    def say_bad(self, name: str, reason: str) -> None:
        """Report an invalid line, in one line."""
        self._bar.say(f"scrapy dq {self._command}: {name}: {reason}")

    def close(self) -> None:
        """Remove the progress bar and close the file; safe at any time."""
        self._bar.__exit__()
        if self._file is not None:
            self._file.close()
