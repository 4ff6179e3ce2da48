"""`scrapy dq url`: all that a crawl knows of one URL."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.input import reading
from scrapy_dq.commands.subcommand import DONE, Subcommand, WrongUsage
from scrapy_dq.text import printable

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.control import PartitionLimits
    from scrapy_dq.frontier.admin.entries import Entry

MOST_LOOKED_AT = 1_000_000
MOST_FOUND = 20


class UrlOf(Subcommand):
    """Looks for a URL in all that a crawl stores."""

    name = "url"
    needs_project = True
    arguments = "<spider> <URL>"
    summary = "all that is known of a URL"
    description = (
        "Shows whether a spider's crawl has seen a URL, where its requests are (in flight, waiting, delayed, "
        "failed or dead), and what limits its partition. Nothing is changed."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("spider", metavar="<spider>", help="the name of the spider")
        parser.add_argument("url", metavar="<URL>", help="the URL; that of a GET without a body is meant")
        looking.add_common_options(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq import scrapy_redis
        from scrapy_dq.commands.output.display import ProgressBar, print_json
        from scrapy_dq.frontier.admin.control import limit
        from scrapy_dq.frontier.admin.entries import look_at_entries
        from scrapy_dq.frontier.admin.known import is_seen
        from scrapy_dq.inspection.found import details_of, record_of, title
        from scrapy_dq.scheduling.partitions import partition_without_downloader

        crawler, config = reading.crawler_named(settings, options)
        try:
            request = Request(options.url)
            fingerprint = reading.fingerprinter_of(crawler).fingerprint(request)
            apart = config.partition_by == "slot"
            partition = partition_without_downloader(request) if apart else b""
        except ValueError as error:
            raise WrongUsage(f"{options.url!r} is not a URL: {error}") from error
        wanted, found = _canonical(request.url), list[dict[str, Any]]()
        with looking.opened(config) as place, ProgressBar() as bar:
            census = place.overview().census
            reading.need_fingerprinter(crawler, place)
            known_as = scrapy_redis.fingerprint(request)
            seen = is_seen(place.shards, place.crawl, fingerprint, partition, known_as)

            def see(entry: Entry) -> bool:
                shown = title(entry, place)
                if shown == request.url or _canonical(shown) == wanted:
                    found.append(record_of(entry, place))
                return len(found) < MOST_FOUND

            bar.begin("entries", census.waiting + census.delayed + census.in_flight)
            looked = look_at_entries(
                place.shards, place.crawl, see, partition=partition if apart else None, most=MOST_LOOKED_AT,
                looked=bar.advance,
            )  # fmt: skip
            limits = limit(place.shards, place.crawl, partition.decode()) if apart else None
            now = place.now()
            looking.say_unanswered(place)
        if options.json:
            of = None if limits is None else {"name": partition.decode(), **asdict(limits)}
            print_json(
                {
                    "url": request.url, "fingerprint": fingerprint.hex(), "seen": seen, "partition": of,
                    "entries": found, "looked_at": looked.entries, "complete": looked.complete,
                }
            )  # fmt: skip
            return DONE
        rows = [("seen", "yes" if seen else "no")]
        if limits is not None:
            rows.append(("partition", f"{partition.decode()}: {_limited(limits)}"))
        rows += [(each["where"], details_of(each, now)) for each in found]
        if not found and looked.complete:
            rows.append(
                ("nowhere", "it is done, or was dropped" if seen else "it was not found, or only unfiltered")
            )
        for label, text in rows:
            print(f"{label:<10}  {printable(text, 500)}".rstrip())
        if not looked.complete:
            print(f"Looked at {looked.entries:,} entries; there are more")
        return DONE


def _canonical(url: str) -> str:
    from w3lib.url import canonicalize_url

    try:
        return canonicalize_url(url)
    except ValueError:  # something else, or http://[
        return ""


def _limited(limits: PartitionLimits) -> str:
    from scrapy_dq.inspection.words import span

    said = []
    if limits.delay_s:
        said.append(f"delay {limits.delay_s:g} s")
    if limits.concurrency:
        said.append(f"{limits.concurrency} at once")
    if limits.budget:
        said.append(f"{limits.spent:,} of a budget of {limits.budget:,} done")
    if limits.blocked_s:
        said.append(f"blocked for {span(limits.blocked_s)}")
    return ", ".join(said) or "no limits"
