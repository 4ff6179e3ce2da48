"""`scrapy dq push`: put requests into a crawl."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.input import asking, reading
from scrapy_dq.commands.output.display import print_json, print_rows
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError, Subcommand, WrongUsage
from scrapy_dq.frontier.admin.control import wake
from scrapy_dq.frontier.admin.overview import Overview, described, peek
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.place import Place
from scrapy_dq.pushing.lines import BadLine
from scrapy_dq.pushing.pusher import Pushed, Pusher


class Push(Subcommand):
    """Puts requests as a worker would: what was seen is not crawled again."""

    name = "push"
    needs_project = True
    arguments = "<spider> [<URL> ...]"
    words = "urls"
    summary = "put requests into a crawl"
    description = (
        "Puts URLs, or the requests of a file, into a spider's crawl. What the crawl has seen is skipped, "
        "unless --dont-filter is given. Each line of the file is a URL or a JSON object, with the names of a "
        "request's attributes (url, method, headers, body, cookies, meta, cb_kwargs, priority, callback, "
        "errback, dont_filter, ...)."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        reading.add_input(parser)
        looking.add_common_options(parser)
        parser.add_argument(
            "--priority", type=int, default=0, metavar="N", help="for requests without one (default: 0)"
        )
        parser.add_argument("--meta", default="", metavar="JSON", help="an object, for all requests")
        parser.add_argument(
            "--callback", default="", metavar="NAME", help="a method of the spider (default: parse)"
        )
        parser.add_argument(
            "--dont-filter", action="store_true", help="also put what the crawl has seen; sets dont_filter"
        )
        parser.add_argument(
            "--no-wait", action="store_true",
            help="do not wait, for about a second, until Redis has written the requests to disk",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        common = _common(options)
        crawler, config = reading.crawler_named(settings, options)
        with (
            closing(reading.Input(self.name, options.urls, options, config)) as source,
            looking.opened(config) as place,
        ):
            # With --crawl, the crawl must exist; a spider's own crawl may be created by this command.
            before = place.overview() if options.crawl else peek(place.shards, place.crawl)
            spider = described(place.client, place.crawl)["spider"] if before.phase == "open" else ""
            pusher = Pusher(
                crawler, config, common, spider=spider, bad=source.say_bad,
                wake=lambda: _wake(place), durable=not options.no_wait,
            )  # fmt: skip
            try:
                pusher.check()
            except BadLine as error:
                raise CommandError(str(error)) from error
            try:
                asyncio.run(pusher.push(source.batches(), strict=options.strict))
            finally:
                source.close()
                pushed = pusher.pushed
                if options.json:
                    print_json(
                        {
                            "crawl": place.crawl, "redis": place.target, "run": pushed.run,
                            "pushed": pushed.new, "known": pushed.known, "bad": pushed.bad,
                        }
                    )  # fmt: skip
                else:
                    print(f"Crawl {place.crawl!r} at {place.target}")
                    print_rows(_rows(pushed))
        if pushed.doubt:
            asking.say(f"{pushed.doubt}.", options)
        if not options.json:
            for line in _advice(pushed, before, config.flush_on_start, options):
                asking.say(line, options)
        return FAILED if pushed.bad or pushed.disturbed else DONE


def _wake(place: Place) -> None:
    """Wake idle workers; without that, as in an outage, they find what was pushed somewhat later."""
    with suppress(FrontierError), as_unavailable():
        wake(place.client, place.crawl)


def _common(options: argparse.Namespace) -> dict[str, Any]:
    common: dict[str, Any] = {"priority": options.priority}
    if options.dont_filter:
        common["dont_filter"] = True
    if options.callback:
        common["callback"] = options.callback
    if options.meta:
        try:
            common["meta"] = json.loads(options.meta)
        except (ValueError, RecursionError) as error:
            raise WrongUsage(f"--meta is not valid JSON: {error}") from error
        if not isinstance(common["meta"], dict):
            raise WrongUsage("--meta must be a JSON object, such as '{\"page\": 1}'")
    return common


def _rows(pushed: Pushed) -> Iterator[tuple[str, int]]:
    yield "requests pushed", pushed.new
    yield "already seen", pushed.known
    if pushed.bad:
        yield "invalid", pushed.bad


def _advice(
    pushed: Pushed, before: Overview, flush_on_start: bool, options: argparse.Namespace
) -> Iterator[str]:
    """Yield what the user should know, or do next."""
    if pushed.disturbed:
        yield "Redis lost its newest data meanwhile, or was frozen. Run this again: requests may be missing."
    if pushed.run is None:
        return
    if before.phase != "open" or pushed.run != before.run:
        yield from asking.go_on(options, f"Run {pushed.run} starts with them; its start() runs, too.")
    elif not asking.anybody(before):
        yield from asking.go_on(options, "No worker is alive.")
    if flush_on_start and not asking.anybody(before):
        yield "SCHEDULER_FLUSH_ON_START is set: the next crawl would delete them. Unset it first."
