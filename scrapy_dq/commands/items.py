"""`scrapy dq items`: count, export or follow the items in journals of workers on this machine."""

from __future__ import annotations

import argparse
import os

from scrapy.settings import Settings

from scrapy_dq.commands.crawl import add_outputs
from scrapy_dq.commands.subcommand import CommandError, Subcommand, WrongUsage


class Items(Subcommand):
    """Count, export or follow items.

    Counts the items of the last run, by worker on this machine. Options export or print them.
    """

    name = "items"
    arguments = "<spider>"
    flags = (
        ("--export", "write the feeds of FEEDS again"),
        ("--follow", "print new items as JSON Lines, until Ctrl-C"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_outputs(parser)
        parser.add_argument(
            "-t", "--format", metavar="FORMAT",
            help="the format of -o and -O (default: by the ending of FILE)",
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
