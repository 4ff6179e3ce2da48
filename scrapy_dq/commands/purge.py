"""`scrapy dq purge`: drop what waits in one partition."""

from __future__ import annotations

import argparse

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.input import asking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.text import count_of, printable


class Purge(Subcommand):
    """For a site that leads to ever more pages, or that is not wanted any more."""

    name = "purge"
    arguments = "[<spider>] <partition>"
    words = "words"
    summary = "drop what waits in one partition"
    description = (
        "Drops all requests of one partition, usually a host, that wait or are delayed, while the crawl "
        "runs. They stay seen, so that they are not found again. What is in flight, failed or dead stays as "
        "it is; `scrapy dq limit --block` keeps workers from the partition, and loses nothing."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "words", nargs="*", metavar="<spider> <partition>", help="the name of the spider; the partition"
        )
        looking.add_common_options(parser)
        looking.add_partition(parser)
        asking.add_yes(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import ProgressBar, print_json
        from scrapy_dq.frontier.admin.drop import drop, waiting_in
        from scrapy_dq.frontier.model import fits_a_partition
        from scrapy_dq.frontier.worker.identity import own_name

        options.spider, partition = looking.spider_and_partition(options)
        if not (partition and fits_a_partition(partition)):
            raise WrongUsage(f"{partition[:100]!a} is not the name of a partition")
        with looking.place_of(settings, options) as place:
            place.overview(most_members=0)
            partition, hint = looking.partition_named(place, partition)
            if hint:
                raise CommandError(hint)
            count = waiting_in(place.shards, place.crawl, partition)
            about = f"{count_of(count, 'request')} of {printable(partition)}, and those that are delayed"
            asking.need_consent(f"Drop {about}?", options)
            with ProgressBar() as bar:
                bar.begin("requests", count)
                dropped = drop(place.shards, place.crawl, partition, own_name(), bar.advance)
            if dropped is None:
                raise CommandError("the crawl was deleted just now")
        if options.json:
            print_json({"crawl": place.crawl, "partition": partition, "dropped": dropped})
        else:
            print(f"{count_of(dropped, 'request')} of {printable(partition)} dropped.")
        return DONE
