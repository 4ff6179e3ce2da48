"""`scrapy dq status`: how far a crawl is; without a name, which crawls this project's spiders have."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.frontier.look import Sizes
    from scrapy_dq.frontier.overview import Overview

INTERVAL_S = 1.0
LARGEST = 10
COUNTS = ("workers", "waiting", "delayed", "in_flight", "done", "failed", "dead", "seen")


class Status(Subcommand):
    """Reads counts, and of the partitions at most some thousands; changes nothing."""

    name = "status"
    arguments = "[<spider>]"
    summary = "how far a crawl is"
    description = (
        "Shows phase, counts, pages per second and the largest partitions of a spider's crawl. Without a "
        "spider and without --crawl: which crawls this project's spiders have."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument(
            "--no-rate", action="store_true",
            help=f"do not wait {INTERVAL_S:g} s to see how many pages that makes",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.display import print_json

        if not (options.spider or options.crawl):
            crawls = _crawls(settings)
            print_json(crawls) if options.json else _print_crawls(crawls)
            return DONE
        with looking.place_of(settings, options) as place:
            status = read_status(place, 0.0 if options.no_rate else INTERVAL_S)
        print_json(status) if options.json else _print(status)
        return DONE


def read_status(place: looking.Place, interval_s: float) -> dict[str, Any]:
    """Return all that is shown of a crawl, after *interval_s* in which pages are counted; 0: they are not.

    Raises:
        CommandError: there is no such crawl.
    """
    from scrapy_dq.frontier.look import info_of, largest

    before, began = place.overview(), time.monotonic()
    rate = None
    overview = before
    if interval_s and before.phase == "open":
        time.sleep(max(0.0, began + interval_s - time.monotonic()))
        overview, passed = place.overview(), time.monotonic() - began
        if (overview.epoch, overview.run) == (before.epoch, before.run):
            rate = max(0, _settled(overview) - _settled(before)) / passed
    sizes = largest(place.client, place.crawl, LARGEST)
    return _status(place, overview, sizes, info_of(place.client, "memory") or {}, rate)


def _settled(overview: Overview) -> int:
    return overview.census.done + overview.census.failed + overview.census.dead


def _status(
    place: looking.Place, overview: Overview, sizes: Sizes, memory: dict[str, Any], rate: float | None
) -> dict[str, Any]:
    census = overview.census
    left = census.waiting + census.delayed + census.in_flight
    return {
        "crawl": place.crawl,
        "redis": place.target,
        "phase": overview.phase,
        "run": overview.run,
        **{name: asdict(census)[name] for name in COUNTS},
        "pages_per_s": None if rate is None else round(rate, 1),
        "left_s": round(left / rate, 1) if rate else None,
        "redis_memory_bytes": memory.get("used_memory"),
        "redis_maxmemory_bytes": memory.get("maxmemory"),
        "partitions": sizes.partitions,
        "partitions_looked_at": sizes.looked_at,
        "largest_partitions": [{"partition": name, "waiting": count} for name, count in sizes.largest],
    }


def _print(status: dict[str, Any]) -> None:
    from scrapy_dq.commands.display import print_rows, print_table, span
    from scrapy_dq.health import size

    print(f"Crawl {status['crawl']!r} at {status['redis']}: {status['phase']}, run {status['run']}")
    print_rows((name.replace("_", " "), status[name]) for name in COUNTS)
    if status["pages_per_s"] is not None:
        rate, left = status["pages_per_s"], status["left_s"]
        then = f"; {span(left)} for what is known now" if left is not None else ""
        print(f"{rate:,.1f} pages/s{then}")
    used, limit = status["redis_memory_bytes"], status["redis_maxmemory_bytes"]
    if used is not None:
        print(f"Redis uses {size(used)}{f' of {size(limit)}' if limit else ''}, all that is in it together")
    if status["largest_partitions"]:
        total, looked_at = status["partitions"], status["partitions_looked_at"]
        part = f"of {total:,}" if looked_at >= total else f"of {looked_at:,} looked at, of {total:,}"
        print(f"\nThe largest partitions, {part}:")
        rows = [(each["waiting"], each["partition"] or "(no name)") for each in status["largest_partitions"]]
        print_table(("waiting", "partition"), rows, numbers=["waiting"])


def _crawls(settings: Settings) -> list[dict[str, Any]]:
    """Return, for each spider, its crawl as its settings say, or why it cannot be told."""
    from scrapy_dq.commands.crawlers import spider_names
    from scrapy_dq.frontier.overview import peek
    from scrapy_dq.settings import Config, ConfigError

    crawls: list[dict[str, Any]] = []
    by_redis: dict[str, list[tuple[dict[str, Any], Config]]] = {}
    for spider in spider_names(settings):
        found: dict[str, Any] = {"spider": spider, "crawl": None, "phase": "unknown"}
        crawls.append(found)
        try:
            config = looking.config_named(settings, argparse.Namespace(spider=spider, spargs=[]))
        except (CommandError, ConfigError) as error:
            found["why"] = str(error)  # it needs arguments, say
            continue
        found["crawl"] = config.crawl
        where = (config.redis_url, config.redis_host, config.redis_port, config.redis_db, config.redis_params)
        by_redis.setdefault(repr(where), []).append((found, config))
    for group in by_redis.values():
        with looking.opened(group[0][1]) as place:
            for found, config in group:
                overview = peek(place.client, config.crawl)
                found |= {"redis": place.target, "phase": overview.phase, "run": overview.run}
                if overview.phase != "absent":
                    found |= {name: asdict(overview.census)[name] for name in COUNTS}
    return crawls


def _print_crawls(crawls: list[dict[str, Any]]) -> None:
    from scrapy_dq.commands.display import print_table

    counts = ("workers", "waiting", "in flight", "done")
    rows = [
        [found["phase"], *(found.get(name.replace(" ", "_"), "") for name in counts), _named(found)]
        for found in crawls
    ]
    print_table(("phase", *counts, "spider: crawl"), rows, numbers=counts)


def _named(found: dict[str, Any]) -> str:
    return f"{found['spider']}: {found.get('why') or found['crawl']}"
