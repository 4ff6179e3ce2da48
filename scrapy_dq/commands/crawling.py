"""Run `scrapy dq crawl`: plan the feeds, start the crew, export its items, and print a summary."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.misc import load_object

from scrapy_dq.commands import common
from scrapy_dq.commands.output.crawl_view import CrawlView, Summary
from scrapy_dq.commands.output.display import print_json, short
from scrapy_dq.commands.outputs import export_feeds, set_feeds
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError
from scrapy_dq.crew.errors import CrewError, NoLogs
from scrapy_dq.crew.feeds.export import export, taken_work
from scrapy_dq.crew.feeds.exporting import Exported, Exports
from scrapy_dq.crew.feeds.folder import ItemsFolder, Run, read_json
from scrapy_dq.crew.feeds.plan import Feed, plan_feeds
from scrapy_dq.crew.launch import command_of, log_paths
from scrapy_dq.crew.monitor import Monitor, opened, run_name_for
from scrapy_dq.crew.supervisor import StopSignals, Supervisor
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of
from scrapy_dq.items.stream import IN_REDIS
from scrapy_dq.scheduling.progress_log import warnings_of_each_worker
from scrapy_dq.scheduling.scheduler import Scheduler
from scrapy_dq.settings import Config
from scrapy_dq.text import count_of

RUN_NOT_STARTED = 3
"""The exit status if the finished run has another name than DQ_RUN_NAME."""
LOSSES = (
    "frontier_damaged", "frontier_lost", "frontier_rolled_back", "outbox_lost", "cannot_serve", "unserved",
)  # fmt: skip
"""Close reasons of workers that know of lost pages. The stored run may no longer show the loss."""


def crawl(settings: Settings, options: argparse.Namespace) -> int:
    """Crawl as the command line says, and return the exit status.

    Raises:
        CommandError, ConfigError, CrewError, FrontierError: the command failed.
    """
    _fill_standard_streams()
    set_feeds(settings, options)
    crawler, config = common.spider_named(settings, options)
    _require_our_scheduler(crawler, config)
    codec_of(config, crawler)
    work = taken_work()
    if work is not None:
        export(crawler, *work)
        return DONE
    with ExitStack() as stack:
        view = CrawlView(config.crawl)
        home = data_dir(config.data_dir).absolute()
        began = datetime.now(timezone.utc).replace(microsecond=0)
        feeds, folder = plan_feeds(crawler, began), ItemsFolder(home, config.crawl)
        if config.items == IN_REDIS:
            feeds = []
            view.say(f"Items go to Redis (DQ_ITEMS): scrapy dq items {options.spider} writes feeds")
        lock = stack.enter_context(folder.held()) if feeds else -1
        if folder.open_journals() and not feeds:
            view.say(f"Items in {folder.path} are in no feed: this command exports them with -o FILE")
        place = stack.enter_context(opened(config, home))
        more = {"LOG_FILE": "", "SCHEDULER_FLUSH_ON_START": "False"}
        if _is_default(crawler, "REMOTE_CONTROL_ENABLED"):
            # With this feature of Scrapy 2.19, each worker would run code that other programs send.
            more["REMOTE_CONTROL_ENABLED"] = "False"
        if _is_default(crawler, "ASYNCIO_EVENT_LOOP") and find_spec("uvloop"):
            more["ASYNCIO_EVENT_LOOP"] = "uvloop.Loop"  # from the extra `fast`
        if not config.run_name:
            more["DQ_RUN_NAME"] = run_name_for(place.client, config).replace("%", "%%")
        log_file = crawler.settings["LOG_FILE"]
        logs: list[Path] | list[None]
        try:
            logs = log_paths(options.workers, options.log_dir, log_file, config.crawl, home)
        except NoLogs as error:
            if options.log_dir or log_file:
                raise
            view.say(f"Warning: {error}. They go to standard error")
            logs = [None] * options.workers
        stops = StopSignals()
        stops.listen()
        monitor = stack.enter_context(Monitor(place).polling())
        crew = Supervisor(
            command_of(options.spider, options, more), logs,
            (str(folder.path) if feeds else "", [feed.uri for feed in feeds]),
            restarts=options.restarts, grace_s=config.shutdown_grace_s, monitor=monitor, view=view,
        )  # fmt: skip
        last_run = _unexported_run(feeds, folder, monitor)
        crew_stops = 0
        if last_run:
            crew.run = last_run
            view.say(
                f"Run {last_run.number} was finished, but its feeds were not written: they are written now, "
                f"and nothing is crawled. The same command then starts the next run"
            )
        else:
            view.say(f"Crawl {config.crawl!r} at {place.target}: {count_of(options.workers, 'worker')}")
            if logs[0]:
                view.say(f"Logs: {short(logs[0])}{', ...' if len(logs) > 1 else ''}")
            if options.workers > 1:
                for warning in warnings_of_each_worker(crawler, config):
                    view.say(f"Warning: {warning}")
            if stops.count:
                raise KeyboardInterrupt
            with view:
                crew.work(stops)
            crew_stops = stops.count
        stored: list[Exported] = []
        failures: list[str] = []
        if feeds and crew.run and (crew.took_part or folder.open_journals()):
            command = command_of(
                options.spider, options, {"DQ_CRAWL": config.crawl.replace("%", "%%")}, ("dq", "crawl")
            )
            exports = Exports(feeds, folder, command, lock, began, view.say)
            stored, failures = export_feeds(
                exports, crew.run, stops, crew_stops, finished=crew.finished, began=crew.began_run
            )
        # Printing may block if nothing reads the output. From now on, a second Ctrl-C ends the process.
        stops.most = stops.count + 1
        summary = Summary(crew, config.crawl, place.target, stored, failures, options, config.run_name)
    print_json(summary.found) if options.json else summary.print()
    damaged = monitor.overview is not None and monitor.overview.census.gone > 0
    damaged = damaged or any(slot.state in LOSSES for slot in crew.slots)
    if not crew.finished or failures or damaged or summary.lacks_items:
        return FAILED
    return RUN_NOT_STARTED if summary.run_not_started else DONE


def _unexported_run(feeds: list[Feed], folder: ItemsFolder, monitor: Monitor) -> Run | None:
    """Return the last run if it is finished and its feeds may lack items, else None.

    The crew writes the feeds of such a run first, and crawls nothing.

    Raises:
        CrewError: the items of this crew's run cannot be appended to one of the feeds.
    """
    monitor.poll()
    overview = monitor.overview
    if not feeds or overview is None:
        return None
    run = Run(overview.epoch, overview.run)
    last_run = run if overview.phase == "finished" and folder.open_journals(run) else None
    for feed in feeds:
        path = Path(feed.name)
        exported = read_json(folder.notes_of(run, Path(os.path.realpath(path))))
        continues = exported and (last_run or overview.phase == "open")
        if feed.one_end and not (feed.overwrite or continues) and path.exists() and path.stat().st_size:
            raise CrewError(f"nothing can be appended to {feed.name}, which has an end. -O would replace it")
    return last_run


def _fill_standard_streams() -> None:
    """Open the standard streams that are closed.

    Otherwise a lock or a pipe could get the number of a standard stream, and workers would not inherit it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:  # print() would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _is_default(crawler: Crawler, setting: str) -> bool:
    """Return whether neither the project nor the command line sets this setting."""
    return crawler.settings.getpriority(setting) == SETTINGS_PRIORITIES["default"]


def _require_our_scheduler(crawler: Crawler, config: Config) -> None:
    if not config.enabled:
        raise CommandError("DQ_ENABLED = False: without scrapy_dq each worker would crawl everything")
    # Not issubclass(): Scrapy treats every class with a scheduler's methods as a subclass.
    if Scheduler not in load_object(crawler.settings["SCHEDULER"]).__mro__:
        raise CommandError(
            "this spider has another SCHEDULER than scrapy_dq's, so each worker would crawl everything. Set "
            'ADDONS = {"scrapy_dq.Addon": 500}, or SCHEDULER = "scrapy_dq.Scheduler"'
        )
