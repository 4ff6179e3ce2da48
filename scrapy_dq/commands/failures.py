"""`scrapy dq failed` and `scrapy dq dead`: requests that failed for good, as a list, or one in full."""

from __future__ import annotations

import argparse
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.input.again import named
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.inspection.failures import groups_of, read_failures, record_of
from scrapy_dq.inspection.place import Place
from scrapy_dq.inspection.words import unanswered
from scrapy_dq.text import count_of

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.overview import Dead, Failed

_ID = re.compile(r"[0-9a-f]{24}")
MOST_CAUSES = 20
"""Rows."""
MOST_ATTRIBUTES = 50
"""Rows that show one in full. A request has 13 attributes, and an entry that is none may have any number."""


class _Failures(Subcommand):
    """The common part of both."""

    arguments = "[<spider>] [<id>]"
    words = "words"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "words", nargs="*", metavar="<spider> <id>",
            help="the name of the spider; an id from the list, to show that one in full",
        )  # fmt: skip
        looking.add_common_options(parser)
        looking.add_count(parser, 20)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json

        options.spider, entry_id = _words(options.words, bool(options.crawl))
        with looking.place_of(settings, options) as place:
            census = place.overview().census
            if entry_id:
                found = self.read_one(place, bytes.fromhex(entry_id))
                if found is None:
                    missed = "".join(f" ({line})" for line in unanswered(place.shards.unreachable))
                    raise CommandError(f"the crawl {place.crawl!r} has no {self.of_one} {entry_id}{missed}")
            elif options.json:
                listed = [record_of(each, place) for each in self.read(place, options.count)]
            else:
                kept = read_failures(place, self.name, looking.MOST)
            one = record_of(found, place) if entry_id and found is not None else None
            looking.say_unanswered(place)
        if one is not None:
            print_json(one) if options.json else _print_one(one)
        elif options.json:
            total = getattr(census, self.name)
            print_json(looking.found_in(place, total=total, groups=groups_of(listed), entries=listed))
        else:
            again = f"scrapy dq retry {named(place.crawl, options)} --{self.name} --all"
            _print_list(kept, options.count, self.of_one, again)
        return DONE

    of_one: str

    @abstractmethod
    def read(self, place: Place, count: int) -> Sequence[Failed | Dead]:
        """Return at most *count* of them."""

    @abstractmethod
    def read_one(self, place: Place, entry_id: bytes) -> Failed | Dead | None:
        """Return the one with this id; None: there is none."""


class FailedRequests(_Failures):
    """Lists the requests that failed."""

    name = "failed"
    summary = "requests that failed for good"
    description = (
        "Counts the causes of the requests that failed for good (an exception in a callback, a page that "
        "could not be downloaded or ended with HTTP 500), and lists the newest 10,000 at most, each "
        "with the reason and the worker."
    )
    of_one = "failed request"

    def read(self, place: Place, count: int) -> Sequence[Failed | Dead]:
        from scrapy_dq.frontier.admin.overview import failed

        return failed(place.shards, place.crawl, count)

    def read_one(self, place: Place, entry_id: bytes) -> Failed | Dead | None:
        from scrapy_dq.frontier.admin.overview import failed_one

        return failed_one(place.shards, place.crawl, entry_id)


class DeadLetters(_Failures):
    """Lists the dead letters."""

    name = "dead"
    summary = "dead letters"
    description = (
        "Counts the causes of the dead letters of the run, and lists some: requests whose workers died too "
        "often, and entries that cannot be decoded or served. They are stored in no order: if there are more "
        "than -n, any of them are shown, the newest of these first."
    )
    of_one = "dead letter"

    def read(self, place: Place, count: int) -> Sequence[Failed | Dead]:
        from scrapy_dq.frontier.admin.overview import dead

        return dead(place.shards, place.crawl, count)

    def read_one(self, place: Place, entry_id: bytes) -> Failed | Dead | None:
        from scrapy_dq.frontier.admin.overview import dead_one

        return dead_one(place.shards, place.crawl, entry_id)


def _words(words: Sequence[str], named: bool) -> tuple[str, str]:
    """Return spider and id: with a crawl *named* by --crawl, the spider may be left out."""
    if len(words) > 2:
        raise WrongUsage(f"at most a spider and an id, not {len(words)} words")
    if named and len(words) == 1 and _ID.fullmatch(words[0]):
        return "", words[0]
    spider, entry_id = [*words, "", ""][:2]
    if entry_id and not _ID.fullmatch(entry_id):
        raise WrongUsage(f"{entry_id!r} is not an id: an id has 24 hexadecimal digits")
    return spider, entry_id


def _print_list(kept: dict[str, Any], count: int, of_one: str, again: str) -> None:
    from scrapy_dq.commands.output.display import print_table
    from scrapy_dq.inspection.words import when

    total, rows = kept["total"], kept["rows"][:count]
    shown = "" if len(rows) == total else f"; {len(rows):,} shown"
    print(f"{count_of(total, of_one)}{shown}.")
    if not rows:
        return
    if len(kept["rows"]) < total:
        print(f"\nOf {len(kept['rows']):,} of them:")
    causes = [(each["count"], each["host"], each["cause"]) for each in kept["groups"]]
    print_table(("count", "host", "cause"), causes[:MOST_CAUSES], numbers=("count",))
    if len(causes) > MOST_CAUSES:
        print(f"and {count_of(len(causes) - MOST_CAUSES, 'smaller group')}")
    print()
    print_table(
        ("id", "URL, reason, when"),
        [[each["id"], (each["url"], each["reason"], f"{when(each['at'])}, {each['by']}")] for each in rows],
    )
    print(f"\nTo run them again:\n  {again}")


def _print_one(one: dict[str, Any]) -> None:
    from scrapy_dq.commands.output.display import print_table
    from scrapy_dq.inspection.words import when

    top = {name: one[name] for name in ("id", "url", "reason", "worker", "attempts")} | {
        "when": when(one["at"])
    }
    rest = {f"request: {name}": value for name, value in one["request"].items()}
    rows = [[name, _text(value)] for name, value in (top | rest).items()]
    print_table(("what", "value"), rows, most=MOST_ATTRIBUTES)


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
