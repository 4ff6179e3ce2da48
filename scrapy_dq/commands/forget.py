"""`scrapy dq forget`: remove requests from what a crawl has seen."""

from __future__ import annotations

import argparse
import asyncio

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.input import reading
from scrapy_dq.commands.subcommand import DONE, FAILED, Subcommand


class Forget(Subcommand):
    """Removes fingerprints from what a crawl has seen."""

    name = "forget"
    needs_project = True
    arguments = "<spider> [<URL> ...]"
    words = "urls"
    summary = "remove requests from what was seen"
    description = (
        "Makes a spider's crawl forget that it has seen these requests: the next time one is found, it is "
        "crawled again. This alone crawls nothing (see push). The file has the format of that of push: "
        "method and body of an object are part of what identifies a request."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        reading.add_input(parser)
        looking.add_common_options(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json, print_rows
        from scrapy_dq.factory import codec_of
        from scrapy_dq.frontier.worker.identity import own_name
        from scrapy_dq.pushing.forgetter import forget_lines
        from scrapy_dq.pushing.written import Written

        crawler, config = reading.crawler_named(settings, options)
        with reading.Input(self.name, options, config) as source, looking.opened(config) as place:
            place.overview()
            reading.need_fingerprinter(crawler, place)
            found = asyncio.run(
                forget_lines(
                    place.shards, place.crawl, Written(codec_of(config, crawler)),
                    reading.fingerprinter_of(crawler).fingerprint, source.batches(), bad=source.say_bad,
                    strict=options.strict, by=own_name(),
                )
            )  # fmt: skip
        if options.json:
            print_json(
                {
                    "crawl": place.crawl, "redis": place.target, "forgotten": found.known,
                    "not_seen": found.requests - found.known, "bad": found.bad,
                }
            )  # fmt: skip
        else:
            print(f"Crawl {place.crawl!r} at {place.target}")
            print_rows([("forgotten", found.known), ("not seen before", found.requests - found.known)])
            if found.bad:
                print_rows([("invalid", found.bad)])
        return FAILED if found.bad else DONE
