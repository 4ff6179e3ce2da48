"""`scrapy dq seen convert`: change the kind of `seen` of a crawl."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from scrapy.settings import Settings

from scrapy_dq.commands import alone, looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.frontier.model import Seen
from scrapy_dq.inspection.place import Place

if TYPE_CHECKING:
    from scrapy_dq.frontier.frontier import Frontier


class SeenOf(Subcommand):
    """Changes the kind of `seen`; its settings are DQ_SEEN and DQ_SEEN_TTL."""

    name = "seen"
    arguments = "convert [<spider>]"
    summary = "store what was seen in another way (DQ_SEEN)"
    description = (
        "`seen convert` changes how a crawl stores what it has seen: exact or compact (DQ_SEEN), or expiring "
        "(DQ_SEEN_TTL). Nothing that was seen is forgotten. A compact one cannot be converted. Refuses while "
        "a worker is alive. If it is interrupted, the same command continues."
    )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", metavar="convert", choices=("convert",), help="the only action")
        looking.add_crawl_options(parser)
        parser.add_argument(
            "--to", choices=[kind.value for kind in Seen], default="",
            help="the new kind (default: that of the project's DQ_SEEN and DQ_SEEN_TTL)",
        )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import ProgressBar, print_json, print_rows
        from scrapy_dq.frontier.admin.convert import convert
        from scrapy_dq.frontier.admin.overview import described, peek_shard
        from scrapy_dq.frontier.wire import SETTING_OF_SEEN

        with looking.place_of(settings, options) as place:
            before, stored = place.overview(), described(place.client, place.crawl)["seen_kind"]
            wanted = place.config.seen_kind
            to = Seen(options.to) if options.to else wanted
            dead = asyncio.run(alone.with_frontiers(place, lambda frontiers: _nobody(frontiers, place)))
            left = before.census.seen
            with ProgressBar() as bar:
                bar.begin("fingerprints", left)
                try:
                    for (client, shard), gone in zip(place.shards, dead, strict=True):
                        before_it = peek_shard(client, shard).census.seen
                        for still in convert(client, shard, to, gone):
                            bar.advance(before_it - still)
                            left -= before_it - still
                            before_it = still
                except KeyboardInterrupt:
                    raise CommandError(
                        f"interrupted: {left:,} fingerprints are left, and until they are converted no "
                        f"worker can join. The same command continues"
                    ) from None
            after = place.overview().census.seen
        from_ = stored.partition(">")[0] or to.value
        if options.json:
            print_json(
                {"crawl": place.crawl, "redis": place.target, "from": from_, "to": to.value, "seen": after}
            )
            return DONE
        print(f"Crawl {place.crawl!r} at {place.target}")
        print_rows([("seen", after)])
        print(
            f"It is already {to.value}." if stored == to.value else f"It was {from_}, and is now {to.value}."
        )
        if to is not wanted:
            setting = SETTING_OF_SEEN[to]
            print(f"Set {setting} before you crawl: a worker with {wanted.value} is refused.")
        return DONE


async def _nobody(frontiers: list[Frontier], place: Place) -> list[list[str]]:
    """Return the ids of dead workers in each shard; raise FrontierRefused if one is alive."""
    from scrapy_dq.frontier.admin.flush import need_nobody
    from scrapy_dq.frontier.keys import HOME

    def refused(crawl: str, worker_id: str) -> str:
        return f"worker {worker_id} of crawl {crawl!r} is alive: nothing was changed. Stop all workers first"

    async def dead_of(frontier: Frontier) -> list[str]:
        dead: dict[str, int | None] = {}
        await need_nobody(frontier, place.config.worker_ttl_s, "seen convert", refused, dead)
        return sorted(dead)

    await alone.announce_wait(frontiers[HOME], place.config.worker_ttl_s)
    return await asyncio.gather(*map(dead_of, frontiers))
