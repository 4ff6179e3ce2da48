"""`scrapy dq status --watch`: read the status repeatedly, also during outages, until it is ended."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.live import Live

from scrapy_dq.commands.interrupts import ended_quietly
from scrapy_dq.commands.output.status_text import one_line
from scrapy_dq.commands.output.streams import nobody_reads
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.status import Progress
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.inspection.place import Place

LONGEST_LINE = 2000
GONE = "The crawl no longer exists: its keys were deleted, or Redis was emptied"


class Output(Protocol):
    """Shows the status each time it was read."""

    def open(self) -> AbstractContextManager[Any]:
        """Return a context manager that is active while the crawl is watched."""

    def show(self, status: dict[str, Any]) -> None:
        """Show *status*, which was read just now."""

    def miss(self, status: dict[str, Any], last: dict[str, Any]) -> None:
        """Show why the status could not be read (`error` of *status*), and the *last* that was."""


def output(*, as_json: bool) -> Output:
    """Return what fits standard output: a live view if it is a terminal that can move its cursor."""
    console = Console(highlight=False, markup=False)
    if as_json:
        return _JsonLines()
    return _View(console) if sys.stdout.isatty() and not console.is_dumb_terminal else _Lines()


def watch(place: Place, every_s: float, to: Output) -> None:
    """Show the status every *every_s* seconds, until Ctrl-C, SIGTERM, or nothing reads the output.

    Raises:
        CommandError, FrontierError: the first attempt to read it failed.
    """
    with ended_quietly(), to.open():
        progress = Progress(place)
        due = time.monotonic()
        last = progress.status(place.overview())
        to.show(last)
        while not nobody_reads():
            due = max(due + every_s, time.monotonic())  # no catching up after one that took long
            time.sleep(max(0.0, due - time.monotonic()))
            status = _look(place, progress)
            if "error" in status:
                to.miss(status, last)
            else:
                to.show(status)
                last = status


def _look(place: Place, progress: Progress) -> dict[str, Any]:
    phase, reason = "absent", GONE
    try:
        with as_unavailable():
            place.ask_all()
            overview = peek(place.shards, place.crawl)
            if overview.phase != phase:
                return progress.status(overview)
    except FrontierError as error:
        phase, reason = "unknown", str(error)
    at = round(time.time(), 3)
    return {"crawl": place.crawl, "redis": place.target, "at": at, "phase": phase, "error": reason}


class _JsonLines:
    """One JSON object each time."""

    def open(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def show(self, status: dict[str, Any]) -> None:
        print(json.dumps(status), flush=True)

    def miss(self, status: dict[str, Any], last: dict[str, Any]) -> None:
        self.show(status)


class _Lines:
    """One line each time, with the time of day."""

    def open(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def show(self, status: dict[str, Any]) -> None:
        self._say(one_line(status))

    def miss(self, status: dict[str, Any], last: dict[str, Any]) -> None:
        self._say(printable(status["error"], LONGEST_LINE))

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class _View:
    """A live view, which is redrawn in place in a terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def open(self) -> AbstractContextManager[Any]:
        return self._live

    def show(self, status: dict[str, Any], missed: dict[str, Any] | None = None) -> None:
        from scrapy_dq.commands.output.status_view import view

        self._live.update(view(status, self._live.console, missed), refresh=True)

    def miss(self, status: dict[str, Any], last: dict[str, Any]) -> None:
        self.show(last, status)
