"""`scrapy dq events`: what happened to a crawl, who did it, and how fast the crawl was."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

from rich.console import Console
from scrapy.settings import Settings

from scrapy_dq.commands import common
from scrapy_dq.commands.output.display import print_json, print_table, width
from scrapy_dq.commands.streams import ended_quietly
from scrapy_dq.commands.subcommand import DONE, Subcommand
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.inspection.history import (
    Event,
    Sample,
    curves_of,
    extent,
    is_known,
    mean,
    paces,
    read_events,
    said,
    whole_history,
)
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.words import span, when
from scrapy_dq.text import count_of

LOOK_S = 1.0
BLOCKS = "▁▂▃▄▅▆▇█"
WIDEST = 60
"""Columns of a curve."""


class Events(Subcommand):
    """What happened to a crawl, and who did it.

    Lists the newest events of a spider's crawl: workers that joined, left or died, outages of Redis,
    commands and who gave them, the beginning and the end of runs. At most 500 are kept. --curves also draws
    rate, backlog, failures and memory of the last two days, a sample each minute; of the first hour, a
    sample each 10 s.
    """

    name = "events"
    flags = (
        ("--follow", "print new ones as they come (JSON: one a line)"),
        ("--curves", "also draw rate, backlog, failures and memory (JSON: the samples)"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        common.add_count(parser, 50)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with common.place_of(settings, options) as place:
            place.overview()
            events = read_events(place.shards, place.crawl)
            samples = whole_history(place.shards, place.crawl) if options.curves else []
            common.say_unanswered(place)
            if options.follow:
                with ended_quietly():
                    self._follow(place, events, options)
                return DONE
        listed = events[-options.count :]
        if options.json:
            found = {"events": [asdict(event) for event in listed]}
            if options.curves:
                pairs = zip(samples, paces(samples), strict=True)
                found["samples"] = [asdict(sample) | asdict(pace) for sample, pace in pairs]
            print_json(common.found_in(place, **found))
        else:
            if options.curves:
                _print_curves(samples)
            _print(listed, len(events))
        return DONE

    def _follow(self, place: Place, events: Sequence[Event], options: argparse.Namespace) -> None:
        """Print events until Ctrl-C, also after an outage."""
        shown, missed = set(events[: -options.count]), ""
        while True:
            for event in events:
                if event not in shown and not is_known(event, shown):
                    print(json.dumps(asdict(event)) if options.json else _line(event), flush=True)
            # None is forgotten: what is not read of a shard now comes back with it.
            shown.update(events)
            time.sleep(LOOK_S)
            try:
                with as_unavailable(place.target):
                    place.ask_all()
                    events = read_events(place.shards, place.crawl)
                missed = ""
            except FrontierUnavailable as error:
                if str(error) != missed:
                    missed = str(error)
                    print(f"{missed}. Trying again.", file=sys.stderr, flush=True)


def _line(event: Event) -> str:
    return f"{when(event.at)} {said(event)}" + (f" ({event.who})" if event.who else "")


def _print(listed: Sequence[Event], kept: int) -> None:
    shown = "" if len(listed) == kept else f"; the newest {len(listed):,} are shown"
    print(f"{count_of(kept, 'event')}{shown}.")
    if listed:
        rows = [[when(event.at), str(event.run), said(event), event.who] for event in listed]
        print_table(("when", "run", "what", "who"), rows, numbers=("run",), wraps=("what", "who"))


def _print_curves(samples: Sequence[Sample]) -> None:
    if not samples:
        print("There is no sample yet: workers take one each 10 s.")
        return
    print(f"{count_of(len(samples), 'sample')} of {span(samples[-1].at - samples[0].at)}.")
    columns = min(WIDEST, max(1, width() - 45))
    blocks = not Console().options.ascii_only
    for name, found in curves_of(samples).items():
        line = curve(found[0], columns) if blocks else ""
        print(f"{name:<9} {line} {extent(found)}")


def curve(values: Sequence[float | None], columns: int) -> str:
    """Return *values* as a line of at most *columns* blocks from 0 to the largest; unknown ones are blank.

    A block is the mean of its values.
    """
    columns = min(columns, len(values))
    ends = [i * len(values) // columns for i in range(columns + 1)] if columns else [0]
    means = [mean(values[begin:end]) for begin, end in pairwise(ends)]
    largest = max((each for each in means if each is not None), default=0) or 1
    steps = (len(BLOCKS) - 1) / largest
    return "".join(" " if each is None else BLOCKS[round(each * steps)] for each in means)
