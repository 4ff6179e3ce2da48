"""`scrapy dq workers`: the workers of a crawl, and whether each is alive."""

from __future__ import annotations

import argparse
from typing import Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.output.display import print_json, print_table
from scrapy_dq.commands.subcommand import DONE, Subcommand
from scrapy_dq.inspection.snapshot import EVERY_S, WAIT_S, watched
from scrapy_dq.inspection.words import awaited, span

COLUMNS = ("host", "pid", "since", "beat", "leases", "pages/s", "state")


class Workers(Subcommand):
    """The workers of a crawl.

    Shows the workers that are registered in a spider's crawl, watched for 1 s. For those on this machine,
    it checks whether their processes exist; for others, --wait watches their heartbeats for 2.5 s.
    """

    name = "workers"
    arguments = "[<spider>]"
    flags = (
        ("--wait", f"watch the heartbeats for {WAIT_S:g} s"),
        ("--no-rate", "do not watch: no pages per second"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with looking.place_of(settings, options) as place:
            wait_s = 0.0 if options.no_rate else WAIT_S if options.wait else EVERY_S
            workers = watched(place, wait_s, turn=True).worker_rows()
            looking.say_unanswered(place)
        if options.json:
            print_json(looking.found_in(place, workers=workers))
        elif not workers:
            print("No worker is registered.")
        else:
            rows = [[row[name] for name in COLUMNS] for row in map(_row, workers)]
            print_table(COLUMNS, rows, numbers=COLUMNS[1:6], wraps=("host", "state"), most=looking.MOST)
        return DONE


def _row(worker: dict[str, Any]) -> dict[str, Any]:
    rate, since_s = worker["pages_per_s"], worker["since_s"]
    return worker | {
        "pid": str(worker["pid"] or "?"),
        "since": "?" if since_s is None else span(since_s),
        "pages/s": "" if rate is None else f"{rate:,.1f}",
        "state": worker["state"] + (f", waits {awaited(**worker['turn'])}" if worker["turn"] else ""),
    }
