"""`scrapy dq report`: one HTML file about a crawl, to send round."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.inspection.history import Event, Sample
    from scrapy_dq.inspection.place import Place

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

        with looking.place_of(settings, options) as place:
            found = _Found(place)
        if options.json:
            print_json(found.as_dict())
            return DONE
        page = page_of(found.status, found.samples, found.events, found.failures).encode()
        output = options.output
        if output is None and not sys.stdout.isatty():
            sys.stdout.buffer.write(page)
            return DONE
        output = output or report_file(place.crawl)
        from scrapy_dq.crew.errors import CrewError
        from scrapy_dq.crew.links import open_own

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


class _Found:
    """What the report tells."""

    samples: list[Sample]
    """One a minute; if the crawl is younger than an hour, one each 10 s."""
    events: list[Event]
    failures: list[dict[str, Any]]

    def __init__(self, place: Place) -> None:
        from scrapy_dq.inspection.entries import read_failures
        from scrapy_dq.inspection.history import read_events, read_samples
        from scrapy_dq.inspection.status import read_status

        self.status = read_status(place, 0)
        self.samples = read_samples(place.shards, place.crawl, minutes=True)
        if len(self.samples) < 60:
            self.samples = read_samples(place.shards, place.crawl)
        self.events = read_events(place.shards, place.crawl)
        self.failures = [read_failures(place, kind, MOST_FAILURES) for kind in ("failed", "dead")]

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        groups = {found["kind"]: found["groups"] for found in self.failures}
        lists = {"samples": map(asdict, self.samples), "events": map(asdict, self.events)}
        return {"status": self.status, **{name: list(each) for name, each in lists.items()}, **groups}
