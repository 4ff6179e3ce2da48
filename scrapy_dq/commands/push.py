"""`scrapy dq push`: put requests into a crawl."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from scrapy.settings import Settings

from scrapy_dq.commands import common
from scrapy_dq.commands.input import confirm
from scrapy_dq.commands.output.display import print_found
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError, Subcommand
from scrapy_dq.frontier.admin.control import wake
from scrapy_dq.frontier.admin.overview import Overview, described, peek
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.place import Place, opened
from scrapy_dq.inspection.snapshot import maybe_alive
from scrapy_dq.pushing.lines import BadLine
from scrapy_dq.pushing.pusher import Pushed, Pusher


class Push(Subcommand):
    """Put requests into a crawl.

    Puts URLs, or the requests of a file, into a crawl, except requests that it has seen. A JSON object has
    the attributes of a request: url, method, body, meta, priority, callback, ...
    """

    name = "push"
    arguments = "<spider> [<URL> ...]"
    flags = (
        ("--dont-filter", "also push requests that the crawl has seen"),
        ("--no-wait", "do not wait until Redis has written them to disk"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", metavar="<URL>", nargs="*", help="URLs")
        common.add_file(parser)
        parser.add_argument(
            "--priority", type=int, default=0, metavar="N", help="for requests without one (default: 0)"
        )
        parser.add_argument("--meta", type=_object, metavar="JSON", help="an object, for all requests")
        parser.add_argument(
            "--callback", default="", metavar="NAME", help="a method of the spider (default: parse)"
        )

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        given = {name: getattr(options, name) for name in ("priority", "dont_filter", "callback", "meta")}
        attributes = {name: value for name, value in given.items() if value}
        crawler, config = common.spider_named(settings, options)
        with (
            closing(common.Input(self.name, options.words, options, config)) as source,
            opened(config) as place,
        ):
            # With --crawl, the crawl must exist; a spider's own crawl may be created by this command.
            before = place.overview() if options.crawl else peek(place.shards, place.crawl)
            spider = described(place.client, place.crawl)["spider"] if before.phase == "open" else ""
            pusher = Pusher(
                crawler, config, attributes, spider=spider, bad=source.warn_invalid,
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
                counts = {"pushed": pushed.new, "known": pushed.known, "bad": pushed.bad}
                rows = [("requests pushed", pushed.new), ("already seen", pushed.known)]
                rows += [("invalid", pushed.bad)] if pushed.bad else []
                found = {"crawl": place.crawl, "redis": place.target, "run": pushed.run} | counts
                print_found(found, options.json, rows)
        if pushed.doubt:
            confirm.say(f"{pushed.doubt}.", options)
        if not options.json:
            for line in _advice(pushed, before, config.flush_on_start, options):
                print(line)
        return FAILED if pushed.bad or pushed.disturbed else DONE


def _wake(place: Place) -> None:
    """Wake idle workers. If this fails, for example in an outage, they find the requests somewhat later."""
    with suppress(FrontierError), as_unavailable():
        wake(place.client, place.crawl)


def _object(text: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    raise argparse.ArgumentTypeError("expected a JSON object, such as '{\"page\": 1}'")


def _advice(
    pushed: Pushed, before: Overview, flush_on_start: bool, options: argparse.Namespace
) -> Iterator[str]:
    """Yield advice for the user."""
    if pushed.disturbed:
        yield "Redis lost its newest data, or was frozen. Requests may be missing: run this again."
    if pushed.run is None:
        return
    if before.phase != "open" or pushed.run != before.run:
        yield f"Run {pushed.run} starts with them; its start() also runs."
        yield confirm.continue_hint(options)
    elif not maybe_alive(before):
        yield "No worker is alive."
        yield confirm.continue_hint(options)
    if flush_on_start and not maybe_alive(before):
        yield "SCHEDULER_FLUSH_ON_START is set: the next crawl would delete them. Unset it first."
