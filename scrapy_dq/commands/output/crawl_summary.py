"""What `scrapy dq crawl` prints at its end: the outcome, what each worker did, and what to do next."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from scrapy_dq.commands.input.asking import named, repeated
from scrapy_dq.commands.output.crawl_view import of_run
from scrapy_dq.commands.output.display import print_json, print_table, short
from scrapy_dq.crew.feeds.joining import Joined
from scrapy_dq.crew.supervisor import Supervisor
from scrapy_dq.frontier.model import Census
from scrapy_dq.text import count_of, losses, named_run, not_begun, printable


class Summary:
    """The results of a crew."""

    def __init__(
        self,
        crew: Supervisor,
        crawl: str,
        target: str,
        joined: list[Joined],
        unjoined: list[str],
        options: argparse.Namespace,
        run_name: str = "",
    ) -> None:
        """*run_name*: DQ_RUN_NAME, if it is set."""
        self._crew = crew
        self._crawl = crawl
        self._target = target
        self._joined = joined
        self._unjoined = unjoined
        self._named = named(crawl, options)
        self._unwritten = sum(slot.counts.unwritten for slot in crew.slots)
        self._unstored = sum(slot.counts.unstored for slot in crew.slots)
        self._run_name = run_name
        self._again = " ".join(["scrapy", "dq", "crawl", *_words(options)])

    @property
    def lacks_items(self) -> bool:
        """Whether items that were scraped are in no feed."""
        return bool(self._unwritten or self._unstored or any(feed.lacking for feed in self._joined))

    @property
    def not_begun(self) -> str:
        """The run name that the user asked for, if an earlier run was finished instead; else empty."""
        seen = self._crew.monitor.overview
        other = seen is not None and self._crew.finished and seen.run_name != self._run_name
        return self._run_name if other else ""

    def print_json(self) -> None:
        """Print the summary as JSON."""
        print_json(self._found())

    def _found(self) -> dict[str, Any]:
        crew = self._crew
        rows: list[dict[str, Any]] = [
            {
                "worker": slot.number, "pages": slot.counts.pages, "items": slot.counts.items,
                "failed": slot.counts.failed, "errors": slot.counts.errors,
                "restarts": slot.restarts, "end": slot.state, "log": slot.log and str(slot.log),
            }
            for slot in crew.slots
        ]  # fmt: skip
        failed, dead = self._lost()
        totals = {name: sum(row[name] for row in rows) for name in ("pages", "items", "errors", "restarts")}
        return {
            "crawl": self._crawl,
            "redis": self._target,
            "run": crew.run.number if crew.run else None,
            "run_name": self._name(),
            "finished": crew.finished,
            "not_begun": self.not_begun or None,
            **totals,
            "done": self._reported,
            "failed": failed,
            "dead": dead,
            "seconds": round(crew.took_s, 1),
            "pages_per_s": round(totals["pages"] / crew.took_s, 1) if crew.took_s else 0.0,
            "workers": rows,
            "feeds": [
                {
                    "path": str(feed.path),
                    "items": feed.items,
                    "appended": feed.appended,
                    "complete": not feed.lacking,
                }
                for feed in self._joined
            ],
            "feed_writes_failed": self._unwritten,
            "feeds_not_stored": self._unstored,
            "not_joined": self._unjoined,
        }

    def print(self) -> None:
        """Print the summary as text."""
        found, crew = self._found(), self._crew
        end = "finished" if crew.finished else "not finished"
        run = "no worker could join"
        if crew.run:
            run = f"{named_run(f'run {crew.run.number}', self._name())} is {end}"
        print(f"Crawl {self._crawl!r} at {self._target}: {run}")
        if crew.took_s:
            self._print_workers(found)
        self._print_run(found["pages"])
        for feed in self._joined:
            print(f"{short(feed.path)}: {count_of(feed.items, 'item')}{' appended' if feed.appended else ''}")
        for line in self._unjoined:
            print(line)
        self._print_lacking()
        if crew.run and not crew.finished:
            seen = crew.monitor.overview
            if seen and seen.hold:
                print(f"The crawl is {seen.hold.value}: first run scrapy dq resume {self._named}")
            print(f"{_left(crew)}Continue with: {self._again}")
            if any(slot.state in ("start_error", "start_incomplete") for slot in crew.slots):
                print(
                    f"A start() did not complete. To end the run without it: scrapy dq complete {self._named}"
                )
        failed, dead = self._lost()
        if lost := losses(failed or 0, dead or 0, self._named):
            print(lost)

        if crew.run and self.not_begun:
            print(not_begun(crew.run.number, self._name(), self.not_begun))

    def _name(self) -> str:
        """Return the name of the crew's run; empty: it has none, or that is unknown."""
        seen, run = self._crew.monitor.overview, self._crew.run
        return printable(seen.run_name) if seen and run and seen.run == run.number else ""

    def _lost(self) -> tuple[int | None, int | None]:
        """Return the counts of requests that failed for good and of dead letters; None: unknown."""
        census = _census(self._crew)
        return (census.failed, census.dead) if census else (None, None)

    @property
    def _reported(self) -> int:
        """How many requests the workers have reported as done."""
        return sum(slot.counts.done for slot in self._crew.slots)

    def _print_run(self, pages: int) -> None:
        """Explain why more is done than the table shows: before, elsewhere, or in a process's last second.

        And why its pages are not the requests that its workers have done.
        """
        census = _census(self._crew)
        done = count_of(census.done, "request") if census else ""
        reported = self._reported
        if pages != reported:
            print(
                f"{count_of(pages, 'page')}, {count_of(reported, 'request')} done: redirects and retries are "
                f"done without a page; failed and interrupted pages, and pages of dq_local requests and of "
                f"media pipelines, are not done"
            )
        served = all(slot.state != "cannot_serve" for slot in self._crew.slots)
        if census and census.done > reported == 0 and self._crew.finished and served:
            print(
                f"Nothing was left to do: {done} done before. Another DQ_RUN_NAME "
                f"starts a new run; without a DQ_RUN_NAME, a command does a minute after the end"
            )
        elif census and census.done > reported:
            print(
                f"The whole run: {done} done. The table shows what the processes of this "
                f"command reported; a process that is killed does not report its last second"
            )

    def _print_lacking(self) -> None:
        """Say which items are in no feed: their requests are done, so nothing scrapes them again."""
        for feed in self._joined:
            if feed.lacking:
                print(
                    f"{short(feed.path)}: items are missing: "
                    f"{count_of(feed.lacking, 'worker process', 'worker processes')} "
                    f"could not write all of theirs"
                )
        if self._unwritten:
            print(
                f"{count_of(self._unwritten, 'write')} to feeds failed, "
                f"each of an item that is missing there: the logs say why"
            )
        if self._unstored:
            print(
                f"{count_of(self._unstored, 'feed')} could not be stored, "
                f"with all items in it: the logs say why"
            )

    def _print_workers(self, found: dict[str, Any]) -> None:
        crew = self._crew
        numbers = ("worker", "pages/s", "pages", "items", "failed", "errors", "restarts")
        rows = [
            [str(row["worker"]), f"{row['pages'] / crew.took_s:,.1f}", row["pages"], row["items"],
             row["failed"], row["errors"], row["restarts"], row["end"]]
            for row in found["workers"]
        ]  # fmt: skip
        rows.append(
            ["all", f"{found['pages_per_s']:,.1f}", found["pages"], found["items"],
             sum(row["failed"] for row in found["workers"]), found["errors"], found["restarts"],
             f"{crew.took_s:,.1f} s"]
        )  # fmt: skip
        print_table((*numbers, "end"), rows, numbers=numbers)


def _census(crew: Supervisor) -> Census | None:
    """Return the counts of the crew's run; None: unknown."""
    seen = of_run(crew)
    return seen.census if seen else None


def _left(crew: Supervisor) -> str:
    census = _census(crew)
    if census is None:
        return ""
    left = census.waiting + census.in_flight + census.delayed
    return f"{count_of(left, 'known request')} {'is' if left == 1 else 'are'} left. "


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
