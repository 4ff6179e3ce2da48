"""`scrapy dq export`: write a whole crawl into a file."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import NamedTuple

from scrapy.settings import Settings

from scrapy_dq.codec.shown import shown
from scrapy_dq.commands import alone, looking
from scrapy_dq.commands.output.display import ProgressBar, print_found
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.exports.files import STANDARD_OUTPUT, BadExport, ExportWriter, created
from scrapy_dq.frontier.admin.liveness import need_nobody
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.dump import dump
from scrapy_dq.frontier.archive.header import header_of, standing
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Hold
from scrapy_dq.inspection.entries import title_of
from scrapy_dq.inspection.place import Place
from scrapy_dq.text import printable

LONGEST_URL = 10_000


class _Written(NamedTuple):
    """What was written; *missing*: the crawl counts so many requests more."""

    entries: int
    tokens: int
    missing: int


class ExportCrawl(Subcommand):
    """Write a crawl into a file.

    Writes a crawl into a file, as JSON Lines: waiting and delayed requests, failed ones and dead letters,
    what was seen, limits. `scrapy dq import` makes a crawl of it, in another Redis, order, kind of seen or
    number of shards. The crawl must be paused, or have no live worker; it is not changed.
    """

    name = "export"
    arguments = "[<spider>] <file>"
    words = "words"
    flags = (
        ("--seen-only", "only the fingerprints, for a new crawl of other pages"),
        ("--urls", "only the URLs of all requests, one per line, for people; not to be imported"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "words", nargs="+", metavar="<spider> <file>",
            help="the name of the spider; the file: - for standard output; .zst at its end: compressed",
        )  # fmt: skip
        looking.add_common_options(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        name = looking.file_after_spider(options)
        if options.urls and options.seen_only:
            raise CommandError("what was seen is kept without URLs: --urls or --seen-only, not both")
        with looking.place_of(settings, options) as place, ProgressBar() as bar:
            overview = place.overview(most_members=0)
            if overview.unreachable:
                names = ", ".join(map(str, overview.unreachable))
                raise CommandError(f"shard {names} does not answer: nothing was written")
            if overview.phase == "finished" and not (options.urls or options.seen_only):
                raise CommandError(
                    f"crawl {place.crawl!r} has finished: nothing waits. --seen-only exports what it has seen"
                )
            try:
                done = alone.with_frontiers(
                    place, lambda frontiers: _export(frontiers, place, overview, name, options, bar)
                )
            except BadExport as error:
                raise CommandError(str(error)) from error
        if name != STANDARD_OUTPUT:
            found = {
                "crawl": place.crawl, "redis": place.target, "file": name, "entries": done.entries,
                "fingerprints": done.tokens,
            }  # fmt: skip
            rows = [("requests", done.entries), *([] if options.urls else [("fingerprints", done.tokens)])]
            print_found(found, options.json, rows, [f"{os.path.getsize(name):,} bytes in {name}"])
        if done.missing > 0:
            print(
                f"scrapy dq export: the crawl counts {done.missing:,} more, which are in no index. Start a "
                "worker: it finds what is there. Then export again",
                file=sys.stderr,
            )
        return DONE


async def _export(
    frontiers: list[Frontier], place: Place, overview: Overview, name: str, options: argparse.Namespace,
    bar: ProgressBar,
) -> _Written:  # fmt: skip
    if options.urls:
        return await _urls(frontiers, place, name, bar)
    if overview.hold is Hold.NONE:
        ttl_s = place.config.worker_ttl_s
        refused = ": nothing was written. Pause the crawl first (`scrapy dq pause --wait`), or stop it"
        await alone.announce_wait(frontiers[HOME], ttl_s)
        await need_nobody(frontiers[HOME], ttl_s, "export", refused, {})
    before = await standing(frontiers)
    header, kinds = await header_of(frontiers), list(parts.KINDS)
    if options.seen_only:
        kept = {each: header.kept[each] for each in ("keep_seen",) if each in header.kept}
        header = replace(header, entries=0, run=0, done=0, failed=0, gone=0, kept=kept)
        kinds = [parts.SEEN, parts.ADOPTED]
    bar.begin("entries", header.entries + header.tokens)
    with created(name) as file:
        writer = ExportWriter(file, header)
        async for part in dump(frontiers, header, kinds):
            writer.write(part)
            if part.kind == parts.SEEN or part.kind in parts.ENTRIES:
                bar.advance(len(part.items))
        if await standing(frontiers) != before:
            raise CommandError(
                f"crawl {place.crawl!r} has changed meanwhile: nothing was written. If it is on hold, wait "
                "until its workers have ended what they had begun: `scrapy dq pause --wait`"
            )
        writer.end()
    return _Written(writer.entries, writer.tokens, header.entries - writer.entries)


async def _urls(frontiers: list[Frontier], place: Place, name: str, bar: ProgressBar) -> _Written:
    header, count = await header_of(frontiers), 0
    bar.begin("entries", header.entries)
    with created(name) as file:
        async for part in dump(frontiers, header, parts.ENTRIES):
            urls = [title_of(shown(each.payload, place.config.max_entry_bytes)) for each in part.items]
            # Printable: whoever feeds start payloads decides what these are.
            lines = (f"{printable(url, LONGEST_URL)}\n" for url in urls)
            file.write("".join(lines).encode("ascii", "backslashreplace"))
            count += len(urls)
            bar.advance(len(urls))
    return _Written(count, 0, header.entries - count)
