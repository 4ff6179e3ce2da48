"""`scrapy dq clear`: drop what waits of a site, forget what was seen, or delete whole crawls."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import closing

from scrapy.crawler import Crawler
from scrapy.settings import Settings

from scrapy_dq import scrapy_redis
from scrapy_dq.commands import looking
from scrapy_dq.commands.deletion import age, delete_crawl, delete_old_crawls
from scrapy_dq.commands.input import asking, reading
from scrapy_dq.commands.output.display import ProgressBar, print_found, print_json
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError, Subcommand, WrongUsage
from scrapy_dq.factory import codec_of
from scrapy_dq.frontier.admin.drop import drop, waiting_in
from scrapy_dq.frontier.admin.seen import MAX_FINGERPRINTS, forget
from scrapy_dq.frontier.model import fits_a_partition
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection.place import Place
from scrapy_dq.pushing.lines import BadLine, Written
from scrapy_dq.text import count_of, printable


class Clear(Subcommand):
    """Drop what waits of a site, forget what was seen, or delete a crawl.

    --site drops the requests of a site that wait or are delayed, also while workers crawl. They stay seen,
    so links to them are not followed again. Requests in flight, failed requests and dead letters stay.
    --seen makes the crawl forget that it has seen these requests: it crawls them when it finds them again,
    or when you push them. --all deletes everything that is stored of a crawl, and refuses while a worker is
    alive. --finished-before deletes every crawl that finished so long ago.
    """

    name = "clear"
    arguments = "[<spider>] (--site HOST | --seen [URL ...] | --all | --finished-before AGE)"
    flags = (
        ("--all", "delete the crawl"),
        ("--force", "with --all: even while workers are alive; they close with reason frontier_lost"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument("--site", metavar="HOST", help="drop what waits of this site")
        parser.add_argument(
            "--seen", nargs="*", metavar="URL", help="forget these URLs, or the requests of --file"
        )
        parser.add_argument(
            "--finished-before", type=age, metavar="AGE",
            help="delete crawls of this Redis whose last run has been finished for so long: 30d, 12h",
        )  # fmt: skip
        reading.add_file(parser)
        asking.add_yes(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        chosen = (options.site, options.seen, options.all or None, options.finished_before)
        if sum(each is not None for each in chosen) != 1:
            raise WrongUsage(
                "choose one: --site HOST (what waits of a site), --seen [URL ...] (what was seen), --all (a "
                "crawl), --finished-before AGE (old crawls)"
            )
        if options.force and not options.all:
            raise WrongUsage("--force belongs to --all")
        if (options.file or options.strict) and options.seen is None:
            raise WrongUsage("--file and --strict belong to --seen")
        if options.finished_before is not None:
            return delete_old_crawls(settings, options)
        if options.seen is not None:
            return _forget(settings, options)
        return delete_crawl(settings, options) if options.all else _drop(settings, options)


def _drop(settings: Settings, options: argparse.Namespace) -> int:
    """Drop what waits or is delayed of one site."""
    if not (options.site and fits_a_partition(options.site)):
        raise WrongUsage(f"--site {options.site[:100]!a}: that is not the name of a site")
    with looking.place_of(settings, options) as place:
        place.overview(most_members=0)
        partition, hint = looking.partition_named(place, options.site)
        if hint:
            raise CommandError(hint)
        count = waiting_in(place.shards, place.crawl, partition)
        about = f"{count_of(count, 'request')} of {printable(partition)}, and its delayed requests"
        asking.need_consent(f"Drop {about}?", options)
        with ProgressBar() as bar:
            bar.begin("requests", count)
            dropped = drop(place.shards, place.crawl, partition, own_name(), bar.advance)
        if dropped is None:
            raise CommandError("the crawl was deleted just now")
    if options.json:
        print_json({"crawl": place.crawl, "redis": place.target, "partition": partition, "dropped": dropped})
    else:
        print(f"{count_of(dropped, 'request')} of {printable(partition)} dropped.")
    return DONE


def _forget(settings: Settings, options: argparse.Namespace) -> int:
    """Forget that requests were seen. Method and body of a JSON line identify a request, with its URL."""
    crawler, config = reading.crawler_named(settings, options)
    lines = reading.Input("clear", options.seen, options, config)
    with closing(lines) as source, looking.opened(config) as place:
        place.overview()
        reading.need_fingerprinter(crawler, place)
        counts = asyncio.run(_forget_lines(place, crawler, source, strict=options.strict))
    rows = [("forgotten", counts["forgotten"]), ("not seen before", counts["not_seen"])]
    rows += [("invalid", counts["bad"])] if counts["bad"] else []
    print_found({"crawl": place.crawl, "redis": place.target} | counts, options.json, rows)
    return FAILED if counts["bad"] else DONE


async def _forget_lines(
    place: Place, crawler: Crawler, source: reading.Input, *, strict: bool
) -> dict[str, int]:
    """Forget the requests of all lines, and count them; blocks while Redis does it.

    Args:
        strict: stop at the first line that is not a request.
    """
    written = Written(codec_of(place.config, crawler))
    fingerprint = reading.fingerprinter_of(crawler).fingerprint
    counts = {"forgotten": 0, "not_seen": 0, "bad": 0}
    async for batch in source.batches():
        pairs = []
        for line in batch:
            try:
                request = written.request(line)
            except BadLine as error:
                counts["bad"] += 1
                source.say_bad(line.name, str(error))
                if strict:
                    break
                continue
            if request is not None:
                pairs.append((fingerprint(request), scrapy_redis.fingerprint(request)))
        for start in range(0, len(pairs), MAX_FINGERPRINTS):
            part = pairs[start : start + MAX_FINGERPRINTS]
            forgotten = forget(place.shards, place.crawl, part, own_name()) or 0
            counts["forgotten"] += forgotten
            counts["not_seen"] += len(part) - forgotten
        if strict and counts["bad"]:
            break
    return counts
