"""Show the progress of `scrapy dq crawl` (a live view in a terminal, else lines), and its summary."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scrapy_dq.commands.input.confirm import named, repeated
from scrapy_dq.commands.output.display import LINE_EVERY_S, green_bar, print_table, table_of
from scrapy_dq.commands.output.exported import feed_lines, feeds_as_json
from scrapy_dq.crew.feeds.exporting import Exported
from scrapy_dq.crew.supervisor import Supervisor
from scrapy_dq.crew.worker_process import WorkerSlot
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.model import Hold
from scrapy_dq.inspection.snapshot import left, settled
from scrapy_dq.inspection.words import awaited, uncounted
from scrapy_dq.text import count_of, losses, named_run, printable, run_not_started

DRAW_EVERY_S = 0.25
NUMBERS = ("worker", "pid", "pages/s", "pages", "items", "errors", "restarts")


class CrawlView:
    """Shows a crew on standard error. If the user closes the terminal, the crawl continues."""

    def __init__(self, crawl: str) -> None:
        self._crawl = crawl
        self._console = Console(file=sys.stderr, highlight=False, markup=False)
        self._live: Live | None = None
        self._shown_at = 0.0

    def __enter__(self) -> CrawlView:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._shown_at = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def say(self, line: str) -> None:
        """Print a line above the view."""
        line = " " * (len(line) - len(line.lstrip())) + printable(line, 2000)
        if self._live is not None:
            self._console.print(Text(line))
        else:
            print(line, file=sys.stderr, flush=True)

    def show(self, crew: Supervisor) -> None:
        """Show the progress, unless the last update was too recent."""
        now = time.monotonic()
        if now < self._shown_at + (DRAW_EVERY_S if self._live else LINE_EVERY_S):
            return
        self._shown_at = now
        if self._live is not None:
            self._live.update(self._drawn(crew), refresh=True)
        else:
            print(_line(crew), file=sys.stderr, flush=True)

    def _drawn(self, crew: Supervisor) -> RenderableType:
        done, total = _progress(crew)
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        name = Text(printable(self._crawl, 30), style="bold")
        head.add_row(name, green_bar(done, total), f"{done:,} of {total:,}" if total else "")
        rows = [
            (str(slot.number), str(slot.process.pid) if slot.process else "", f"{slot.rate:,.1f}",
             slot.counts["pages"], slot.counts["items"], slot.counts["errors"], slot.restarts or "",
             state_of(slot, crew))
            for slot in crew.slots
        ]  # fmt: skip
        workers = table_of((*NUMBERS, "state"), rows, numbers=NUMBERS)
        rate = sum(slot.rate for slot in crew.slots)
        return Group("", head, Text(f"{rate:,.1f} pages/s; {_counts(crew)}"), "", workers)


def of_run(crew: Supervisor) -> Overview | None:
    """Return the newest counts of the crew's run, or None if they are unknown or of another run."""
    overview, run = crew.monitor.overview, crew.run
    return overview if overview and run and (overview.epoch, overview.run) == tuple(run) else None


def state_of(slot: WorkerSlot, crew: Supervisor) -> str:
    """Return the state of a worker, for people."""
    process = slot.process
    if process is None:
        return slot.state
    if crew.stopping:
        return "stopping"
    if process.run is None:
        return "starting"
    if process.outage:
        return f"waits: {process.outage}"
    overview = crew.monitor.overview
    return overview.hold.value or "crawling" if overview else "crawling"


def _progress(crew: Supervisor) -> tuple[int, int]:
    """Return the numbers of settled requests and of all requests, or (0, 0) while they are unknown."""
    overview = of_run(crew)
    if overview is None:
        return 0, 0
    counts = asdict(overview.census)
    return settled(counts), settled(counts) + left(counts)


def _counts(crew: Supervisor) -> str:
    overview = crew.monitor.overview
    if crew.monitor.problem:
        return crew.monitor.problem
    if overview is None or crew.run is None:
        return "starting"
    census = overview.census
    counts = [*uncounted(overview.unreachable, overview.apart)]
    counts += [overview.hold.value] if overview.hold is not Hold.NONE else []
    outages = Counter(slot.process.outage for slot in crew.slots if slot.process and slot.process.outage)
    counts += [
        f"{count_of(count, 'worker waits', 'workers wait')}: {reason}" for reason, count in outages.items()
    ]
    if (turn := crew.monitor.turn) and not census.in_flight:
        site = turn.partition.decode("utf-8", "replace")
        counts.append(f"all wait {awaited(site, turn.wait_s)}")
    counts += [f"{census.waiting:,} waiting", f"{census.in_flight:,} in flight"]
    for count, noun in ((census.delayed, "delayed"), (census.failed, "failed"), (census.dead, "dead")):
        counts += [f"{count:,} {noun}"] if count else []
    return ", ".join(counts)


def _line(crew: Supervisor) -> str:
    done, total = _progress(crew)
    rate = sum(slot.rate for slot in crew.slots)
    errors = sum(slot.counts["errors"] for slot in crew.slots)
    alive = sum(slot.process is not None for slot in crew.slots)
    overview = crew.monitor.overview
    pace = "" if overview and overview.hold is Hold.PAUSED else f", {rate:,.1f} pages/s"
    ends = f"{count_of(alive, 'worker')}{pace}, {count_of(errors, 'error')}"
    known = f"{done:,} of {total:,} done; " if total else ""
    return f"{known}{_counts(crew)}; {ends}"


class Summary:
    """The results of a crew; `found` is their JSON."""

    def __init__(
        self, crew: Supervisor, crawl: str, target: str, stored: list[Exported], failures: list[str],
        options: argparse.Namespace, run_name: str = "",
    ) -> None:  # fmt: skip
        """Compute the results; *run_name* is DQ_RUN_NAME, if set."""
        self._crew, self._stored = crew, stored
        self._named = named(crawl, options)
        self._again = " ".join(["scrapy", "dq", "crawl", *_words(options)])
        overview, run_overview = crew.monitor.overview, of_run(crew)
        self._census = census = run_overview.census if run_overview else None
        """The counts of the crew's run, or None if they are unknown."""
        self.run_not_started = (
            run_name if overview and crew.finished and overview.run_name != run_name else ""
        )
        """The user's run name if the crew finished an earlier run instead; else empty."""
        rows: list[dict[str, Any]] = [
            {
                "worker": slot.number, "pages": slot.counts["pages"], "items": slot.counts["items"],
                "failed": slot.counts["failed"], "errors": slot.counts["errors"],
                "restarts": slot.restarts, "end": slot.state, "log": slot.log and str(slot.log),
            }
            for slot in crew.slots
        ]  # fmt: skip
        totals = {name: sum(row[name] for row in rows) for name in ("pages", "items", "errors", "restarts")}
        self.found: dict[str, Any] = {
            "crawl": crawl,
            "redis": target,
            "run": crew.run.number if crew.run else None,
            "run_name": printable(run_overview.run_name) if run_overview else "",
            "finished": crew.finished,
            "not_begun": self.run_not_started or None,
            **totals,
            "done": sum(slot.counts["done"] for slot in crew.slots),
            "failed": census and census.failed,
            "dead": census and census.dead,
            "seconds": round(crew.took_s, 1),
            "pages_per_s": round(totals["pages"] / crew.took_s, 1) if crew.took_s else 0.0,
            "workers": rows,
            "feeds": feeds_as_json(stored),
            "feed_writes_failed": sum(slot.counts["unwritten"] for slot in crew.slots),
            "feeds_not_stored": sum(slot.counts["unstored"] for slot in crew.slots),
            "feeds_not_written": failures,
        }  # fmt: skip

    @property
    def lacks_items(self) -> bool:
        """Whether a feed lacks some of the scraped items."""
        return bool(self.found["feed_writes_failed"] or self.found["feeds_not_stored"])

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
        """Yield the lines below the table."""
        found, crew = self.found, self._crew
        yield from self._differences()
        yield from feed_lines(self._stored)
        yield from found["feeds_not_written"]
        if unwritten := found["feed_writes_failed"]:
            yield f"{count_of(unwritten, 'item')} could not be written: the logs say why"
        if unstored := found["feeds_not_stored"]:
            yield f"{count_of(unstored, 'feed')} could not be stored, and lacks all items: the logs say why"
        if crew.run and not crew.finished:
            yield from self._next()
        if lost := losses(found["failed"] or 0, found["dead"] or 0, self._named):
            yield lost
        if crew.run and self.run_not_started:
            yield run_not_started(crew.run.number, found["run_name"], self.run_not_started)

    def _differences(self) -> Iterator[str]:
        """Explain why pages and done requests differ in number, or why the crew had nothing to do."""
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
                f"starts a new run; without a DQ_RUN_NAME, the same command does, a minute after the end"
            )

    def _next(self) -> Iterator[str]:
        """Yield the commands that continue the run."""
        overview, census = self._crew.monitor.overview, self._census
        if overview and overview.hold:
            yield f"The crawl is {overview.hold.value}: first run scrapy dq resume {self._named}"
        known = ""
        if census:
            known = f"{count_of(left(asdict(census)), 'known request is', 'known requests are')} left. "
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
