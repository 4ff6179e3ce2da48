"""What `scrapy dq crawl` prints at its end: the outcome, what each worker did, and what to do next."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scrapy_dq.commands.input.asking import named, repeated
from scrapy_dq.commands.output.crawl_view import of_run
from scrapy_dq.commands.output.display import print_json, print_table, short
from scrapy_dq.crew.feeds.exporting import Exported
from scrapy_dq.crew.supervisor import Supervisor
from scrapy_dq.text import count_of, losses, named_run, not_begun, printable


class Summary:
    """The results of a crew; `found` is their JSON."""

    def __init__(
        self, crew: Supervisor, crawl: str, target: str, stored: list[Exported], failures: list[str],
        options: argparse.Namespace, run_name: str = "",
    ) -> None:  # fmt: skip
        """*run_name*: DQ_RUN_NAME, if it is set."""
        self._crew = crew
        self._named = named(crawl, options)
        self._again = " ".join(["scrapy", "dq", "crawl", *_words(options)])
        seen, of_it = crew.monitor.overview, of_run(crew)
        self._census = census = of_it.census if of_it else None
        """The counts of the crew's run; None: unknown."""
        self.not_begun = run_name if seen and crew.finished and seen.run_name != run_name else ""
        """The run name that the user asked for, if an earlier run was finished instead; else empty."""
        rows: list[dict[str, Any]] = [
            {
                "worker": slot.number, "pages": slot.counts.pages, "items": slot.counts.items,
                "failed": slot.counts.failed, "errors": slot.counts.errors,
                "restarts": slot.restarts, "end": slot.state, "log": slot.log and str(slot.log),
            }
            for slot in crew.slots
        ]  # fmt: skip
        totals = {name: sum(row[name] for row in rows) for name in ("pages", "items", "errors", "restarts")}
        self.found: dict[str, Any] = {
            "crawl": crawl,
            "redis": target,
            "run": crew.run.number if crew.run else None,
            "run_name": printable(of_it.run_name) if of_it else "",
            "finished": crew.finished,
            "not_begun": self.not_begun or None,
            **totals,
            "done": sum(slot.counts.done for slot in crew.slots),
            "failed": census and census.failed,
            "dead": census and census.dead,
            "seconds": round(crew.took_s, 1),
            "pages_per_s": round(totals["pages"] / crew.took_s, 1) if crew.took_s else 0.0,
            "workers": rows,
            "feeds": [
                {"path": feed.name, "items": feed.items, "appended": feed.appended} for feed in stored
            ],
            "feed_writes_failed": sum(slot.counts.unwritten for slot in crew.slots),
            "feeds_not_stored": sum(slot.counts.unstored for slot in crew.slots),
            "feeds_not_written": failures,
        }  # fmt: skip

    @property
    def lacks_items(self) -> bool:
        """Whether items that were scraped are in no feed."""
        return bool(self.found["feed_writes_failed"] or self.found["feeds_not_stored"])

    def print_json(self) -> None:
        """Print the summary as JSON."""
        print_json(self.found)

    def print(self) -> None:
        """Print the summary as text."""
        found, crew = self.found, self._crew
        run = "no worker could join"
        if crew.run:
            end = "finished" if crew.finished else "not finished"
            run = f"{named_run(f'run {crew.run.number}', found['run_name'])} is {end}"
        print(f"Crawl {found['crawl']!r} at {found['redis']}: {run}")
        if crew.took_s:
            self._print_workers()
        for line in self._lines():
            print(line)

    def _lines(self) -> Iterator[str]:
        """Yield what is below the table."""
        found, crew = self.found, self._crew
        yield from self._differences()
        for feed in found["feeds"]:
            name = short(Path(feed["path"])) if os.path.isabs(feed["path"]) else feed["path"]
            yield f"{name}: {count_of(feed['items'], 'item')}{' appended' if feed['appended'] else ''}"
        yield from found["feeds_not_written"]
        yield from self._lacking()
        if crew.run and not crew.finished:
            yield from self._next()
        if lost := losses(found["failed"] or 0, found["dead"] or 0, self._named):
            yield lost
        if crew.run and self.not_begun:
            yield not_begun(crew.run.number, found["run_name"], self.not_begun)

    def _differences(self) -> Iterator[str]:
        """Explain why the pages in the table are not the requests done, or why nothing was done."""
        pages, reported, census = self.found["pages"], self.found["done"], self._census
        if pages != reported:
            yield (
                f"{count_of(pages, 'page')}, {count_of(reported, 'request')} done: redirects and retries are "
                f"done without a page; failed and interrupted pages, and pages of dq_local requests and of "
                f"media pipelines, are not done"
            )
        served = all(slot.state != "cannot_serve" for slot in self._crew.slots)
        if census and census.done > reported == 0 and self._crew.finished and served:
            done = count_of(census.done, "request")
            yield (
                f"Nothing was left to do: {done} done before. Another DQ_RUN_NAME "
                f"starts a new run; without a DQ_RUN_NAME, a command does a minute after the end"
            )

    def _lacking(self) -> Iterator[str]:
        """Yield how many items are in no feed."""
        if unwritten := self.found["feed_writes_failed"]:
            yield f"{count_of(unwritten, 'item')} could not be written: the logs say why"
        if unstored := self.found["feeds_not_stored"]:
            yield f"{count_of(unstored, 'feed')} could not be stored, with all items in it: the logs say why"

    def _next(self) -> Iterator[str]:
        """Yield which commands continue the run."""
        seen, census = self._crew.monitor.overview, self._census
        if seen and seen.hold:
            yield f"The crawl is {seen.hold.value}: first run scrapy dq resume {self._named}"
        known = ""
        if census:
            left = census.waiting + census.in_flight + census.delayed
            known = f"{count_of(left, 'known request is', 'known requests are')} left. "
        yield f"{known}Continue with: {self._again}"
        if any(slot.state in ("start_error", "start_incomplete") for slot in self._crew.slots):
            yield f"A start() did not complete. To end the run without it: scrapy dq complete {self._named}"

    def _print_workers(self) -> None:
        found, took_s = self.found, self._crew.took_s
        numbers = ("worker", "pages/s", "pages", "items", "failed", "errors", "restarts")
        counts = numbers[2:]
        rows = [
            [str(row["worker"]), f"{row['pages'] / took_s:,.1f}", *(row[name] for name in counts), row["end"]]
            for row in found["workers"]
        ]
        sums = (sum(row[name] for row in found["workers"]) for name in counts)
        rows.append(["all", f"{found['pages_per_s']:,.1f}", *sums, f"{took_s:,.1f} s"])
        print_table((*numbers, "end"), rows, numbers=numbers)


def _words(options: argparse.Namespace) -> Iterator[str]:
    """Yield the words of the command that continues the run, without passwords."""
    yield shlex.quote(options.spider)
    yield f"-w {options.workers}"
    for flag, values in (
        ("-a", options.spargs),
        ("-s", options.set),
        ("-o", options.output),
        ("-O", options.overwrite_output),
        ("--crawl", [options.crawl] if options.crawl else []),
    ):
        yield from repeated(flag, values)
