"""`scrapy dq crawl`: run one crawl with several worker processes on this machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from scrapy.settings import Settings

from scrapy_dq.commands import common
from scrapy_dq.commands.subcommand import CommandError, Subcommand

MAX_WORKERS = 1000
RESTARTS = 10


class Crawl(Subcommand):
    """Crawl with several workers.

    Starts N worker processes, restarts workers that die, and exports all items at the end. Ctrl-C stops the
    workers gracefully; a second Ctrl-C stops them at once. The same command continues the crawl. Exit status
    0: the run is finished; 1: it is not, or a feed lacks items; 3: the run of DQ_RUN_NAME has not begun.
    """

    name = "crawl"
    arguments = "<spider>"
    own_status = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-w", "--workers", type=common.whole(1, MAX_WORKERS), default=own_cores(), metavar="N",
            help="worker processes (default: one per core)",
        )  # fmt: skip
        add_outputs(parser)
        parser.add_argument(
            "--restarts", type=common.whole(0, 10**9), default=RESTARTS, metavar="N",
            help=f"stop restarting after N restarts without progress (default: {RESTARTS})",
        )  # fmt: skip
        parser.add_argument(
            "--log-dir", type=Path, metavar="DIR",
            help="folder for the workers' logs (default: logs/CRAWL in DQ_DATA_DIR)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        if os.name != "posix":
            raise CommandError("this needs a POSIX system: start `scrapy crawl` several times instead")
        from scrapy_dq.commands.crawling import crawl

        return crawl(settings, options)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add -o and -O."""
    parser.add_argument(
        "-o", "--output", action="append", metavar="FILE",
        help="append items to FILE, a path or feed URI",
    )  # fmt: skip
    parser.add_argument(
        "-O", "--overwrite-output", action="append", metavar="FILE",
        help="replace FILE with all items of the run",
    )  # fmt: skip


def own_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
