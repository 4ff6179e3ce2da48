"""`scrapy dq events`: what happened to a crawl, and who did it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.interrupts import ended_quietly
from scrapy_dq.commands.subcommand import DONE, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.inspection.history import Event
    from scrapy_dq.inspection.place import Place

LOOK_S = 1.0
ALL = sys.maxsize
"""What each shard keeps: of the newest of all shards, older ones would be part while a shard is away."""


class Events(Subcommand):
    """Lists the journal of a crawl."""

    name = "events"
    arguments = "[<spider>]"
    summary = "what happened to a crawl, and who did it"
    description = (
        "Lists the newest events of a spider's crawl: workers that joined, left or died, outages of Redis, "
        "commands and who gave them, the beginning and the end of runs. At most 500 are kept."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        looking.add_count(parser, 50)
        parser.add_argument(
            "--follow", action="store_true", help="print new ones as they come (JSON: one a line)"
        )

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json
        from scrapy_dq.inspection.history import MOST_EVENTS, read_events

        with looking.place_of(settings, options) as place:
            place.overview()
            events = read_events(place.shards, place.crawl, ALL if options.follow else MOST_EVENTS)
            looking.say_unanswered(place)
            if options.follow:
                with ended_quietly():
                    self._follow(place, events, options)
                return DONE
        listed = events[-options.count :]
        if options.json:
            print_json(looking.found_in(place, events=[asdict(event) for event in listed]))
        else:
            _print(listed, len(events))
        return DONE

    def _follow(self, place: Place, events: Sequence[Event], options: argparse.Namespace) -> None:
        """Print events until Ctrl-C, also after an outage."""
        from scrapy_dq.frontier.errors import as_unavailable
        from scrapy_dq.frontier.model import FrontierUnavailable
        from scrapy_dq.inspection.history import is_known, read_events

        shown, away, missed = set(events[: -options.count]), {*place.shards.unreachable}, ""
        while True:
            for event in events:
                if event not in shown and not is_known(event, shown, away):
                    print(json.dumps(asdict(event)) if options.json else _line(event), flush=True)
            # What is not read of a shard now comes back with it.
            shown = {*events} | (shown if away else set())
            time.sleep(LOOK_S)
            try:
                with as_unavailable(place.target):
                    place.ask_all()
                    events = read_events(place.shards, place.crawl, ALL)
                away, missed = {*place.shards.unreachable}, ""
            except FrontierUnavailable as error:
                if str(error) != missed:
                    missed = str(error)
                    print(f"{missed}. Trying again.", file=sys.stderr, flush=True)


def _line(event: Event) -> str:
    from scrapy_dq.inspection.history import said
    from scrapy_dq.inspection.words import when

    return f"{when(event.at)} {said(event)}" + (f" ({event.who})" if event.who else "")


def _print(listed: Sequence[Event], kept: int) -> None:
    from scrapy_dq.commands.output.display import print_table
    from scrapy_dq.inspection.history import said
    from scrapy_dq.inspection.words import when
    from scrapy_dq.text import count_of

    shown = "" if len(listed) == kept else f"; the newest {len(listed):,} are shown"
    print(f"{count_of(kept, 'event')}{shown}.")
    if listed:
        rows = [[when(event.at), str(event.run), said(event), event.who] for event in listed]
        print_table(("when", "run", "what", "who"), rows, numbers=("run",), wraps=("what", "who"))
