"""`scrapy dq status`, `workers`: show a crawl once or repeatedly, its workers, or all crawls in its Redis."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from scrapy.settings import Settings

from scrapy_dq.commands import common
from scrapy_dq.commands.input.crawlers import spider_names
from scrapy_dq.commands.output.display import print_json, print_table
from scrapy_dq.commands.output.status_view import one_line, print_status, view
from scrapy_dq.commands.streams import output_closed, until_interrupted
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.frontier.admin.crawls import CrawlSearch
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.crawls import MAX_CRAWLS, reason_of_one
from scrapy_dq.inspection.place import Place, opened, project_config
from scrapy_dq.inspection.snapshot import EVERY_S, MAX_MEMBERS_READ, WAIT_S, Watcher, watched
from scrapy_dq.inspection.words import awaited, span, uncounted, when, workers
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.text import printable


class Status(Subcommand):
    """The progress of a crawl.

    Shows phase, counts, speed, and the largest and slowest partitions of a crawl. Without a spider or
    --crawl, lists all crawls in this Redis.
    """

    name = "status"
    flags = (
        ("--no-rate", f"do not take {EVERY_S:g} s to measure the speed"),
        ("--all", "without a spider: examine all keys, and show when crawls finished"),
        ("--watch", "repeat until Ctrl-C: a live view in a terminal, else lines"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--every", type=common.seconds(0.1, 86_400), metavar="SECONDS",
            help=f"with --watch: time between updates (default: {EVERY_S:g})",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        if options.watch:
            with common.place_of(settings, options) as place:
                watch(place, options.every or EVERY_S, as_json=options.json)
            return DONE
        if not (options.spider or options.crawl):
            crawls = _crawls(settings, options.all)
            print_json({"crawls": crawls}) if options.json else _print_crawls(crawls, options.all)
            return DONE
        with common.place_of(settings, options) as place:
            seconds = 0.0 if options.no_rate else EVERY_S
            status = watched(place, seconds, turn=True, partitions=True).status()
        print_json(status) if options.json else print_status(status)
        return DONE


def _crawls(settings: Settings, show_all: bool) -> list[dict[str, Any]]:
    """Return the crawl of each spider, or why it is unknown; then the other crawls in the same Redis."""
    crawls: list[dict[str, Any]] = []
    by_redis: dict[str, tuple[Config, list[dict[str, Any]]]] = {}
    for spider in spider_names(settings):
        found: dict[str, Any] = {"spider": spider, "crawl": None, "phase": "unknown"}
        crawls.append(found)
        try:
            config = common.config_named(settings, argparse.Namespace(spider=spider, spargs=[]))
        except (CommandError, ConfigError) as error:
            found["why"] = str(error)  # for example, the spider needs arguments
            continue
        found["crawl"] = config.crawl
        where = (config.redis_url, config.redis_host, config.redis_port, config.redis_db, config.redis_params)
        by_redis.setdefault(repr(where), (config, []))[1].append(found)
    with suppress(ConfigError):
        if not by_redis:
            by_redis[""] = project_config(settings), []
    others: dict[tuple[str, str], dict[str, Any]] = {}
    for config, group in by_redis.values():
        with opened(config, any_node=True) as place:
            for found in group:
                _count(found, place)
            known = {found["crawl"] for found in group}
            others |= {(place.target, found["crawl"]): found for found in _others(place, known, show_all)}
    # Two groups can have the same Redis with different parameters. Then a crawl of one group's spider is also
    # among the other crawls of the other group.
    own = {(found.get("redis"), found["crawl"]) for found in crawls}
    return crawls + [found for name, found in others.items() if name not in own]


def _count(found: dict[str, Any], place: Place) -> None:
    """Add the phase and the counts of the crawl to *found*, or the reason why they are unknown."""
    found["redis"] = place.target
    try:
        snapshot = Watcher(place.of(found["crawl"]), most_members=MAX_MEMBERS_READ).snapshot()
    except Exception as error:
        found["why"] = reason_of_one(error, place.client)
        return
    overview = snapshot.overview
    found |= snapshot.summary() | {"ended": (overview.phase == "finished" and overview.finished_at) or None}


def _others(place: Place, known: Collection[str], show_all: bool) -> Iterator[dict[str, Any]]:
    """Yield the crawls that can be read and whose names are not in *known*."""
    search = CrawlSearch()
    try:
        names = search.all_names(place.nodes) if show_all else search.scan_more(place.nodes)
    except Exception as error:
        reason_of_one(error, place.client)  # raises the error, unless it means that this user may not search
        return
    for name in names if show_all else names[:MAX_CRAWLS]:
        found: dict[str, Any] = {"spider": None, "crawl": name, "phase": "unknown"}
        if name not in known:
            _count(found, place)
            if found["phase"] not in ("absent", "unknown"):
                yield found
    if not search.complete or (len(names) > MAX_CRAWLS and not show_all):
        more = "" if show_all else ". --all searches all keys"
        line = f"scrapy dq: {place.target} may have more crawls: only a part of its keys was searched{more}"
        print(line, file=sys.stderr)


def _print_crawls(crawls: list[dict[str, Any]], show_all: bool) -> None:
    counts = ("workers", "waiting", "in flight", "done")
    rows = [
        [
            found.get("hold") or found["phase"],
            workers(found) if "workers" in found else "",
            *(found.get(name.replace(" ", "_"), "") for name in counts[1:]),
            *([when(found["ended"]) if found.get("ended") else ""] if show_all else []),
            # The reason (`why`) is not in the table, because it would take several lines.
            ": ".join(filter(None, (found["spider"], found["crawl"] or "needs -a?"))),
        ]
        for found in crawls
    ]
    ended = ["finished"] if show_all else []
    print_table(("phase", *counts, *ended, "spider: crawl"), rows, numbers=counts)
    for found in crawls:
        problem = found.get("why", "") if found["crawl"] else ""
        absent_shards = found.get("unreachable_shards", ()), found.get("apart_shards", ())
        for line in filter(None, (problem, *uncounted(*absent_shards))):
            print(f"scrapy dq: crawl {found['crawl']!r}: {line}", file=sys.stderr)


GONE = "The crawl no longer exists: its keys were deleted, or Redis was emptied"
Show = Callable[[dict[str, Any], "dict[str, Any] | None"], None]
"""Shows a status. If a later read failed, the second argument describes it, with its `error`; else None."""


@contextmanager
def output(*, as_json: bool) -> Iterator[Show]:
    """Yield a function that shows a status on standard output: as JSON, as a live view, or as a line.

    A live view needs a terminal with a movable cursor.
    """
    console = Console(highlight=False, markup=False)
    if as_json:
        yield lambda status, missed: print(json.dumps(missed or status), flush=True)
    elif sys.stdout.isatty() and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda status, missed: live.update(view(status, console, missed), refresh=True)
    else:
        yield _print_line


def _print_line(status: dict[str, Any], missed: dict[str, Any] | None) -> None:
    text = printable(missed["error"], 2000) if missed else one_line(status)
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def watch(place: Place, every_s: float, *, as_json: bool) -> None:
    """Show the status every *every_s* seconds, until Ctrl-C or SIGTERM, or until nothing reads the output.

    Raises:
        NoSuchCrawl, FrontierError: the first attempt to read the status failed.
    """
    with until_interrupted(), output(as_json=as_json) as show:
        watcher = Watcher(place)
        first = watcher.snapshot(turn=True, partitions=True)
        if not first.exists:
            raise place.no_such_crawl()
        last = first.status()
        show(last, None)
        while not output_closed():
            time.sleep(every_s)
            status = _read_status(place, watcher)
            missed = status if "error" in status else None
            last = last if missed else status
            show(last, missed)


def _read_status(place: Place, watcher: Watcher) -> dict[str, Any]:
    phase, reason = "absent", GONE
    try:
        with as_unavailable():
            found = watcher.snapshot(turn=True, partitions=True)
            if found.exists:
                return found.status()
    except FrontierError as error:
        phase, reason = "unknown", str(error)
    at = round(time.time(), 3)
    return {"crawl": place.crawl, "redis": place.target, "at": at, "phase": phase, "error": reason}


_WORKER_COLUMNS = ("host", "pid", "since", "beat", "leases", "pages/s", "state")


class Workers(Subcommand):
    """The workers of a crawl.

    Watches the registered workers of a crawl for 1 s. On this machine, it also checks their processes.
    """

    name = "workers"
    flags = (
        ("--wait", f"watch for {WAIT_S:g} s, to find workers without a heartbeat"),
        ("--no-rate", "do not measure pages per second"),
    )

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with common.place_of(settings, options) as place:
            wait_s = 0.0 if options.no_rate else WAIT_S if options.wait else EVERY_S
            found = watched(place, wait_s, turn=True).worker_rows()
            common.warn_unanswered(place)
        if options.json:
            print_json(common.found_in(place, workers=found))
        elif not found:
            print("No worker is registered.")
        else:
            rows = [[row[name] for name in _WORKER_COLUMNS] for row in map(_worker_row, found)]
            print_table(
                _WORKER_COLUMNS,
                rows,
                numbers=_WORKER_COLUMNS[1:6],
                wraps=("host", "state"),
                most=common.MAX_COUNT,
            )
        return DONE


def _worker_row(worker: dict[str, Any]) -> dict[str, Any]:
    rate, since_s = worker["pages_per_s"], worker["since_s"]
    return worker | {
        "pid": str(worker["pid"] or "?"),
        "since": "?" if since_s is None else span(since_s),
        "pages/s": "" if rate is None else f"{rate:,.1f}",
        "state": worker["state"] + (f", waits {awaited(**worker['turn'])}" if worker["turn"] else ""),
    }
