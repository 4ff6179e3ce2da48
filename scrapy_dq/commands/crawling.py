"""What `scrapy dq crawl` does: plan the feeds, start the crew, join what it has written, and sum up."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from scrapy.crawler import Crawler
from scrapy.exceptions import UsageError
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.conf import feed_process_params_from_cli
from scrapy.utils.misc import load_object

from scrapy_dq.commands import looking
from scrapy_dq.commands.input.crawlers import prepared_crawler
from scrapy_dq.commands.output.crawl_summary import Summary
from scrapy_dq.commands.output.crawl_view import CrawlView
from scrapy_dq.commands.output.display import ProgressBar, short
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError
from scrapy_dq.crew.errors import CrewError, FeedInUse, Interrupted, NoLogs
from scrapy_dq.crew.feeds.joining import Joined, Joining, left_feeds, noted
from scrapy_dq.crew.feeds.plan import exporter_classes, plan_feeds, storages
from scrapy_dq.crew.feeds.records import Run
from scrapy_dq.crew.launch import command_of, log_paths
from scrapy_dq.crew.monitor import Monitor, opened, run_name_for
from scrapy_dq.crew.supervisor import StopSignals, Supervisor
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import codec_of, config_of
from scrapy_dq.scheduling.of_each_worker import warnings_of_each_worker
from scrapy_dq.scheduling.scheduler import Scheduler
from scrapy_dq.settings import Config
from scrapy_dq.text import count_of

NOT_BEGUN = 3
"""The exit status if a run of another name than DQ_RUN_NAME was finished."""
LOSSES = (
    "frontier_damaged", "frontier_lost", "frontier_rolled_back", "outbox_lost", "cannot_serve", "unserved",
)  # fmt: skip
"""Close reasons of workers that know of missing pages, whatever is stored about the run by now."""


def crawl(settings: Settings, options: argparse.Namespace) -> int:
    """Crawl as the command line says, and return the exit status.

    Raises:
        CommandError, ConfigError, CrewError, FrontierError: it failed.
    """
    _fill_standard_streams()
    _set_feeds(settings, options)
    crawler = prepared_crawler(settings, options.spider, looking.spider_args_of(options))
    config = config_of(crawler)
    _need_our_scheduler(crawler, config)
    codec_of(config, crawler)
    with ExitStack() as stack:
        view = CrawlView(config.crawl)
        home = data_dir(config.data_dir).absolute()
        feeds = [Joining(feed, config.crawl, home, view.say) for feed in plan_feeds(crawler)]
        for feed in feeds:
            stack.enter_context(noted(feed))
        place = stack.enter_context(opened(config, home))
        more: dict[str, Any] = {
            "LOG_FILE": "", "SCHEDULER_FLUSH_ON_START": "False", "FEED_STORAGES": storages(crawler),
            "FEED_EXPORTERS": exporter_classes(crawler),
        }  # fmt: skip
        if crawler.settings.getpriority("REMOTE_CONTROL_ENABLED") == SETTINGS_PRIORITIES["default"]:
            more["REMOTE_CONTROL_ENABLED"] = (
                "False"  # Scrapy 2.19: each worker would run code that it is sent
            )
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
        monitor = stack.enter_context(Monitor(place).looking())
        crew = Supervisor(
            command_of(options.spider, options, more), logs,
            {feed.feed.uri: str(feed.folder) for feed in feeds},
            restarts=options.restarts, grace_s=config.shutdown_grace_s, monitor=monitor, view=view,
        )  # fmt: skip
        owed = _owed(feeds, config.crawl, home, monitor, view.say)
        if owed:
            crew.run = owed
            view.say(
                f"Run {owed.number} was finished, but its feeds were not joined: they are joined now, "
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
        joined, unjoined = _join([*feeds, *left_feeds(config.crawl, feeds, home, view.say)], crew, stops)
        stops.most = stops.count + 1  # printing may block, if nothing reads the output any more
        summary = Summary(crew, config.crawl, place.target, joined, unjoined, options, config.run_name)
    summary.print_json() if options.json else summary.print()
    damaged = monitor.overview is not None and monitor.overview.census.gone > 0
    damaged = damaged or any(slot.state in LOSSES for slot in crew.slots)
    if not crew.finished or unjoined or damaged or summary.lacks_items:
        return FAILED
    return NOT_BEGUN if summary.not_begun else DONE


def _owed(
    feeds: list[Joining], crawl: str, home: Path, monitor: Monitor, say: Callable[[str], None]
) -> Run | None:
    """Return the last run if it is finished and parts of it are not joined: a new run would orphan them."""
    monitor.look()
    seen = monitor.overview
    if seen is None or seen.phase != "finished":
        return None
    run = Run(seen.epoch, seen.run)
    if any(feed.is_owed_by(run) for feed in feeds):
        return run
    for feed in left_feeds(crawl, feeds, home, say):
        # Not one that another crew is just about to join.
        with suppress(CrewError), feed.held():
            if feed.is_owed_by(run):
                return run
    return None


def _join(feeds: list[Joining], crew: Supervisor, stops: StopSignals) -> tuple[list[Joined], list[str]]:
    """Join all feeds; return the joined feeds, and the reason for each feed that cannot be joined."""
    joined, unjoined = [], []
    asked = stops.count

    def stopped() -> None:
        if stops.count > asked:
            raise Interrupted

    for feed in feeds if crew.run else ():
        assert crew.run is not None
        with ProgressBar() as bar:
            try:
                with noted(feed) if feed.left else nullcontext():
                    found = feed.join(crew.run, bar, stopped, took_part=crew.took_part, began=crew.began_run)
                joined += [found] if found else []
            except FeedInUse:
                continue
            except CrewError as error:
                unjoined.append(str(error))
            except Interrupted:
                unjoined.append(
                    f"{feed.feed.target} is not joined: interrupted. Its parts stay in {feed.folder}; the "
                    f"next `scrapy dq crawl` of this crawl joins them"
                )
    return joined, unjoined


def _fill_standard_streams() -> None:
    """Open those that are closed: a lock or pipe with their number would not be inherited by workers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:  # print() would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _set_feeds(settings: Settings, options: argparse.Namespace) -> None:
    """Put -o and -O into the settings, as `scrapy crawl` does."""
    if not (options.output or options.overwrite_output):
        return
    try:
        feeds = feed_process_params_from_cli(
            settings, options.output or [], overwrite_output=options.overwrite_output
        )
    except UsageError as error:
        raise CommandError(str(error)) from None
    settings.set("FEEDS", feeds, "cmdline")


def _need_our_scheduler(crawler: Crawler, config: Config) -> None:
    if not config.enabled:
        raise CommandError("DQ_ENABLED = False: without scrapy_dq each worker would crawl everything")
    # Not issubclass(): for Scrapy, every class with the methods of a scheduler is a subclass.
    if Scheduler not in load_object(crawler.settings["SCHEDULER"]).__mro__:
        raise CommandError(
            "this spider's SCHEDULER is not that of scrapy_dq, so each worker would crawl everything. Set "
            'ADDONS = {"scrapy_dq.Addon": 500}, or SCHEDULER = "scrapy_dq.Scheduler"'
        )
