"""`scrapy dq pause`, `drain`, `resume`, `stop`, `complete`: tell all workers of a crawl what to do."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, ClassVar

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand
from scrapy_dq.inspection.words import uncounted
from scrapy_dq.text import count_of

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.overview import Overview
    from scrapy_dq.frontier.model import Member

LOOK_S = 0.1


class Steering(Subcommand):
    """Sends one command to all workers, and can wait until all have obeyed it."""

    arguments = "[<spider>]"
    done: ClassVar[str]
    """The state of the crawl after that, for people."""
    awaited: ClassVar[str] = "nothing is in flight"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        if self.awaited:
            parser.add_argument(
                "--wait", nargs="?", type=_seconds, const=float("inf"), metavar="SECONDS",
                help=f"wait until {self.awaited}, at most SECONDS (default: as long as it takes)",
            )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json
        from scrapy_dq.frontier.admin.control import Word, steer
        from scrapy_dq.frontier.worker.identity import own_name

        with looking.place_of(settings, options) as place:
            before = place.overview()
            self.check(before)
            if before.phase != "finished" or before.members:
                steer(place.client, place.crawl, Word(self.name), own_name())
            wait_s = getattr(options, "wait", None)
            until = time.monotonic() + (wait_s or 0.0)
            found = place.overview()
            if not options.json:
                result = self.needless(before) or self.result(found)
                print(f"Crawl {place.crawl!r}: {result}", flush=True)
            said = _say_uncounted(found, [])
            while wait_s is not None and not self.obeyed(found) and time.monotonic() < until:
                time.sleep(LOOK_S)
                found = place.overview()
                said = _say_uncounted(found, said)
        obeyed = wait_s is None or self.obeyed(found)
        if options.json:
            print_json({
                "crawl": place.crawl, "phase": found.phase, "hold": found.hold.value, "obeyed": obeyed,
                "workers": len(found.members), "in_flight": found.census.in_flight,
                "unreachable_shards": list(found.unreachable), "apart_shards": list(found.apart),
            })  # fmt: skip
        elif wait_s is not None and obeyed:
            print(f"{self.awaited[0].upper()}{self.awaited[1:]}.")
        if not obeyed:
            missed = "".join(f"; {line}" for line in uncounted(found.unreachable, found.apart))
            raise CommandError(
                f"sent, but after {wait_s:g} s, {found.census.in_flight:,} are still in flight and "
                f"{count_of(len(found.members), 'worker')} still registered{missed}"
            )
        return DONE

    def check(self, found: Overview) -> None:
        """Raise CommandError if this command makes no sense now."""

    def needless(self, found: Overview) -> str:
        """Return why this command has no effect now; empty: it has."""
        return ""

    def result(self, found: Overview) -> str:
        """Return what this command has done, and to whom, for people."""
        return f"{self.done}. {self.recipients(found)}"

    def recipients(self, found: Overview) -> str:
        """Return how many workers get the command, and how many leases they hold, for people."""
        workers, in_flight = len(found.members), found.census.in_flight
        if not workers:
            return "No worker is registered."
        return f"{workers:,} worker{'s' * (workers > 1)}, {in_flight:,} in flight."

    def obeyed(self, found: Overview) -> bool:
        """Return whether all workers that are not dead have obeyed."""
        holds = any(member.in_flight for member in found.members if not _is_gone(member))
        return not (holds or found.unreachable)  # what is in flight there is unknown


class _Holding(Steering):
    def check(self, found: Overview) -> None:
        if found.phase == "finished":
            raise CommandError("the run is finished: there is nothing to pause or drain")


class Pause(_Holding):
    name = "pause"
    summary = "let all workers stop sending requests, until resume"
    description = (
        "All workers release the requests in their buffers, finish those in progress, and wait. New workers "
        "wait, too. `resume` continues the crawl."
    )
    done = "paused"


class Drain(_Holding):
    name = "drain"
    summary = "let all workers finish what they hold, and lease nothing more"
    description = (
        "All workers finish what they have leased, including their buffers, lease nothing more, and wait. "
        "`resume` continues the crawl; `stop` closes the workers."
    )
    done = "draining"


class Resume(Steering):
    name = "resume"
    summary = "continue a paused or draining crawl"
    description = "Continues a crawl that was paused or drained."
    done = "resumed"
    awaited = ""

    def needless(self, found: Overview) -> str:
        return "the run is finished: there is nothing to resume." if found.phase == "finished" else ""


class Stop(Steering):
    name = "stop"
    summary = "let all workers close gracefully"
    description = (
        "Closes all workers that are registered now, as SIGTERM would: each releases its buffer at once, and "
        "what is not finished after DQ_SHUTDOWN_GRACE. The crawl stays: workers that start later continue it."
    )
    done = "stopping"
    awaited = "all workers are gone"

    def needless(self, found: Overview) -> str:
        if found.phase != "finished" or found.members:
            return ""
        return "the run is finished: there is nothing to stop."

    def obeyed(self, found: Overview) -> bool:
        return all(_is_gone(member) for member in found.members)


class Complete(Steering):
    name = "complete"
    summary = "let a run end although a start() is incomplete"
    description = (
        "A run is not finished while a start() is incomplete (its worker was killed or stopped, or it "
        "raised) and none with the same arguments has completed. This lets the run end without the rest."
    )
    done = "will end without the rest"
    awaited = ""

    def needless(self, found: Overview) -> str:
        if found.phase == "finished":
            return "the run is finished: nothing is missing."
        if found.census.incomplete:
            return ""
        if dead := sum(map(_is_gone, found.members)):
            return f"{count_of(dead, 'dead worker')} not reclaimed yet: try again later."
        return "no start() is incomplete: nothing is missing."

    def result(self, found: Overview) -> str:
        return "finished without the rest." if found.phase == "finished" else super().result(found)


def _say_uncounted(found: Overview, said: list[str]) -> list[str]:
    """Say on standard error of which shards nothing is counted, if *said* was something else; return it."""
    lines = list(uncounted(found.unreachable, found.apart))
    for line in lines if lines != said else ():
        print(f"scrapy dq: {line}", file=sys.stderr, flush=True)
    return lines


def _is_gone(member: Member) -> bool:
    from scrapy_dq.frontier.worker.identity import certainly_dead, own_identity

    return member.fenced or certainly_dead(member.identity, own_identity())


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, not {text!r}")
    return seconds
