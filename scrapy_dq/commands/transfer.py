"""`scrapy dq export`, `import`, `move`: export a crawl to a file, import one, or move or convert a crawl."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.python import global_object_name

from scrapy_dq.codec.shown import priority_of, shown
from scrapy_dq.commands import common, exclusive
from scrapy_dq.commands.input.confirm import continue_hint
from scrapy_dq.commands.output.display import ProgressBar, print_found
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.exports.files import STANDARD_OUTPUT, ExportFile, ExportWriter, created
from scrapy_dq.frontier.admin.liveness import require_no_live_worker
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.archive import parts
from scrapy_dq.frontier.archive.dump import dump
from scrapy_dq.frontier.archive.header import change_marker, header_of
from scrapy_dq.frontier.archive.load import Loaded, load
from scrapy_dq.frontier.archive.move import BETWEEN, Moved, Mover
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME, MAX_SHARDS
from scrapy_dq.frontier.model import Hold, Order, Seen
from scrapy_dq.frontier.wire import SETTING_OF_SEEN
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.reclaim import Reclaimer
from scrapy_dq.inspection.entries import title_of
from scrapy_dq.inspection.place import Place, opened
from scrapy_dq.settings import Config
from scrapy_dq.text import printable

LONGEST_URL = 10_000
_CONTINUE_IMPORT = (
    "Until the same command is complete no worker can join; `scrapy dq clear --all` deletes the incomplete "
    "crawl"
)
_CONTINUE_MOVE = "If it has begun to move, no worker can join until the same command is complete"
_PLACE_SETTINGS = ("REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_PARAMS")


class _Written(NamedTuple):
    """How many entries and fingerprints were written, and how many of the counted requests were missing."""

    entries: int
    tokens: int
    missing: int


class ExportCrawl(Subcommand):
    """Write a crawl into a file.

    Writes a crawl as JSON Lines: waiting, delayed and failed requests, dead letters, seen fingerprints,
    limits. The crawl must be paused, or have no live worker; it does not change.
    """

    name = "export"
    arguments = "[<spider>] <file>"
    operands = "the file: - for standard output; .zst at its end: compressed"
    flags = (
        ("--seen-only", "only the fingerprints, for a new crawl of other pages"),
        ("--urls", "only the URLs, one per line; they cannot be imported"),
    )

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        name = _file_named(options)
        if options.urls and options.seen_only:
            raise CommandError("seen requests are stored without URLs: choose --urls or --seen-only")
        with common.place_of(settings, options) as place, ProgressBar() as bar:
            overview = place.overview(most_members=0)
            if overview.unreachable:
                names = ", ".join(map(str, overview.unreachable))
                raise CommandError(f"shard {names} does not answer: nothing was written")
            if overview.phase == "finished" and not (options.urls or options.seen_only):
                raise CommandError(
                    f"crawl {place.crawl!r} has finished: no request waits. "
                    "--seen-only exports the fingerprints"
                )
            done = exclusive.with_frontiers(
                place, lambda frontiers: _export(frontiers, place, overview, name, options, bar)
            )
        if name != STANDARD_OUTPUT:
            found = {
                "crawl": place.crawl, "redis": place.target, "file": name, "entries": done.entries,
                "fingerprints": done.tokens,
            }  # fmt: skip
            rows = [("requests", done.entries), *([] if options.urls else [("fingerprints", done.tokens)])]
            print_found(found, options.json, rows, [f"{os.path.getsize(name):,} bytes in {name}"])
        if done.missing > 0:
            print(
                f"scrapy dq export: the crawl counts {done.missing:,} more, which are in no list. Start a "
                "worker, which recovers all requests that still exist, and then export again",
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
        await exclusive.announce_wait(frontiers[HOME], ttl_s)
        await require_no_live_worker(frontiers[HOME], ttl_s, "export", refused, {})
    before = await change_marker(frontiers)
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
        if await change_marker(frontiers) != before:
            raise CommandError(
                f"crawl {place.crawl!r} has changed during the export: nothing was written. If it is on "
                "hold, wait until its workers have finished their pages: `scrapy dq pause --wait`"
            )
        writer.end()
    return _Written(writer.entries, writer.tokens, header.entries - writer.entries)


async def _urls(frontiers: list[Frontier], place: Place, name: str, bar: ProgressBar) -> _Written:
    header, count = await header_of(frontiers), 0
    bar.begin("entries", header.entries)
    with created(name) as file:
        async for part in dump(frontiers, header, parts.ENTRIES):
            urls = [title_of(shown(each.payload, place.config.max_entry_bytes)) for each in part.items]
            # Unprintable characters are replaced, because other programs choose the URLs of start payloads.
            lines = (f"{printable(url, LONGEST_URL)}\n" for url in urls)
            file.write("".join(lines).encode("ascii", "backslashreplace"))
            count += len(urls)
            bar.advance(len(urls))
    return _Written(count, 0, header.entries - count)


class ImportCrawl(Subcommand):
    """Import a crawl from a file.

    Makes a new crawl from a file of `scrapy dq export`, with the DQ_ORDER, DQ_SEEN and DQ_SHARDS of the
    settings. If the import is interrupted, run it again: no worker can join before it is complete.
    """

    name = "import"
    arguments = "[<spider>] <file>"
    operands = "the file"

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        name = _file_named(options)
        config, crawler = common.crawler_named(settings, options)
        with exclusive.continued(_CONTINUE_IMPORT):
            file = ExportFile(name)
            _refuse_other(file.header, config, crawler)
            with opened(config) as place, ProgressBar() as bar:
                bar.begin("entries", file.header.entries + file.header.tokens)
                shape = parts.Shape(config.order, config.seen_kind, config.shards)
                done = exclusive.with_frontiers(
                    place,
                    lambda frontiers: load(
                        frontiers, file.header, file.parts(), shape, progress=bar.advance,
                        priority_of=lambda payload: priority_of(payload, config.max_entry_bytes),
                    ),
                    shards=config.shards,
                )  # fmt: skip
        found = {
            "crawl": config.crawl, "redis": place.target, "file": name, "before": done.before,
            "entries": done.entries, "fingerprints": done.tokens, "doubts": done.doubts,
        }  # fmt: skip
        rows = [] if done.before else [("requests", done.entries), ("fingerprints", done.tokens)]
        print_found(
            found, options.json, rows, [*_advice_after_import(file, config, done), continue_hint(options)]
        )
        return DONE


def _refuse_other(header: parts.Header, config: Config, crawler: Crawler | None) -> None:
    """Refuse an exported crawl that workers could not join, or whose fingerprints they would not find.

    *crawler* is None if the command line names only the crawl.
    """
    fingerprinter = crawler and global_object_name(type(common.fingerprinter_of(crawler)))
    spider = crawler and global_object_name(type(crawler.spider))
    for setting, stored, own in (
        ("REQUEST_FINGERPRINTER_CLASS", header.fingerprinter, fingerprinter),
        ("spider class", header.spider, spider),
        ("DQ_PARTITION_BY", header.partition_by, config.partition_by),
    ):
        if stored and own and stored != own:
            raise CommandError(
                f"the crawl in the file has {setting} {stored!r}, this project {own!r}: no worker could "
                "join. Nothing was imported"
            )


def _advice_after_import(file: ExportFile, config: Config, done: Loaded) -> Iterator[str]:
    header = file.header
    if done.before:
        yield "This file was imported before."
    at = datetime.fromtimestamp(header.at_ms / 1000).strftime("%Y-%m-%d %H:%M")
    yield f"Exported on {at} from crawl {header.crawl!r}: {header.shape}."
    yield from _warnings(done.doubts, config, "imported")


class Move(Subcommand):
    """Move a crawl, or change its storage.

    Moves a crawl into another Redis, or changes its number of shards, storage of fingerprints or order. No
    worker may be alive, and Redis needs memory for a second copy. If the move is interrupted, run it again:
    nothing is lost, and no worker can join before it is complete.
    """

    name = "move"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--to", metavar="URL", default="", help="into this Redis, as in REDIS_URL")
        parser.add_argument(
            "--shards", type=common.whole(1, MAX_SHARDS), metavar="N",
            help=f"the number of shards, 1 to {MAX_SHARDS:,} (default: DQ_SHARDS)",
        )  # fmt: skip
        parser.add_argument(
            "--seen", choices=[kind.value for kind in Seen],
            help="how to store seen requests (default: by DQ_SEEN and DQ_SEEN_TTL)",
        )  # fmt: skip
        parser.add_argument(
            "--order", choices=[order.value for order in Order],
            help="the order of requests (default: DQ_ORDER)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with ExitStack() as stack:
            place = target = stack.enter_context(common.place_of(settings, options))
            if options.to:
                target_settings = settings.copy()
                for name in _PLACE_SETTINGS:
                    target_settings.set(name, None, "cmdline")
                target_settings.set("REDIS_URL", options.to, "cmdline")
                target = stack.enter_context(opened(common.config_named(target_settings, options)))
            config = place.config
            wanted = parts.Shape(
                Order(options.order or config.order), Seen(options.seen or config.seen_kind),
                options.shards or config.shards,
            )  # fmt: skip
            with ProgressBar() as bar, exclusive.continued(_CONTINUE_MOVE):
                done = asyncio.run(_moved(place, target, wanted, bar))
        found = {
            "crawl": place.crawl, "redis": target.target, "from": place.target, "requests": done.entries,
            "fingerprints": done.tokens, "order": done.now.order.value, "seen": done.now.seen.value,
            "shards": done.now.shards, "doubts": done.doubts,
        }  # fmt: skip
        if done.now == done.was and not options.to:
            print_found(found, options.json, (), [f"Nothing to do: the crawl is already {done.now}."])
            return DONE
        rows = [("requests", done.entries), ("fingerprints", done.tokens)] if done.was else ()
        lines = [*_advice_after_move(done, wanted, config, target), continue_hint(options)]
        print_found(found, options.json, rows, lines)
        return DONE


async def _moved(place: Place, target: Place, wanted: parts.Shape, bar: ProgressBar) -> Moved:
    config = place.config

    async def at_rest(frontiers: Sequence[Frontier], epoch: str, run: int) -> None:
        async def reclaim(frontier: Frontier) -> None:
            dead: dict[str, int | None] = {}
            refused = ": nothing was moved. Stop all workers first"
            await require_no_live_worker(frontier, config.worker_ttl_s, "move", refused, dead)
            reclaimer = Reclaimer(frontier, own_identity(), config.max_attempts, lambda count: None)
            for worker_id in sorted(dead):
                await reclaimer.reclaim(worker_id, epoch, run, "no worker is alive", gone=True)

        await exclusive.announce_wait(frontiers[HOME], config.worker_ttl_s)
        await asyncio.gather(*map(reclaim, frontiers))

    mover = Mover(
        wanted,
        lambda payload: priority_of(payload, config.max_entry_bytes), at_rest,
        lambda total: bar.begin("entries", total), bar.advance,
    )  # fmt: skip
    async with exclusive.connected(config) as source:
        if target is not place:
            async with exclusive.connected(target.config) as target_shard:
                return await mover.to_other_redis(source, target_shard, target.target)
        async with exclusive.connected(replace(config, crawl=config.crawl + BETWEEN)) as between:
            return await mover.in_same_redis(source, between)


def _advice_after_move(done: Moved, wanted: parts.Shape, config: Config, target: Place) -> Iterator[str]:
    was = (
        f"It was {done.was}, and is now"
        if done.was
        else "An earlier command has moved the crawl, which is now"
    )
    yield f"{was} {done.now}."
    if done.now != wanted:
        yield f"The interrupted move had these settings. To change to {wanted}, run this again."
    settings = {
        f"REDIS_URL for {target.target}": target.config is not config,
        f"DQ_SHARDS = {done.now.shards}": done.now.shards != config.shards,
        SETTING_OF_SEEN[done.now.seen]: done.now.seen is not config.seen_kind,
        f"DQ_ORDER = {done.now.order.value!r}": done.now.order is not config.order,
    }
    if given := [setting for setting, differs in settings.items() if differs]:
        yield f"Before you crawl, set {', '.join(given)}."
    yield from _warnings(done.doubts, config, "moved")


def _file_named(options: argparse.Namespace) -> str:
    """Set `options.spider`, and return the file name that follows the spider.

    Raises:
        WrongUsage: the command line names no file.
    """
    if not (names := common.words_after_spider(options, "a file")):
        raise WrongUsage("name a file after the spider")
    return names[0]


def _warnings(doubts: Sequence[str], config: Config, done: str) -> Iterator[str]:
    for doubt in doubts:
        yield f"It is not certain that the crawl is on disk: {doubt}."
    if config.flush_on_start:
        yield f"SCHEDULER_FLUSH_ON_START is set: the next crawl would delete what was {done}. Unset it."
