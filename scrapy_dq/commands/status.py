"""`scrapy dq status`: the progress of a crawl; without a name, all crawls in its Redis."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.inspection import place
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.snapshot import EVERY_S, MOST_READ, Watcher, watched
from scrapy_dq.inspection.words import uncounted, when, workers

SHORTEST_S, LONGEST_S = 0.1, 86_400.0


class Status(Subcommand):
    """Reads the counts, and at most some thousands of partitions; changes nothing."""

    name = "status"
    arguments = "[<spider>]"
    summary = "the progress of a crawl"
    description = (
        "Shows phase, counts, pages per second, the largest and the slowest partitions of a spider's crawl; "
        "with --watch repeatedly, until Ctrl-C. Without a spider and without --crawl: all crawls in this "
        "Redis, the project's first."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument(
            "--no-rate", action="store_true",
            help=f"do not wait {EVERY_S:g} s to measure pages per second",
        )  # fmt: skip
        parser.add_argument(
            "--all", action="store_true",
            help="without a spider: examine all keys of this Redis, however many, and show when each crawl "
            "finished",
        )  # fmt: skip
        parser.add_argument(
            "--watch", action="store_true",
            help="repeat: a live view in a terminal, elsewhere one line (with --json: one object) each time",
        )  # fmt: skip
        parser.add_argument(
            "--every", type=_seconds, metavar="SECONDS",
            help=f"with --watch: time between two updates (default: {EVERY_S:g})",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json
        from scrapy_dq.commands.output.status_text import print_status

        if options.every and not options.watch:
            raise WrongUsage("--every: only with --watch")
        if options.all and (options.spider or options.crawl):
            raise WrongUsage("--all: neither a spider nor --crawl")
        if options.watch:
            return self._watch(settings, options)
        if not (options.spider or options.crawl):
            crawls = _crawls(settings, options.all)
            print_json({"crawls": crawls}) if options.json else _print_crawls(crawls, options.all)
            return DONE
        with looking.place_of(settings, options) as there:
            seconds = 0.0 if options.no_rate else EVERY_S
            status = watched(there, seconds, turn=True, partitions=True).status()
        print_json(status) if options.json else print_status(status)
        return DONE

    def _watch(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.watching import watch

        with looking.place_of(settings, options) as there:
            watch(there, options.every or EVERY_S, as_json=options.json)
        return DONE


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"expected {SHORTEST_S:g} to {LONGEST_S:g} seconds, not {text!r}")
    return seconds


def _crawls(settings: Settings, everything: bool) -> list[dict[str, Any]]:
    """Return the crawl of each spider, or why that is unknown; then the other crawls in the same Redis."""
    from scrapy_dq.commands.input.crawlers import spider_names
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
    with suppress(ConfigError):
        if not by_redis:
            by_redis[""] = [({}, place.project_config(settings))]
    others: list[dict[str, Any]] = []
    known = set[tuple[str, str]]()
    for group in by_redis.values():
        with looking.opened(group[0][1], any_node=True) as there:
            for found in filter(None, (found for found, _ in group)):
                _count(found, there)
            known |= {(there.target, config.crawl) for _, config in group}
            others += _other_crawls(there, known, everything)
    # Spiders of several groups can have the same Redis, with different parameters.
    own = {(found.get("redis"), found["crawl"]) for found in crawls}
    return crawls + [found for found in others if (found["redis"], found["crawl"]) not in own]


def _count(found: dict[str, Any], there: Place) -> None:
    """Add the phase and the counts of a crawl, or why they are unknown."""
    from scrapy_dq.inspection.crawls import reason_of_one
    from scrapy_dq.text import printable

    found["redis"] = there.target
    try:
        snapshot = Watcher(there.of(found["crawl"]), most_members=MOST_READ).look()
    except Exception as error:
        found["why"] = reason_of_one(error, there.client)
        return
    overview = snapshot.overview
    found |= {"phase": overview.phase, "run": overview.run, "hold": overview.hold.value}
    found["run_name"] = printable(overview.run_name)
    found["ended"] = (overview.phase == "finished" and overview.finished_at) or None
    found["unreachable_shards"] = list(overview.unreachable)
    found["apart_shards"] = list(overview.apart)
    if snapshot.exists:
        found |= snapshot.counts | {"worker_states": snapshot.worker_states}


def _other_crawls(there: Place, known: set[tuple[str, str]], everything: bool) -> Iterator[dict[str, Any]]:
    """Yield the crawls that are not *known* by target and name, and that this user may read; add them."""
    from scrapy_dq.frontier.admin.crawls import CrawlSearch
    from scrapy_dq.inspection.crawls import MOST_CRAWLS, reason_of_one

    search = CrawlSearch()
    try:
        names = search.all_names(there.nodes) if everything else search.go_on(there.nodes)
    except Exception as error:
        reason_of_one(error, there.client)  # it raises, unless this user may not search
        return
    for name in names if everything else names[:MOST_CRAWLS]:
        found: dict[str, Any] = {"spider": None, "crawl": name, "phase": "unknown"}
        if (there.target, name) not in known:
            _count(found, there)
            if found["phase"] not in ("absent", "unknown"):
                known.add((there.target, name))
                yield found
    if not search.complete or (len(names) > MOST_CRAWLS and not everything):
        more = "" if everything else ". --all reads them"
        line = f"scrapy dq: {there.target} may have more crawls: not all its keys were read{more}"
        print(line, file=sys.stderr)


def _print_crawls(crawls: list[dict[str, Any]], everything: bool) -> None:
    from scrapy_dq.commands.output.display import print_table

    counts = ("workers", "waiting", "in flight", "done")
    rows = [
        [
            found.get("hold") or found["phase"],
            workers(found) if "workers" in found else "",
            *(found.get(name.replace(" ", "_"), "") for name in counts[1:]),
            *([when(found["ended"]) if found.get("ended") else ""] if everything else []),
            _named(found),
        ]
        for found in crawls
    ]
    ended = ["finished"] if everything else []
    print_table(("phase", *counts, *ended, "spider: crawl"), rows, numbers=counts)
    for found in crawls:
        why = found.get("why", "") if found["crawl"] else ""
        away = found.get("unreachable_shards", ()), found.get("apart_shards", ())
        for line in filter(None, (why, *uncounted(*away))):
            print(f"scrapy dq: crawl {found['crawl']!r}: {line}", file=sys.stderr)


def _named(found: dict[str, Any]) -> str:
    # The reason (`why`) would take several lines in the table.
    crawl = found["crawl"] or "needs -a?"
    return crawl if found["spider"] is None else f"{found['spider']}: {crawl}"
