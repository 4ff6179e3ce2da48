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
from scrapy_dq.frontier.admin.liveness import need_nobody
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.errors import is_answer
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
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
        deletion = _Deletion(place, overview, options)
        deletion.check()
        # Not inside an event loop: there, Ctrl-C would not interrupt the question.
        _ask(place, overview, options)
        left = deletion.run()
    counts = {name: getattr(overview.census, name) for name in COUNTS}
    if options.json:
        print_json({"crawl": place.crawl, "redis": place.target, "deleted": counts, "left": left})
    elif not left:
        print(f"Crawl {place.crawl!r} is deleted.")
    if left:
        raise CommandError(_partly(place))
    return DONE


class _Deletion:
    """Deletes a crawl in two steps, between which the command may ask."""

    def __init__(self, place: Place, overview: Overview, options: argparse.Namespace) -> None:
        self._place = place
        self._options = options
        self._refused = _refused(place.crawl, len(overview.members) - 1, options)
        self._ttl_s = place.config.worker_ttl_s
        self._dead: dict[str, int | None] = {}

    def check(self) -> None:
        """Raise FrontierRefused if a worker is alive, unless --force is given."""

        async def check(frontiers: list[Frontier]) -> None:
            await alone.announce_wait(frontiers[HOME], self._ttl_s)
            await need_nobody(frontiers[HOME], self._ttl_s, "clear", self._refused, self._dead)

        if not self._options.force:
            asyncio.run(alone.with_frontiers(self._place, check))

    def run(self) -> bool:
        """Delete all shards; return whether a part of the seen set is left."""

        async def delete_home(home: Frontier) -> Flushed:
            if self._options.force:
                return await home.flush([], force=True)
            return await flush(home, self._ttl_s, "clear", self._refused, self._dead)

        async def delete() -> list[Flushed]:
            async with alone.connected(self._place.config) as of_shard:
                return await flush_all(delete_home, of_shard, len(self._place.shards))

        with alone.continued("The same command deletes what is left"):
            return any(each.left for each in asyncio.run(delete()))


def delete_old_crawls(settings: Settings, options: argparse.Namespace) -> int:
    """List the crawls that have been finished for long, ask, and delete each of them by its name."""
    if options.spider or options.crawl:
        raise WrongUsage("--finished-before is about all crawls: name neither a spider nor --crawl")
    deleted, kept = [], {}
    with looking.opened(project_config(settings), any_node=True) as place:
        old = list(finished_before(place, options.finished_before))
        for each in old:
            counts = ", ".join(f"{getattr(each.overview.census, name):,} {name}" for name in SETTLED)
            name = printable(each.place.crawl, 200)
            asking.say(f"  {name}: run {each.overview.run}, finished {when(each.ended)}; {counts}", options)
        if old:
            found = count_of(len(old), "crawl is", "crawls are")
            asking.say(f"{found} finished for so long at {place.target}.", options)
            asking.need_consent("Delete all that is stored of them?", options)
        else:
            asking.say(f"No crawl at {place.target} has been finished for so long.", options)
        for each in old:
            now = each.place.overview(hint=False)
            if (now.epoch, now.run, now.phase) != (each.overview.epoch, each.overview.run, "finished"):
                kept[each.place.crawl] = "it has begun again"
                continue
            deletion = _Deletion(each.place, now, options)
            try:
                deletion.check()
                left = deletion.run()
            except FrontierRefused as refusal:
                kept[each.place.crawl] = str(refusal)
                continue
            deleted.append(each.place.crawl)
            if left:
                kept[each.place.crawl] = _partly(each.place)
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
        left, unlinked = asyncio.run(alone.with_frontiers(place, _delete_rest, shards=shards))
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


def _refused(crawl: str, others: int, options: argparse.Namespace) -> str:
    more = f" (and {others:,} more {'is' if others == 1 else 'are'} registered)" if others > 0 else ""
    named = options.spider or f"--crawl {crawl}"
    return (
        f"{more}: nothing was deleted. `scrapy dq stop {named}` stops all workers; --force deletes the "
        f"crawl while they run"
    )


def _ask(place: Place, overview: Overview, options: argparse.Namespace) -> None:
    shown = [(name.replace("_", " "), getattr(overview.census, name)) for name in COUNTS]
    asking.say(f"Crawl {place.crawl!r} at {place.target}: {overview.phase}, run {overview.run}", options)
    asking.say(", ".join(f"{count:,} {name}" for name, count in shown), options)
    if options.force and overview.members:
        asking.say("Workers that are alive will close with reason frontier_lost.", options)
    asking.need_consent("Delete all of it?", options)
