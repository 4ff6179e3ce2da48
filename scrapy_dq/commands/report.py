"""`scrapy dq report`: one HTML file about a crawl, to send round."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand

MOST_FAILURES = 1_000
"""Records, of each kind, that are grouped."""


class Report(Subcommand):
    """Writes what is known of a crawl as a page that needs no other file and no network."""

    name = "report"
    arguments = "[<spider>]"
    summary = "an HTML file with the curves, totals, failures and events of a crawl"
    description = (
        "Writes an HTML page about a spider's crawl to standard output, in a terminal to a file whose name "
        "it prints: totals, curves of rate, backlog, "
        "failures and memory, the largest and slowest partitions, failures by cause, and events. It has no "
        "script, and needs no other file: scrapy dq report books > report.html"
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument("--output", metavar="FILE", type=Path, help="write it to FILE")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json
        from scrapy_dq.commands.output.report import page_of
        from scrapy_dq.inspection.entries import read_failures
        from scrapy_dq.inspection.history import read_events, whole_history
        from scrapy_dq.inspection.snapshot import watched

        with looking.place_of(settings, options) as place:
            status = watched(place, 0.0, turn=True, partitions=True).status()
            samples = whole_history(place.shards, place.crawl)
            events = read_events(place.shards, place.crawl)
            failures = [read_failures(place, kind, MOST_FAILURES) for kind in ("failed", "dead")]
        if options.json:
            groups = {found["kind"]: found["groups"] for found in failures}
            lists = {"samples": [*map(asdict, samples)], "events": [*map(asdict, events)]}
            print_json({"status": status} | lists | groups)
            return DONE
        page = page_of(status, samples, events, failures).encode()
        output = options.output
        if output is None and not sys.stdout.isatty():
            sys.stdout.buffer.write(page)
            return DONE
        output = output or report_file(place.crawl)
        from scrapy_dq.crew.errors import CrewError
        from scrapy_dq.crew.own_files import open_own

        try:
            with open(output, "wb", opener=open_own) as file:
                file.write(page)
        except (OSError, CrewError) as error:
            raise CommandError(f"{output} cannot be written: {error}") from error
        if options.output is None:
            print(f"The report is in {output}")
        return DONE


def report_file(crawl: str) -> Path:
    """Return the name of a crawl's report, in the current folder."""
    return Path(f"report-{quote(crawl, safe='')}.html")
