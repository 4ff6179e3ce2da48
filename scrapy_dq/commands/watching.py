"""`scrapy dq status --watch`: read the status repeatedly, also during outages, until it is ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from scrapy_dq.commands.interrupts import ended_quietly
from scrapy_dq.commands.output.status_text import one_line
from scrapy_dq.commands.output.streams import nobody_reads
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.inspection.snapshot import Watcher
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.inspection.place import Place

LONGEST_LINE = 2000
GONE = "The crawl no longer exists: its keys were deleted, or Redis was emptied"


Show = Callable[[dict[str, Any], "dict[str, Any] | None"], None]
"""Shows a status; if there is no newer one, its second argument says why (`error`)."""


@contextmanager
def output(*, as_json: bool) -> Iterator[Show]:
    """Yield what fits standard output: a live view if it is a terminal that can move its cursor."""
    console = Console(highlight=False, markup=False)
    if as_json:
        yield lambda status, missed: print(json.dumps(missed or status), flush=True)
    elif sys.stdout.isatty() and not console.is_dumb_terminal:
        from scrapy_dq.commands.output.status_view import view

        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda status, missed: live.update(view(status, console, missed), refresh=True)
    else:
        yield _print_line


def _print_line(status: dict[str, Any], missed: dict[str, Any] | None) -> None:
    text = printable(missed["error"], LONGEST_LINE) if missed else one_line(status)
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def watch(place: Place, every_s: float, *, as_json: bool) -> None:
    """Show the status every *every_s* seconds, until Ctrl-C, SIGTERM, or nothing reads the output.

    Raises:
        NoSuchCrawl, FrontierError: the first attempt to read it failed.
    """
    with ended_quietly(), output(as_json=as_json) as show:
        watcher, due = Watcher(place), time.monotonic()
        first = watcher.look(turn=True, partitions=True)
        if not first.exists:
            raise place.no_such_crawl()
        last = first.status()
        show(last, None)
        while not nobody_reads():
            due = max(due + every_s, time.monotonic())  # no catching up after one that took long
            time.sleep(max(0.0, due - time.monotonic()))
            status = _look(place, watcher)
            missed = status if "error" in status else None
            last = last if missed else status
            show(last, missed)


def _look(place: Place, watcher: Watcher) -> dict[str, Any]:
    phase, reason = "absent", GONE
    try:
        with as_unavailable():
            found = watcher.look(turn=True, partitions=True)
            if found.exists:
                return found.status()
    except FrontierError as error:
        phase, reason = "unknown", str(error)
    at = round(time.time(), 3)
    return {"crawl": place.crawl, "redis": place.target, "at": at, "phase": phase, "error": reason}
