"""`scrapy dq limit`: the limits of one partition, while the crawl runs."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.output.display import print_json, print_table
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.frontier.admin.control import MAX_BLOCK_S, MAX_CONCURRENCY, MAX_DELAY_S, limit
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection.words import span
from scrapy_dq.text import printable


class Limit(Subcommand):
    """The delay, concurrency, budget and block of a site.

    Shows or changes the delay, the concurrency, the budget and the block of a site, for all workers
    together. They apply from the next exchange of each worker on, until the run is finished, or a worker
    with different settings joins.
    """

    name = "limit"
    arguments = "[<spider>] --site HOST"
    flags = (("--default", "reset delay, concurrency and budget to the settings"),)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument(
            "--site", required=True, metavar="HOST", help="the site: a partition, as `status` shows it"
        )
        parser.add_argument(
            "--delay", type=looking.seconds(0, MAX_DELAY_S), metavar="S",
            help="seconds between two requests; 0: no delay",
        )  # fmt: skip
        parser.add_argument(
            "--concurrency", type=looking.whole(0, MAX_CONCURRENCY), metavar="N",
            help="requests at once; 0: no limit",
        )  # fmt: skip
        parser.add_argument(
            "--budget", type=looking.whole(0, 1_000_000_000), metavar="N",
            help="most requests of the run, or of a day, counted from its first budget on; 0: any number",
        )  # fmt: skip
        parser.add_argument(
            "--block", type=looking.seconds(0.001, MAX_BLOCK_S), metavar="S",
            help="send it no requests for S seconds",
        )  # fmt: skip
        parser.add_argument("--unblock", dest="block", action="store_const", const=0.0, help="end a block")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        own = {"delay_s": options.delay, "concurrency": options.concurrency, "budget": options.budget}
        if options.default:
            own = {name: -1 if value is None else value for name, value in own.items()}
        limits = own | {"block_s": options.block}
        with looking.place_of(settings, options) as place:
            if place.overview().phase == "finished":
                raise CommandError("the run is finished: the next run uses the limits of the settings")
            partition, hint = looking.partition_named(place, options.site)
            if hint and not any(value is not None for value in limits.values()):
                raise CommandError(hint)
            try:
                now = limit(place.shards, place.crawl, partition, by=own_name(), **limits)
            except ValueError as error:
                raise WrongUsage(str(error)) from error
            if now is None:
                raise place.no_such_crawl()
        if hint:
            print(f"scrapy dq limit: the limit is set, but {printable(hint)}", file=sys.stderr)
        if options.json:
            print_json({"partition": partition} | asdict(now))
        else:
            row = (
                f"{now.delay_s:g} s" if now.delay_s else "none",
                now.concurrency or "no limit",
                f"{now.spent:,} of {now.budget:,}" if now.budget else "any",
                f"for {span(math.ceil(now.blocked_s))}" if now.blocked_s else "no",
                partition or "(no name)",
            )
            print_table(("delay", "concurrency", "budget", "blocked", "partition"), [row])
        return DONE
