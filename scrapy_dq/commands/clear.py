"""`scrapy dq clear`: drop a site's waiting requests, forget seen requests, or delete whole crawls."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Collection
from contextlib import closing

from scrapy.crawler import Crawler
from scrapy.settings import Settings

from scrapy_dq import scrapy_redis
from scrapy_dq.commands import common, exclusive
from scrapy_dq.commands.input import confirm
from scrapy_dq.commands.output.display import ProgressBar, print_found, print_json
from scrapy_dq.commands.subcommand import DONE, FAILED, CommandError, Subcommand, WrongUsage
from scrapy_dq.factory import codec_of
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.crawls import shards_left
from scrapy_dq.frontier.admin.drop import drop, waiting_in
from scrapy_dq.frontier.admin.flush import flush, flush_all, purge
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.admin.seen import MAX_FINGERPRINTS, forget
from scrapy_dq.frontier.answers import Flushed
from scrapy_dq.frontier.errors import is_answer
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import Census, FrontierRefused, fits_partition
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection.crawls import finished_before
from scrapy_dq.inspection.place import NoSuchCrawl, Place, opened, project_config
from scrapy_dq.inspection.words import when
from scrapy_dq.pushing.lines import BadLine, Written
from scrapy_dq.text import count_of, printable

COUNTS = ("workers", "waiting", "in_flight", "delayed", "seen", "failed", "dead")
SETTLED = ("done", "failed", "dead", "seen")
SWEEP_S = 60.0
"""Maximum number of seconds, per shard, for which `clear` deletes keys that an earlier `clear` has left."""


class Clear(Subcommand):
    """Drop or forget requests, or delete a crawl.

    Dropped requests stay seen, so links to them are not followed again. Requests in flight, failed requests
    and dead letters are not dropped. The crawl fetches forgotten requests when it finds them again, or when
    you push them.
    """

    name = "clear"
    arguments = "[<spider>] (--site HOST | --seen [URL ...] | --all | --finished-before AGE)"
    flags = (("--force", "with --all: even if workers are alive; they close with reason frontier_lost"),)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--site", metavar="HOST", help="drop this site's waiting and delayed requests")
        parser.add_argument(
            "--seen", nargs="*", metavar="URL", help="forget these URLs, or the requests of --file"
        )
        parser.add_argument("--all", action="store_true", help="delete the crawl; no worker may be alive")
        parser.add_argument(
            "--finished-before", type=_age, metavar="AGE",
            help="delete crawls that finished this long ago: 30d, 12h",
        )  # fmt: skip
        common.add_file(parser)
        confirm.add_yes(parser)

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        chosen = (options.site, options.seen, options.all or None, options.finished_before)
        if sum(each is not None for each in chosen) != 1:
            raise WrongUsage(
                "choose one: --site HOST (the waiting requests of a site), --seen [URL ...] (stored "
                "fingerprints), --all (a crawl), --finished-before AGE (old crawls)"
            )
        if options.force and not options.all:
            raise WrongUsage("--force belongs to --all")
        if (options.file or options.strict) and options.seen is None:
            raise WrongUsage("--file and --strict belong to --seen")
        if options.finished_before is not None:
            return _delete_old_crawls(settings, options)
        if options.seen is not None:
            return _forget(settings, options)
        return _delete_crawl(settings, options) if options.all else _drop(settings, options)


def _drop(settings: Settings, options: argparse.Namespace) -> int:
    """Drop the waiting and delayed requests of one site."""
    if not (options.site and fits_partition(options.site)):
        raise WrongUsage(f"--site {options.site[:100]!a}: that is not the name of a site")
    with common.place_of(settings, options) as place:
        place.overview(most_members=0)
        partition, hint = common.partition_named(place, options.site)
        if hint:
            raise CommandError(hint)
        count = waiting_in(place.shards, place.crawl, partition)
        about = f"{count_of(count, 'request')} of {printable(partition)}, and its delayed requests"
        confirm.require_consent(f"Drop {about}?", options)
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
    """Forget that requests were seen. The URL, method and body in a JSON line identify the request."""
    crawler, config = common.spider_named(settings, options)
    lines = common.Input("clear", options.seen, options, config)
    with closing(lines) as source, opened(config) as place:
        place.overview()
        common.require_fingerprinter(crawler, place)
        counts = asyncio.run(_forget_lines(place, crawler, source, strict=options.strict))
    rows = [("forgotten", counts["forgotten"]), ("not seen before", counts["not_seen"])]
    rows += [("invalid", counts["bad"])] if counts["bad"] else []
    print_found({"crawl": place.crawl, "redis": place.target} | counts, options.json, rows)
    return FAILED if counts["bad"] else DONE


async def _forget_lines(
    place: Place, crawler: Crawler, source: common.Input, *, strict: bool
) -> dict[str, int]:
    """Forget the requests of all lines, and count them. This blocks the event loop while Redis works.

    Args:
        strict: stop at the first line that is not a request.
    """
    written = Written(codec_of(place.config, crawler))
    fingerprint = common.fingerprinter_of(crawler).fingerprint
    counts = {"forgotten": 0, "not_seen": 0, "bad": 0}
    async for batch in source.batches():
        pairs = []
        for line in batch:
            try:
                request = written.request(line)
            except BadLine as error:
                counts["bad"] += 1
                source.warn_invalid(line.name, str(error))
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


def _delete_crawl(settings: Settings, options: argparse.Namespace) -> int:
    """Show the crawl's counts, ask the user, and delete its keys, each by name."""
    with common.place_of(settings, options) as place:
        overview = _overview(place, options)
        if overview is None:
            confirm.say(f"The remains of crawl {place.crawl!r} are deleted.", options)
            return DONE
        _ask(place, overview, options)
        left = _delete(place, options)
    counts = {name: getattr(overview.census, name) for name in COUNTS}
    if options.json:
        print_json({"crawl": place.crawl, "redis": place.target, "deleted": counts, "left": left})
    elif not left:
        print(f"Crawl {place.crawl!r} is deleted.")
    if left:
        raise CommandError(_partly(place))
    return DONE


def _delete(place: Place, options: argparse.Namespace) -> bool:
    """Delete all shards; return whether a part of the seen set still exists.

    Raises:
        FrontierRefused: a worker is alive, and --force is not given; nothing was deleted.
    """
    ttl_s = place.config.worker_ttl_s
    refused = (
        f": nothing was deleted. `scrapy dq stop {options.spider or f'--crawl {place.crawl}'}` stops all "
        "workers; --force deletes the crawl while they run"
    )

    async def delete_home(home: Frontier) -> Flushed:
        if options.force:
            return await home.flush([], force=True)
        await exclusive.announce_wait(home, ttl_s)
        return await flush(home, ttl_s, "clear", refused)

    async def delete() -> list[Flushed]:
        async with exclusive.connected(place.config) as of_shard:
            return await flush_all(delete_home, of_shard, len(place.shards))

    with exclusive.continued("The same command deletes what is left"):
        return any(each.left for each in asyncio.run(delete()))


def _delete_old_crawls(settings: Settings, options: argparse.Namespace) -> int:
    """List the crawls that finished long ago, ask the user, and delete each by its name."""
    if options.spider or options.crawl:
        raise WrongUsage("--finished-before is about all crawls: name neither a spider nor --crawl")
    deleted, kept = [], {}
    with opened(project_config(settings), any_node=True) as place:
        old = list(finished_before(place, options.finished_before))
        for old_place, overview in old:
            counts = ", ".join(f"{getattr(overview.census, name):,} {name}" for name in SETTLED)
            name = printable(old_place.crawl, 200)
            confirm.say(
                f"  {name}: run {overview.run}, finished {when(overview.finished_at)}; {counts}", options
            )
        if old:
            found = count_of(len(old), "crawl is", "crawls are")
            confirm.say(f"{found} old enough at {place.target}.", options)
            confirm.require_consent("Delete all their data?", options)
        else:
            confirm.say(f"No finished crawl at {place.target} is old enough.", options)
        for old_place, overview in old:
            now = old_place.overview(hint=False)
            if (now.epoch, now.run, now.phase) != (overview.epoch, overview.run, "finished"):
                kept[old_place.crawl] = "a new run has begun"
                continue
            try:
                if _delete(old_place, options):
                    kept[old_place.crawl] = _partly(old_place)
                deleted.append(old_place.crawl)
            except FrontierRefused as refusal:
                kept[old_place.crawl] = str(refusal)
    if options.json:
        print_json({"redis": place.target, "deleted": deleted, "kept": kept})
    elif deleted:
        print(f"{count_of(len(deleted), 'crawl is', 'crawls are')} deleted.")
    if kept:
        raise CommandError("; ".join(f"crawl {printable(name)!r}: {reason}" for name, reason in kept.items()))
    return DONE


def _partly(place: Place) -> str:
    return (
        f"crawl {place.crawl!r} is deleted, except a part of its seen set: "
        f"run this again to delete it, or the next run does it"
    )


def _age(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([dh])", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"expected a number of days or hours, such as 30d or 12h, not {text!r}"
        )
    return int(found[1]) * {"d": 86_400.0, "h": 3_600.0}[found[2]]


def _overview(place: Place, options: argparse.Namespace) -> Overview | None:
    """Return the crawl's state. None means that only the rest of a crawl was there, which is now deleted."""
    try:
        return place.overview()
    except NoSuchCrawl:
        discarded = place.client.exists(keys.prefix(place.crawl) + "discarded")
        orphans = shards_left(place.nodes(), place.crawl)
        if orphans:
            lost = f"Crawl {place.crawl!r} at {place.target} has lost its home shard"
            confirm.say(f"{lost}; {count_of(len(orphans), 'shard is', 'shards are')} left", options)
            confirm.require_consent("Delete all of it?", options)
        left, unlinked = exclusive.with_frontiers(
            place, lambda frontiers: _delete_rest(frontiers, orphans),
            shards=max(len(place.shards), 1 + max(orphans, default=HOME)),
        )  # fmt: skip
        if not (discarded or orphans or unlinked):
            raise
        if left:
            raise CommandError(
                f"an earlier clear has left a part of crawl {place.crawl!r}, and some is left after "
                f"{SWEEP_S:g} s: run this again"
            ) from None
        return None
    except Exception as error:
        if not (options.force and is_answer(error)):
            raise
        confirm.say(f"The requests of the crawl cannot be counted: {error}.", options)
        return Overview("open", "", 0, Census(), [])


async def _delete_rest(frontiers: list[Frontier], orphans: Collection[int]) -> tuple[bool, int]:
    """Delete the keys that are left of a crawl.

    Returns:
        Whether a part of the seen set is still left, and the number of other keys that were deleted.
    """
    for number in orphans:
        await frontiers[number].flush([], force=True)
    for frontier in frontiers:
        if await frontier.sweep(SWEEP_S):
            return True, 0
    return False, await purge(frontiers)


def _ask(place: Place, overview: Overview, options: argparse.Namespace) -> None:
    shown = [(name.replace("_", " "), getattr(overview.census, name)) for name in COUNTS]
    confirm.say(f"Crawl {place.crawl!r} at {place.target}: {overview.phase}, run {overview.run}", options)
    confirm.say(", ".join(f"{count:,} {name}" for name, count in shown), options)
    if options.force and overview.members:
        confirm.say("Workers that are alive will close with reason frontier_lost.", options)
    confirm.require_consent("Delete all of it?", options)
