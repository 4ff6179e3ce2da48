"""What `scrapy dq crawl` shows while it runs: a live view in a terminal, elsewhere a line every 5 s."""

from __future__ import annotations

import sys
import time
from collections import Counter

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scrapy_dq.commands.output.display import green_bar, table_of
from scrapy_dq.crew.supervisor import Supervisor
from scrapy_dq.crew.worker_process import WorkerSlot
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.model import Hold
from scrapy_dq.inspection.words import awaited, uncounted
from scrapy_dq.text import count_of, printable

LINE_EVERY_S = 5.0
DRAW_EVERY_S = 0.25
NUMBERS = ("worker", "pid", "pages/s", "pages", "items", "errors", "restarts")


class CrawlView:
    """Shows a crew on standard error. If the terminal is closed, the crawl continues."""

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
        """Show the progress, if the last update is old enough."""
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
        head.add_row(name, green_bar(done, total), f"{done:,} of {total:,}")
        rows = [
            (str(slot.number), str(slot.process.pid) if slot.process else "", f"{slot.rate:,.1f}",
             slot.counts.pages, slot.counts.items, slot.counts.errors, slot.restarts or "",
             state_of(slot, crew))
            for slot in crew.slots
        ]  # fmt: skip
        workers = table_of((*NUMBERS, "state"), rows, numbers=NUMBERS)
        rate = sum(slot.rate for slot in crew.slots)
        return Group("", head, Text(f"{rate:,.1f} pages/s; {_counts(crew)}"), "", workers)


def of_run(crew: Supervisor) -> Overview | None:
    """Return the newest counts of the crew's run; None: they are unknown, or of another run."""
    seen, run = crew.monitor.overview, crew.run
    return seen if seen and run and (seen.epoch, seen.run) == tuple(run) else None


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
    seen = crew.monitor.overview
    return seen.hold.value or "crawling" if seen else "crawling"


def _progress(crew: Supervisor) -> tuple[int, int]:
    """Return how many requests are settled, and how many there are in total."""
    seen = of_run(crew)
    if seen is None:
        return 0, 0
    census = seen.census
    done = census.done + census.failed + census.dead
    return done, done + census.waiting + census.in_flight + census.delayed


def _counts(crew: Supervisor) -> str:
    seen = crew.monitor.overview
    if crew.monitor.problem:
        return crew.monitor.problem
    if seen is None or crew.run is None:
        return "starting"
    census = seen.census
    counts = [*uncounted(seen.unreachable, seen.apart)]
    counts += [seen.hold.value] if seen.hold is not Hold.NONE else []
    outages = Counter(slot.process.outage for slot in crew.slots if slot.process and slot.process.outage)
    counts += [f"{count_of(count, 'worker waits', 'workers wait')}: {why}" for why, count in outages.items()]
    if (turn := crew.monitor.turn) and not census.in_flight:
        site = turn.partition.decode("utf-8", "replace")
        counts.append(f"all wait {awaited(site, turn.wait_s)}")
    counts += [f"{census.waiting:,} waiting", f"{census.in_flight:,} in flight"]
    for count, what in ((census.delayed, "delayed"), (census.failed, "failed"), (census.dead, "dead")):
        counts += [f"{count:,} {what}"] if count else []
    return ", ".join(counts)


def _line(crew: Supervisor) -> str:
    done, total = _progress(crew)
    rate = sum(slot.rate for slot in crew.slots)
    errors = sum(slot.counts.errors for slot in crew.slots)
    alive = sum(slot.process is not None for slot in crew.slots)
    seen = crew.monitor.overview
    pace = "" if seen and seen.hold is Hold.PAUSED else f", {rate:,.1f} pages/s"
    ends = f"{count_of(alive, 'worker')}{pace}, {count_of(errors, 'error')}"
    return f"{done:,} of {total:,} done; {_counts(crew)}; {ends}"
