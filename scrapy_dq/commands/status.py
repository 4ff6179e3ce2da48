"""`scrapy dq status`: the progress of a crawl; without a name, the crawls of this project's spiders."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.inspection.status import COUNTS, read_status
from scrapy_dq.inspection.words import uncounted

INTERVAL_S = 1.0
SHORTEST_S, LONGEST_S = 0.1, 86_400.0


class Status(Subcommand):
    """Reads the counts, and at most some thousands of partitions; changes nothing."""

    name = "status"
    arguments = "[<spider>]"
    summary = "the progress of a crawl"
    description = (
        "Shows phase, counts, pages per second, the largest and the slowest partitions of a spider's crawl; "
        "with --watch repeatedly, until Ctrl-C. Without a spider and without --crawl: the crawls of this "
        "project's spiders."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument(
            "--no-rate", action="store_true",
            help=f"do not wait {INTERVAL_S:g} s to measure pages per second",
        )  # fmt: skip
        parser.add_argument(
            "--watch", action="store_true",
            help="repeat: a live view in a terminal, elsewhere one line (with --json: one object) each time",
        )  # fmt: skip
        parser.add_argument(
            "--every", type=_seconds, metavar="SECONDS",
            help=f"with --watch: time between two updates (default: {INTERVAL_S:g})",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json
        from scrapy_dq.commands.output.status_text import print_status

        if options.every and not options.watch:
            raise WrongUsage("--every: only with --watch")
        if options.watch:
            return self._watch(settings, options)
        if not (options.spider or options.crawl):
            crawls = _crawls(settings)
            print_json({"crawls": crawls}) if options.json else _print_crawls(crawls)
            return DONE
        with looking.place_of(settings, options) as place:
            status = read_status(place, 0.0 if options.no_rate else INTERVAL_S)
        print_json(status) if options.json else print_status(status)
        return DONE

    def _watch(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.watching import output, watch

        with looking.place_of(settings, options) as place:
            watch(place, options.every or INTERVAL_S, output(as_json=options.json))
        return DONE


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"expected {SHORTEST_S:g} to {LONGEST_S:g} seconds, not {text!r}")
    return seconds


def _crawls(settings: Settings) -> list[dict[str, Any]]:
    """Return, for each spider, the crawl that its settings name, or why that is unknown."""
    from scrapy_dq.commands.input.crawlers import spider_names
    from scrapy_dq.frontier.admin.overview import peek
    from scrapy_dq.inspection.crawls import reason_of_one
    from scrapy_dq.settings import Config, ConfigError

    crawls: list[dict[str, Any]] = []
    by_redis: dict[str, list[tuple[dict[str, Any], Config]]] = {}
    for spider in spider_names(settings):
        found: dict[str, Any] = {"spider": spider, "crawl": None, "phase": "unknown"}
        crawls.append(found)
        try:
            config = looking.config_named(settings, argparse.Namespace(spider=spider, spargs=[]))
        except (CommandError, ConfigError) as error:
            found["why"] = str(error)  # for example, it needs spider arguments
            continue
        found["crawl"] = config.crawl
        where = (config.redis_url, config.redis_host, config.redis_port, config.redis_db, config.redis_params)
        by_redis.setdefault(repr(where), []).append((found, config))
    for group in by_redis.values():
        with looking.opened(group[0][1], any_node=True) as place:
            for found, config in group:
                found["redis"] = place.target
                try:
                    overview = peek(place.client, config.crawl)
                except Exception as error:
                    found["why"] = reason_of_one(error, place.client)
                    continue
                found |= {"phase": overview.phase, "run": overview.run, "hold": overview.hold.value}
                found["unreachable_shards"] = list(overview.unreachable)
                found["apart_shards"] = list(overview.apart)
                if overview.phase != "absent":
                    found |= {name: asdict(overview.census)[name] for name in COUNTS}
    return crawls


def _print_crawls(crawls: list[dict[str, Any]]) -> None:
    from scrapy_dq.commands.output.display import print_table

    counts = ("workers", "waiting", "in flight", "done")
    rows = [
        [
            found.get("hold") or found["phase"],
            *(found.get(name.replace(" ", "_"), "") for name in counts),
            _named(found),
        ]
        for found in crawls
    ]
    print_table(("phase", *counts, "spider: crawl"), rows, numbers=counts)
    for found in crawls:
        why = found.get("why", "") if found["crawl"] else ""
        away = found.get("unreachable_shards", ()), found.get("apart_shards", ())
        for line in filter(None, (why, *uncounted(*away))):
            print(f"scrapy dq: crawl {found['crawl']!r}: {line}", file=sys.stderr)


def _named(found: dict[str, Any]) -> str:
    # The reason (`why`) would take several lines in the table.
    return f"{found['spider']}: {found['crawl'] or 'needs -a?'}"
