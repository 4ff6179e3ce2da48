"""`scrapy dq clear --all` and `--finished-before`: delete crawls, and nothing else."""

from __future__ import annotations

import argparse
import asyncio
import re

from scrapy.settings import Settings

from scrapy_dq.commands import alone, looking
from scrapy_dq.commands.input import asking
from scrapy_dq.commands.output.display import print_json
from scrapy_dq.commands.subcommand import DONE, CommandError, WrongUsage
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.crawls import shards_left
from scrapy_dq.frontier.admin.flush import flush, flush_all, purge
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.errors import is_answer
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Census, Flushed, FrontierRefused
from scrapy_dq.inspection.crawls import finished_before
from scrapy_dq.inspection.place import NoSuchCrawl, Place, project_config
from scrapy_dq.inspection.words import when
from scrapy_dq.text import count_of, printable

COUNTS = ("workers", "waiting", "in_flight", "delayed", "seen", "failed", "dead")
SETTLED = ("done", "failed", "dead", "seen")


def delete_crawl(settings: Settings, options: argparse.Namespace) -> int:
    """Show what a crawl has, ask, and delete its keys, each by name."""
    with looking.place_of(settings, options) as place:
        overview = _overview(place, options)
        if overview is None:
            asking.say(f"The rest of crawl {place.crawl!r} is deleted.", options)
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
    """Delete all shards; return whether a part of the seen set is left.

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
        await alone.announce_wait(home, ttl_s)
        return await flush(home, ttl_s, "clear", refused)

    async def delete() -> list[Flushed]:
        async with alone.connected(place.config) as of_shard:
            return await flush_all(delete_home, of_shard, len(place.shards))

    with alone.continued("The same command deletes what is left"):
        return any(each.left for each in asyncio.run(delete()))


def delete_old_crawls(settings: Settings, options: argparse.Namespace) -> int:
    """List the crawls that have been finished for long, ask, and delete each of them by its name."""
    if options.spider or options.crawl:
        raise WrongUsage("--finished-before is about all crawls: name neither a spider nor --crawl")
    deleted, kept = [], {}
    with looking.opened(project_config(settings), any_node=True) as place:
        old = list(finished_before(place, options.finished_before))
        for there, seen in old:
            counts = ", ".join(f"{getattr(seen.census, name):,} {name}" for name in SETTLED)
            name = printable(there.crawl, 200)
            asking.say(f"  {name}: run {seen.run}, finished {when(seen.finished_at)}; {counts}", options)
        if old:
            found = count_of(len(old), "crawl is", "crawls are")
            asking.say(f"{found} finished for so long at {place.target}.", options)
            asking.need_consent("Delete all that is stored of them?", options)
        else:
            asking.say(f"No crawl at {place.target} has been finished for so long.", options)
        for there, seen in old:
            now = there.overview(hint=False)
            if (now.epoch, now.run, now.phase) != (seen.epoch, seen.run, "finished"):
                kept[there.crawl] = "it has begun again"
                continue
            try:
                if _delete(there, options):
                    kept[there.crawl] = _partly(there)
                deleted.append(there.crawl)
            except FrontierRefused as refusal:
                kept[there.crawl] = str(refusal)
    if options.json:
        print_json({"redis": place.target, "deleted": deleted, "kept": kept})
    elif deleted:
        print(f"{count_of(len(deleted), 'crawl is', 'crawls are')} deleted.")
    if kept:
        raise CommandError("; ".join(f"crawl {printable(name)!r}: {why}" for name, why in kept.items()))
    return DONE


def _partly(place: Place) -> str:
    return (
        f"crawl {place.crawl!r} is deleted, except a part of its seen set: "
        f"run this again to delete it, or the next run does it"
    )


def age(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([dh])", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"expected a number of days or hours, such as 30d or 12h, not {text!r}"
        )
    return int(found[1]) * {"d": 86_400.0, "h": 3_600.0}[found[2]]


def _overview(place: Place, options: argparse.Namespace) -> Overview | None:
    """Return the crawl's state; None: it was deleted before, or home was lost, and now also what was left."""
    try:
        return place.overview()
    except NoSuchCrawl:
        discarded = place.client.exists(keys.prefix(place.crawl) + "discarded")
        orphans = shards_left(place.nodes(), place.crawl)
        # Without the right to CLUSTER SLOTS, DQ_SHARDS names the shards.
        stored = place.shards.each(
            lambda client, shard: (shard.number, client.exists(keys.meta(shard))), strict=True
        )
        orphans |= {number for number, exists in stored if number and exists}
        if orphans:
            lost = f"Crawl {place.crawl!r} at {place.target} has lost its home shard"
            asking.say(f"{lost}; {count_of(len(orphans), 'shard is', 'shards are')} left", options)
            asking.need_consent("Delete all of it?", options)
        shards = max([len(place.shards), *(number + 1 for number in orphans)])
        left, unlinked = alone.with_frontiers(place, _delete_rest, shards=shards)
        if not (discarded or orphans or unlinked):
            raise
        if left:
            raise CommandError(
                f"of what an earlier clear left of crawl {place.crawl!r}, some is left after {SWEEP_S:g} s: "
                f"run this again"
            ) from None
        return None
    except Exception as error:
        if not (options.force and is_answer(error)):
            raise
        asking.say(f"It cannot be counted: {error}.", options)
        return Overview("open", "", 0, Census(), [])


async def _delete_rest(frontiers: list[Frontier]) -> tuple[bool, int]:
    """Return whether some of the seen set is left, and how many other keys were deleted."""
    for other in frontiers[1:]:
        await other.flush([], force=True)
    for frontier in frontiers:
        if await frontier.sweep(SWEEP_S):
            return True, 0
    return False, await purge(frontiers)


SWEEP_S = 60.0
"""How long `clear` deletes what an earlier one has left."""


def _ask(place: Place, overview: Overview, options: argparse.Namespace) -> None:
    shown = [(name.replace("_", " "), getattr(overview.census, name)) for name in COUNTS]
    asking.say(f"Crawl {place.crawl!r} at {place.target}: {overview.phase}, run {overview.run}", options)
    asking.say(", ".join(f"{count:,} {name}" for name, count in shown), options)
    if options.force and overview.members:
        asking.say("Workers that are alive will close with reason frontier_lost.", options)
    asking.need_consent("Delete all of it?", options)
