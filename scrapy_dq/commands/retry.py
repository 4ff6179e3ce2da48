"""`scrapy dq retry`: put failed requests and dead letters back into the backlog."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from scrapy.settings import Settings

from scrapy_dq.codec.shown import url_of
from scrapy_dq.commands import common
from scrapy_dq.commands.common import ENTRY_ID
from scrapy_dq.commands.input import confirm
from scrapy_dq.commands.output.display import ProgressBar, print_json
from scrapy_dq.commands.subcommand import DONE, FAILED, Subcommand, WrongUsage
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.admin.retry import Retried, count_kept, retry
from scrapy_dq.frontier.records import Entry
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection.snapshot import maybe_alive
from scrapy_dq.inspection.words import named as named_shards
from scrapy_dq.text import count_of, printable

LONGEST_LABEL = 2000
"""Number of characters to which the scheduler cuts the URLs that it stores as labels."""


class Retry(Subcommand):
    """Retry failed requests and dead letters.

    Puts failed requests and dead letters back at their old place in the backlog, and resets their attempts.
    Select some by id, URL or options, or take --all.
    """

    name = "retry"
    arguments = "[<spider>] [<id> | <URL> ...]"
    operands = "ids, as `failed` and `dead` show them, and whole URLs"
    flags = (
        ("--failed", "failed requests only"),
        ("--dead", "dead letters only"),
        ("--all", "retry all stored ones, after a question"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--site", metavar="HOST", help="only requests of this site")
        parser.add_argument(
            "--match", action="append", default=[], metavar="GLOB",
            help="only whole URLs that match; * matches any text (may be repeated)",
        )  # fmt: skip
        parser.add_argument("--reason", metavar="TEXT", help="only requests whose reason contains TEXT")
        confirm.add_yes(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        noun = "an id (24 hexadecimal digits) or a URL; --site names a site"
        named = common.words_after_spider(options, noun, _is_name, sys.maxsize)
        selects = named or options.match or options.reason or options.site is not None
        if options.all == bool(selects):
            raise WrongUsage(
                "select some with ids, URLs, --site, --match or --reason, or all with --all; not both"
            )
        with common.place_of(settings, options) as place:
            choice = _Choice(named, options, place.config.max_entry_bytes)
            overview = place.overview()
            failed, dead = count_kept(place.shards, place.crawl)
            failed, dead = failed * choice.of_failed, dead * choice.of_dead
            if options.all and (failed or dead):
                where = f"the backlog of crawl {place.crawl!r} at {place.target}"
                confirm.say(f"To {where}: {_both(failed, dead)}.", options)
                confirm.require_consent("Continue?", options)
            with ProgressBar() as bar:
                bar.begin("records looked at", failed + dead)
                found = retry(
                    place.shards, place.crawl, overview, moved=bar.advance,
                    failed=choice.wants if choice.of_failed else None,
                    dead=choice.wants if choice.of_dead else None,
                    by=own_name(),
                )  # fmt: skip
            working = bool(maybe_alive(place.overview()))  # read again: workers leave when a run ends
        wanted = named if options.site is None else [*named, options.site]
        missing = [name for name in wanted if name not in choice.found]
        if options.json:
            done = {"failed": found.failed, "dead": found.dead, "left": found.left, "missing": missing}
            print_json(common.found_in(place, **done, unreachable_shards=list(found.unreachable)))
        else:
            for line in _result(found, overview, working, options):
                print(line)
            if missing:
                # The user may have copied the names, with control characters, from a page or a log.
                names = printable(" ".join(missing), sys.maxsize)
                print(f"Not among the failed or dead: {names}", file=sys.stderr)
        if found.unreachable:
            # Also with --json: these shards may have selected records.
            print(
                f"scrapy dq retry: no answer from {named_shards(found.unreachable)}: selected "
                f"requests there may not have been retried. Run this again later",
                file=sys.stderr,
            )
        return FAILED if missing or found.left or found.unreachable else DONE


class _Choice:
    """The records that the command line selects."""

    def __init__(self, named: Sequence[str], options: argparse.Namespace, max_bytes: int) -> None:
        self.of_failed = options.failed or not options.dead
        self.of_dead = options.dead or not options.failed
        self.found: set[str] = set()
        """The ids, URLs and site from the command line for which a record was found."""
        self._named = frozenset(named)
        self._options = options
        self._partitions = common.partitions_of_site(options.site)
        self._max_bytes = max_bytes

    def wants(self, record: Entry) -> bool:
        options = self._options
        if self._partitions is not None:
            if record.partition not in self._partitions:
                return False
            self.found.add(options.site)
        if options.reason and options.reason.lower() not in record.reason.lower():
            return False
        if not (self._named or options.match):
            return True
        entry_id, url = record.entry_id.hex(), self._url_of(record)
        names = self._named & {entry_id, url}
        self.found |= names
        return bool(names) or any(fnmatchcase(url, glob) for glob in options.match)

    def _url_of(self, record: Entry) -> str:
        if record.label and len(record.label) < LONGEST_LABEL:
            return record.label
        # The URL of an undecodable payload is unknown, so only the entry's id selects it.
        return url_of(record.payload, self._max_bytes)


def _is_name(word: str) -> bool:
    return ENTRY_ID.fullmatch(word) is not None or "://" in word


def _both(failed: int, dead: int) -> str:
    counts = (failed, "failed request"), (dead, "dead letter")
    return " and ".join(count_of(count, name) for count, name in counts if count)


def _result(found: Retried, overview: Overview, working: bool, options: argparse.Namespace) -> Iterator[str]:
    if not (found.failed or found.dead or found.left):
        yield "Nothing to retry."
        return
    if found.failed or found.dead:
        yield f"Back in the backlog: {_both(found.failed, found.dead)}."
    if found.left:
        yield (
            f"{found.left:,} were not moved: each was removed already, was stored by another version, or has "
            f"the id of a moved request."
        )
    if working or not (found.failed or found.dead):
        return
    if overview.phase == "finished":
        yield "The run was finished and is open again; it still knows what it has seen."
    else:
        yield "No worker is alive."
    yield confirm.continue_hint(options)
