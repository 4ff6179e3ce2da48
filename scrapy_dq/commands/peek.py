"""`scrapy dq peek`: show the entries that would be leased next, without leasing any."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, Subcommand
from scrapy_dq.inspection.failures import title_of
from scrapy_dq.inspection.place import Place

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.backlog import Upcoming

_FED = "\x01"
"""The partition of released start payloads. Source: frontier/lua/lib/state.lua"""


class Peek(Subcommand):
    """Reads copies of a few entries."""

    name = "peek"
    arguments = "[<spider>]"
    summary = "the next entries"
    description = (
        "Shows what a worker that holds nothing would lease next, then what waits because of its partition's "
        "limits, then what is not due yet. Nothing is leased, and no code of the project is run."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        looking.add_count(parser, 10)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json, print_table
        from scrapy_dq.frontier.admin.backlog import upcoming

        with looking.place_of(settings, options) as place:
            place.overview()
            found = upcoming(place.shards, place.crawl, options.count)
            entries = [_entry(each, place) for each in found]
            looking.say_unanswered(place)
        if options.json:
            print_json(looking.found_in(place, entries=entries))
        elif not entries:
            print("Nothing waits.")
        else:
            rows = [
                [e["priority"], _waits(e), f"{e['method']} {e['callback']}", e["url"]]
                for e in map(_flat, entries)
            ]
            print_table(("priority", "waits", "request", "URL"), rows, numbers=["priority"])
        return DONE


def _entry(found: Upcoming, place: Place) -> dict[str, Any]:
    from scrapy_dq.codec.shown import shown

    return {
        "id": found.entry_id.hex(),
        "where": found.where,
        "wait_s": found.wait_s,
        "partition": None if found.partition == _FED else found.partition,
        "attempts": found.attempts,
        "request": shown(found.payload, place.config.max_entry_bytes),
    }


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    request = entry["request"]
    return entry | {
        "priority": request.get("priority", ""),
        "method": request.get("method", ""),
        "callback": request.get("callback") or ("parse" if "url" in request else ""),
        "url": title_of(request),
    }


def _waits(entry: dict[str, Any]) -> str:
    from scrapy_dq.inspection.words import span

    if entry["where"] == "saturated":
        return "for a lease or budget"
    return span(entry["wait_s"]) if entry["wait_s"] else ""
