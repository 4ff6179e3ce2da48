"""`scrapy dq items`: the items that workers on this machine have in journals."""

from __future__ import annotations

import argparse
import os

from scrapy.settings import Settings

from scrapy_dq.commands.crawl import add_outputs
from scrapy_dq.commands.subcommand import CommandError, Subcommand, WrongUsage


class Items(Subcommand):
    """The items of a crawl: count, export or follow them.

    Counts the items that each worker on this machine has scraped in the last run. With an option, it writes
    them to any feed of Scrapy, or prints new ones.
    """

    name = "items"
    arguments = "<spider>"
    flags = (
        ("--export", "write the feeds of FEEDS again"),
        ("--follow", "print items as they arrive, one JSON object per line, until Ctrl-C"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_outputs(parser)
        parser.add_argument(
            "-t", "--format", metavar="FORMAT",
            help="the format of the feeds of -o and -O (default: the ending of FILE)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        names_feeds = bool(options.output or options.overwrite_output)
        if options.follow and (options.export or names_feeds):
            raise WrongUsage("--follow prints items: it goes with neither --export nor -o")
        if options.export and names_feeds:
            raise WrongUsage("--export writes the feeds of FEEDS, -o and -O write others: name one of these")
        if options.format and not names_feeds:
            raise WrongUsage("-t is the format of -o or -O")
        if os.name != "posix":
            raise CommandError("`scrapy dq crawl`, which writes journals of items, needs a POSIX system")
        from scrapy_dq.commands.item_journals import run

        return run(settings, options)
