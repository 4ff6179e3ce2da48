"""`scrapy dq search`: find entries by their URL, wherever they are."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.entries import Entry

MOST_LOOKED_AT = 100_000
LONGEST_DETAILS = 60


class Search(Subcommand):
    """Reads copies of entries, and shows those that match."""

    name = "search"
    arguments = "[<spider>] <text>"
    words = "words"
    summary = "find requests by their URL"
    description = (
        "Finds requests whose URL has the text in it (* in it is any text): in flight, waiting, delayed, "
        "failed or dead. Nothing is leased or changed, and no code of the project is run. What is done is "
        "kept nowhere; what was seen is kept without URLs."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        from scrapy_dq.frontier.admin.entries import PLACES

        parser.add_argument(
            "words", nargs="+", metavar="<spider> <text>", help="the name of the spider; a part of the URL"
        )
        looking.add_common_options(parser)
        looking.add_count(parser, 20)
        parser.add_argument(
            "--skip", type=_number, default=0, metavar="N", help="leave out the first N that are found"
        )
        parser.add_argument(
            "--where", choices=[each.replace(" ", "-") for each in PLACES], action="append",
            help="look only there (may be repeated)",
        )  # fmt: skip
        looking.add_partition(parser, "only of ")
        parser.add_argument(
            "--most", type=_number, default=MOST_LOOKED_AT, metavar="N",
            help=f"look at no more entries (default: {MOST_LOOKED_AT:,})",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import ProgressBar, print_json, print_table
        from scrapy_dq.frontier.admin.entries import PLACES, look_at_entries
        from scrapy_dq.inspection.failures import title_of
        from scrapy_dq.inspection.found import details_of, matches, record_of, title

        options.spider, text = looking.spider_and("a part of the URL", options)
        matching, found, left_out = matches(text), list[dict[str, Any]](), [options.skip]
        with looking.place_of(settings, options) as place, ProgressBar() as bar:
            census = place.overview().census
            total = census.waiting + census.delayed + census.in_flight + census.failed + census.dead

            def see(entry: Entry) -> bool:
                if matching(title(entry, place)):
                    if left_out[0]:
                        left_out[0] -= 1
                    else:
                        found.append(record_of(entry, place))
                return len(found) < int(options.count)

            bar.begin("entries", min(total, options.most))
            looked = look_at_entries(
                place.shards, place.crawl, see, most=options.most, looked=bar.advance,
                where=tuple(each.replace("-", " ") for each in options.where or PLACES),
                partition=None if options.partition is None else options.partition.encode(),
            )  # fmt: skip
            now = place.now()
            looking.say_unanswered(place)
        if options.json:
            of_search = {"looked_at": looked.entries, "complete": looked.complete}
            print_json(looking.found_in(place, entries=found, **of_search))
            return DONE
        rows = [
            (each["where"], details_of(each, now)[:LONGEST_DETAILS], title_of(each["request"]))
            for each in found
        ]
        if rows:
            print_table(("where", "details", "URL"), rows)
        if len(found) == options.count:
            print(f"There may be more: --skip {options.skip + options.count}")
        elif not looked.complete:
            print(f"Looked at {looked.entries:,} of {total:,} entries: --most looks at more")
        elif not rows:
            print(f"Nothing was found among {looked.entries:,} entries.")
        return DONE


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}")
    return int(text)
