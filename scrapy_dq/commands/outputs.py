"""Shared by `crawl` and `items`: feeds on the command line, and their export with a progress bar."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from scrapy.exceptions import UsageError
from scrapy.settings import Settings
from scrapy.utils.conf import feed_process_params_from_cli

from scrapy_dq.commands.output.display import ProgressBar
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.crew.errors import CrewError, Interrupted
from scrapy_dq.crew.feeds.exporting import Exported, Exports
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.supervisor import StopSignals


def set_feeds(settings: Settings, options: argparse.Namespace) -> Collection[str]:
    """Add -o and -O to FEEDS, as `scrapy crawl` does, and return their URIs.

    Raises:
        CommandError: Scrapy refuses these options.
    """
    if not (options.output or options.overwrite_output):
        return ()
    alone = settings.copy()
    alone.pop("FEEDS", None)  # otherwise the result would include the feeds of the project
    try:
        named, feeds = (
            feed_process_params_from_cli(
                each, options.output or [], overwrite_output=options.overwrite_output
            )
            for each in (alone, settings)
        )
    except UsageError as error:
        raise CommandError(str(error)) from None
    settings.set("FEEDS", feeds, "cmdline")
    return named.keys()


def export_feeds(
    exports: Exports, run: Run, stops: StopSignals, crew_stops: int = 0, *, finished: bool, began: bool
) -> tuple[list[Exported], list[str]]:
    """Export all feeds, with a progress bar; return the stored feeds, and the errors of the others.

    Args:
        crew_stops: the number of signals in *stops* that asked the crew to stop. Only later signals stop the
            export.
        finished, began: see `Exports.run`.
    """

    def stopped() -> None:
        if stops.count > crew_stops:
            raise Interrupted

    with ProgressBar() as bar:
        try:
            return exports.run(run, bar, stopped, finished=finished, began_run=began)
        except (CrewError, OSError) as error:
            return [], [f"The feeds are not written: {error}. The same command writes them"]
