"""`scrapy dq move`: move a crawl into another Redis, order, kind of seen or number of shards."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from scrapy.settings import Settings

from scrapy_dq.codec.shown import priority_of
from scrapy_dq.commands import alone, looking
from scrapy_dq.commands.input.asking import go_on
from scrapy_dq.commands.output.display import ProgressBar, print_found
from scrapy_dq.commands.subcommand import DONE, Subcommand
from scrapy_dq.frontier.admin.liveness import need_nobody
from scrapy_dq.frontier.archive.move import BETWEEN, Moved, Mover
from scrapy_dq.frontier.archive.parts import Shape
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME, MOST_SHARDS
from scrapy_dq.frontier.model import Order, Seen
from scrapy_dq.frontier.wire import SETTING_OF_SEEN
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.reclaim import Reclaimer
from scrapy_dq.inspection.place import Place
from scrapy_dq.settings import Config

_CONTINUE = "If it has begun to move, no worker can join until the same command is complete"
_PLACE_SETTINGS = ("REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_PARAMS")


class Move(Subcommand):
    """Move a crawl into another Redis, DQ_SHARDS, DQ_SEEN or DQ_ORDER.

    Moves a crawl into another Redis (--to), or gives it another number of shards, kind of seen or order:
    from the options, or else from the settings. Needs memory for a second copy of it. Refuses while a worker
    is alive. If it is interrupted or killed, it loses and doubles nothing: the same command completes it, and
    no worker can join before that.
    """

    name = "move"
    arguments = "[<spider>]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument("--to", metavar="URL", default="", help="into this Redis, as in REDIS_URL")
        parser.add_argument(
            "--shards", type=looking.whole(1, MOST_SHARDS), metavar="N",
            help=f"the number of shards, 1 to {MOST_SHARDS:,} (default: DQ_SHARDS)",
        )  # fmt: skip
        parser.add_argument(
            "--seen", choices=[kind.value for kind in Seen],
            help="how to store what was seen (default: by DQ_SEEN and DQ_SEEN_TTL)",
        )  # fmt: skip
        parser.add_argument(
            "--order", choices=[order.value for order in Order],
            help="the order in which requests are served (default: DQ_ORDER)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with ExitStack() as stack:
            place = target = stack.enter_context(looking.place_of(settings, options))
            if options.to:
                there = settings.copy()
                for name in _PLACE_SETTINGS:
                    there.set(name, None, "cmdline")
                there.set("REDIS_URL", options.to, "cmdline")
                target = stack.enter_context(looking.opened(looking.config_named(there, options)))
            config = place.config
            wanted = Shape(
                Order(options.order or config.order), Seen(options.seen or config.seen_kind),
                options.shards or config.shards,
            )  # fmt: skip
            with ProgressBar() as bar, alone.continued(_CONTINUE):
                done = asyncio.run(_moved(place, target, wanted, bar))
        found = {
            "crawl": place.crawl, "redis": target.target, "from": place.target, "requests": done.entries,
            "fingerprints": done.tokens, "order": done.now.order.value, "seen": done.now.seen.value,
            "shards": done.now.shards, "doubts": done.doubts,
        }  # fmt: skip
        if done.now == done.was and not options.to:
            print_found(found, options.json, (), [f"Nothing is to be done: it is {done.now}."])
            return DONE
        rows = [("requests", done.entries), ("fingerprints", done.tokens)] if done.was else ()
        lines = [*_advice(done, wanted, config, target), go_on(options)]
        print_found(found, options.json, rows, lines)
        return DONE


async def _moved(place: Place, target: Place, wanted: Shape, bar: ProgressBar) -> Moved:
    config = place.config

    async def at_rest(frontiers: Sequence[Frontier], epoch: str, run: int) -> None:
        async def reclaim(frontier: Frontier) -> None:
            dead: dict[str, int | None] = {}
            refused = ": nothing was moved. Stop all workers first"
            await need_nobody(frontier, config.worker_ttl_s, "move", refused, dead)
            reclaimer = Reclaimer(frontier, own_identity(), config.max_attempts, lambda count: None)
            for worker_id in sorted(dead):
                await reclaimer.reclaim(worker_id, epoch, run, "no worker is alive", gone=True)

        await alone.announce_wait(frontiers[HOME], config.worker_ttl_s)
        await asyncio.gather(*map(reclaim, frontiers))

    mover = Mover(
        wanted,
        lambda payload: priority_of(payload, config.max_entry_bytes), at_rest,
        lambda total: bar.begin("entries", total), bar.advance,
    )  # fmt: skip
    async with alone.connected(config) as source:
        if target is not place:
            async with alone.connected(target.config) as there:
                return await mover.elsewhere(source, there, target.target)
        async with alone.connected(replace(config, crawl=config.crawl + BETWEEN)) as between:
            return await mover.within(source, between)


def _advice(done: Moved, wanted: Shape, config: Config, target: Place) -> Iterator[str]:
    was = f"It was {done.was}, and is now" if done.was else "An earlier command has moved it. It is now"
    yield f"{was} {done.now}."
    if done.now != wanted:
        yield f"It was begun like that. For {wanted}: run this again."
    for doubt in done.doubts:
        yield f"It is not certain that it is on disk: {doubt}."
    settings = {
        f"REDIS_URL for {target.target}": target.config is not config,
        f"DQ_SHARDS = {done.now.shards}": done.now.shards != config.shards,
        SETTING_OF_SEEN[done.now.seen]: done.now.seen is not config.seen_kind,
        f"DQ_ORDER = {done.now.order.value!r}": done.now.order is not config.order,
    }
    if given := [setting for setting, differs in settings.items() if differs]:
        yield f"Before you crawl, set {', '.join(given)}."
    if config.flush_on_start:
        yield "SCHEDULER_FLUSH_ON_START is set: the next crawl would delete what was moved. Unset it."
