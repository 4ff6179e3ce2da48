"""`scrapy dq pause`, `drain`, `resume`, `stop`, `complete`, `limit`: tell all workers what to do."""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import asdict

from scrapy.settings import Settings

from scrapy_dq.commands import common
from scrapy_dq.commands.output.display import print_json, print_table
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand, WrongUsage
from scrapy_dq.frontier.admin.control import MAX_BLOCK_S, MAX_CONCURRENCY, MAX_DELAY_S, Command, limit, steer
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection.snapshot import maybe_alive
from scrapy_dq.inspection.words import span, uncounted
from scrapy_dq.text import count_of, printable

POLL_S = 0.1
MAX_WAIT_S = 31_536_000


class Steering(Subcommand):
    """Sends one command to all workers, and can wait until all have obeyed it."""

    done: str
    """The state of the crawl after the command, as it is shown to users."""
    awaited = "nothing is in flight"
    """The state that `--wait` waits for. If it is empty, the command has no option `--wait`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        if self.awaited:
            parser.add_argument(
                "--wait", nargs="?", type=common.seconds(0, MAX_WAIT_S), const=math.inf, metavar="SECONDS",
                help=f"wait until {self.awaited}, at most SECONDS (default: no limit)",
            )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        with common.place_of(settings, options) as place:
            before = place.overview()
            if self.name in ("pause", "drain") and before.phase == "finished":
                raise CommandError("the run is finished: there is nothing to pause or drain")
            if before.phase != "finished" or before.members:
                steer(place.client, place.crawl, Command(self.name), own_name())
            wait_s = getattr(options, "wait", None)
            until = time.monotonic() + (wait_s or 0.0)
            found = place.overview()
            if not options.json:
                result = self._needless(before) or self._result(found)
                print(f"Crawl {place.crawl!r}: {result}", flush=True)
            missed = list(uncounted(found.unreachable, found.apart))
            for line in missed:
                print(f"scrapy dq: {line}", file=sys.stderr, flush=True)
            while wait_s is not None and not self._obeyed(found) and time.monotonic() < until:
                time.sleep(POLL_S)
                found = place.overview()
        obeyed = wait_s is None or self._obeyed(found)
        if options.json:
            print_json({
                "crawl": place.crawl, "phase": found.phase, "hold": found.hold.value, "obeyed": obeyed,
                "workers": len(found.members), "in_flight": found.census.in_flight,
                "unreachable_shards": list(found.unreachable), "apart_shards": list(found.apart),
            })  # fmt: skip
        elif wait_s is not None and obeyed:
            print(f"{self.awaited[0].upper()}{self.awaited[1:]}.")
        if not obeyed:
            raise CommandError(
                f"sent, but after {wait_s:g} s, {found.census.in_flight:,} are still in flight and "
                + "; ".join([f"{count_of(len(found.members), 'worker')} still registered", *missed])
            )
        return DONE

    def _needless(self, found: Overview) -> str:
        """Return why this command has no effect now, or "" if it has an effect."""
        if found.phase == "finished":
            needless = not (self.name == "stop" and found.members)
            return f"the run is finished: there is nothing to {self.name}." if needless else ""
        if self.name != "complete" or found.census.incomplete:
            return ""
        if dead := len(found.members) - len(maybe_alive(found)):
            return f"{count_of(dead, 'dead worker')} not reclaimed yet: try again later."
        return "no start() is incomplete: nothing is missing."

    def _result(self, found: Overview) -> str:
        """Describe the effect of this command to the user, with the numbers of workers and leases."""
        workers, in_flight = len(found.members), found.census.in_flight
        if self.name == "complete" and found.phase == "finished":
            return "finished without the rest."
        if not workers:
            return f"{self.done}. No worker is registered."
        return f"{self.done}. {count_of(workers, 'worker')}, {in_flight:,} in flight."

    def _obeyed(self, found: Overview) -> bool:
        """Return whether all workers that are not dead have obeyed."""
        alive = maybe_alive(found)
        if self.name == "stop":
            return not alive
        # A shard that does not answer may have leases.
        return not (any(member.in_flight for member in alive) or found.unreachable)


class Pause(Steering):
    """Stop sending requests.

    All workers release their buffers, finish the requests in progress, and wait. New workers also wait.
    `resume` continues the crawl.
    """

    name, done = "pause", "paused"


class Drain(Steering):
    """Finish all leased requests.

    All workers finish the requests that they hold, including their buffers, lease no more, and wait. `resume`
    continues the crawl; `stop` closes the workers.
    """

    name, done = "drain", "draining"


class Resume(Steering):
    """Continue a paused or draining crawl.

    Continues a crawl that was paused or drained.
    """

    name, done, awaited = "resume", "resumed", ""


class Stop(Steering):
    """Close all workers.

    Closes all workers, as SIGTERM would. Each releases its buffer at once, and unfinished requests after
    DQ_SHUTDOWN_GRACE. Later workers continue the crawl.
    """

    name, done, awaited = "stop", "stopping", "all workers are gone"


class Complete(Steering):
    """End a run despite an incomplete start().

    Lets a run end although a start() is incomplete: its worker was killed or stopped, or it raised, and no
    start() with the same arguments has completed.
    """

    name, done, awaited = "complete", "the run will end without the missing start requests", ""


class Limit(Subcommand):
    """The limits of a site.

    Shows or changes the limits of a site, for all workers together. A change lasts until the run is finished,
    or a worker with different settings joins.
    """

    name = "limit"
    arguments = "[<spider>] --site HOST"
    flags = (("--default", "reset delay, concurrency and budget to the settings"),)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--site", required=True, metavar="HOST", help="the site, as `status` shows it")
        parser.add_argument(
            "--delay", type=common.seconds(0, MAX_DELAY_S), metavar="S",
            help="seconds between two requests; 0: no delay",
        )  # fmt: skip
        parser.add_argument(
            "--concurrency", type=common.whole(0, MAX_CONCURRENCY), metavar="N",
            help="requests at once; 0: no limit",
        )  # fmt: skip
        parser.add_argument(
            "--budget", type=common.whole(0, 1_000_000_000), metavar="N",
            help="maximum number of requests in the run, or per day; 0: no limit",
        )  # fmt: skip
        parser.add_argument(
            "--block", type=common.seconds(0.001, MAX_BLOCK_S), metavar="S",
            help="send it no requests for S seconds",
        )  # fmt: skip
        parser.add_argument("--unblock", dest="block", action="store_const", const=0.0, help="end a block")

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        own = {"delay_s": options.delay, "concurrency": options.concurrency, "budget": options.budget}
        if options.default:
            own = {name: -1 if value is None else value for name, value in own.items()}
        limits = own | {"block_s": options.block}
        with common.place_of(settings, options) as place:
            if place.overview().phase == "finished":
                raise CommandError("the run is finished: the next run uses the limits of the settings")
            partition, hint = common.partition_named(place, options.site)
            if hint and not any(value is not None for value in limits.values()):
                raise CommandError(hint)
            try:
                now = limit(place.shards, place.crawl, partition, by=own_name(), **limits)
            except ValueError as error:
                raise WrongUsage(str(error)) from error
            if now is None:
                raise place.no_such_crawl()
        if hint:
            print(f"scrapy dq limit: the limit is set, but {printable(hint)}", file=sys.stderr)
        if options.json:
            print_json({"partition": partition} | asdict(now))
        else:
            row = (
                f"{now.delay_s:g} s" if now.delay_s else "none",
                now.concurrency or "no limit",
                f"{now.spent:,} of {now.budget:,}" if now.budget else "any",
                f"for {span(math.ceil(now.blocked_s))}" if now.blocked_s else "no",
                partition or "(no name)",
            )
            print_table(("delay", "concurrency", "budget", "blocked", "partition"), [row])
        return DONE
