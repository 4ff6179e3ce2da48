"""`scrapy dq reshard`: change the number of shards of a crawl (DQ_SHARDS)."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from scrapy.settings import Settings

from scrapy_dq.commands import alone, looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.frontier.keys import MOST_SHARDS

if TYPE_CHECKING:
    from scrapy_dq.commands.output.display import ProgressBar
    from scrapy_dq.frontier.admin.overview import Overview
    from scrapy_dq.frontier.frontier import Frontier
    from scrapy_dq.frontier.resharding.reshard import Resharded
    from scrapy_dq.inspection.place import Place


_CONTINUE = "If it has begun to move, no worker can join until the same command (--to {}) is complete"


class Reshard(Subcommand):
    """Moves a crawl at rest into another number of shards; its setting is DQ_SHARDS."""

    name = "reshard"
    arguments = "[<spider>] --to N"
    summary = "move a crawl into another number of shards (DQ_SHARDS)"
    description = (
        "Moves everything of a crawl into another number of shards: waiting and delayed requests, what was "
        "seen, failed requests, dead letters, limits. Refuses while a worker is alive. Nothing is lost if it "
        "is interrupted or killed: the same command continues, and until it is complete no worker can join."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        parser.add_argument(
            "--to", type=_shards, required=True, metavar="N", help=f"the new number: 1 to {MOST_SHARDS:,}"
        )

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import ProgressBar, print_json, print_rows

        to: int = options.to
        with looking.place_of(settings, options) as place:
            overview = place.overview(most_members=0)
            if overview.unreachable:
                names = ", ".join(map(str, overview.unreachable))
                raise CommandError(f"shard {names} does not answer: nothing was moved")
            with ProgressBar() as bar:
                census = overview.census
                bar.begin("entries", census.waiting + census.delayed + census.seen)
                with alone.continued(_CONTINUE.format(to)):
                    done = asyncio.run(
                        alone.with_frontiers(
                            place, lambda frontiers: _moved(frontiers, place, overview, to, bar),
                            shards=max(len(place.shards), to),
                        )
                    )  # fmt: skip
        if options.json:
            print_json(
                {
                    "crawl": place.crawl, "redis": place.target, "from": done.before, "to": to,
                    "moved": done.entries, "copied": done.tokens, "doubts": done.doubts,
                }
            )  # fmt: skip
            return DONE
        print(f"Crawl {place.crawl!r} at {place.target}")
        if done.before == to:
            print(f"It has {to} shard{'s' * (to > 1)} already.")
        else:
            print_rows([("requests moved", done.entries), ("tokens copied", done.tokens)])
            print(f"It had {done.before} shard{'s' * (done.before > 1)}, and has {to} now.")
        for doubt in done.doubts:
            print(f"It is not certain that what was moved is on disk: {doubt}.")
        if to != place.config.shards:
            print(f"Set DQ_SHARDS = {to} before you crawl: a worker with {place.config.shards} is refused.")
        return DONE


async def _moved(
    frontiers: list[Frontier], place: Place, found: Overview, to: int, bar: ProgressBar
) -> Resharded:
    """Reclaim the leases of dead workers, and move the crawl; raise FrontierRefused if a worker is alive."""
    from scrapy_dq.frontier.admin.flush import need_nobody
    from scrapy_dq.frontier.keys import HOME
    from scrapy_dq.frontier.resharding.reshard import reshard
    from scrapy_dq.frontier.worker.identity import own_identity
    from scrapy_dq.frontier.worker.reclaim import Reclaimer

    def refused(crawl: str, worker_id: str) -> str:
        return f"worker {worker_id} of crawl {crawl!r} is alive: nothing was moved. Stop all workers first"

    async def reclaim(frontier: Frontier) -> None:
        dead: dict[str, int | None] = {}
        await need_nobody(frontier, place.config.worker_ttl_s, "reshard", refused, dead)
        reclaimer = Reclaimer(frontier, own_identity(), place.config.max_attempts, lambda count: None)
        for worker_id in sorted(dead):
            await reclaimer.reclaim(worker_id, found.epoch, found.run, "no worker is alive", gone=True)

    await alone.announce_wait(frontiers[HOME], place.config.worker_ttl_s)
    await asyncio.gather(*map(reclaim, frontiers))
    return await reshard(frontiers, to, bar.advance)


def _shards(text: str) -> int:
    if not (text.isdigit() and len(text) < 6 and 1 <= int(text) <= MOST_SHARDS):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {MOST_SHARDS}, not {text!r}")
    return int(text)
