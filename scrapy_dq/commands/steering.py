"""`scrapy dq pause`, `drain`, `resume`, `stop`, `complete`: tell all workers of a crawl what to do."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, ClassVar

from scrapy.settings import Settings

from scrapy_dq.commands import looking
from scrapy_dq.commands.subcommand import DONE, CommandError, Subcommand

if TYPE_CHECKING:
    from scrapy_dq.frontier.admin.overview import Overview
    from scrapy_dq.frontier.model import Member

LOOK_S = 0.1


class Steering(Subcommand):
    """Says one word, and can wait until all have done it."""

    arguments = "[<spider>]"
    done: ClassVar[str]
    """What the crawl is then."""
    awaited: ClassVar[str] = "nothing is in flight"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        looking.add_crawl_options(parser)
        if self.awaited:
            parser.add_argument(
                "--wait", nargs="?", type=_seconds, const=float("inf"), metavar="SECONDS",
                help=f"wait until {self.awaited}, so long at most (default: as long as it takes)",
            )  # fmt: skip

    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        from scrapy_dq.commands.output.display import print_json
        from scrapy_dq.frontier.admin.control import Word, steer

        with looking.place_of(settings, options) as place:
            before = place.overview()
            self.check(before)
            steer(place.client, place.crawl, Word(self.name))
            wait_s = getattr(options, "wait", None)
            until = time.monotonic() + (wait_s or 0.0)
            found = place.overview()
            if not options.json:
                said = self.needless(before) or f"{self.done}. {self.told(found)}"
                print(f"Crawl {place.crawl!r}: {said}", flush=True)
            while wait_s is not None and not self.obeyed(found) and time.monotonic() < until:
                time.sleep(LOOK_S)
                found = place.overview()
        obeyed = wait_s is None or self.obeyed(found)
        if options.json:
            print_json({
                "crawl": place.crawl, "phase": found.phase, "hold": found.hold.value, "obeyed": obeyed,
                "workers": len(found.members), "in_flight": found.census.in_flight,
            })  # fmt: skip
        elif wait_s is not None and obeyed:
            print(f"{self.awaited[0].upper()}{self.awaited[1:]}.")
        if not obeyed:
            raise CommandError(
                f"said, but after {wait_s:g} s there are {found.census.in_flight:,} in flight and "
                f"{len(found.members):,} workers still"
            )
        return DONE

    def check(self, found: Overview) -> None:
        """Raise CommandError if it makes no sense to say this now."""

    def needless(self, found: Overview) -> str:
        """Return why it makes no difference that it is said now; empty: it does."""
        return ""

    def told(self, found: Overview) -> str:
        """Return whom it was told."""
        workers, in_flight = len(found.members), found.census.in_flight
        if not workers:
            return "No worker is registered."
        return f"{workers:,} worker{'s' * (workers > 1)}, {in_flight:,} in flight."

    def obeyed(self, found: Overview) -> bool:
        """Tell whether all workers that can do it have done it."""
        return not any(member.in_flight for member in found.members if not _is_gone(member))


class _Holding(Steering):
    def check(self, found: Overview) -> None:
        if found.phase == "finished":
            raise CommandError("the run is finished: there is nothing to hold up")


class Pause(_Holding):
    name = "pause"
    summary = "have all workers send nothing more, for now"
    description = (
        "All workers give back what they have in their buffers, finish what downloads, and wait. New workers "
        "wait, too. `resume` lets the crawl go on."
    )
    done = "paused"


class Drain(_Holding):
    name = "drain"
    summary = "have all workers finish what they hold, and take nothing more"
    description = (
        "All workers finish what they have leased, in their buffers too, take nothing more, and wait. "
        "`resume` lets the crawl go on; `stop` closes the workers."
    )
    done = "draining"


class Resume(Steering):
    name = "resume"
    summary = "let a paused or draining crawl go on"
    description = "Lets a crawl go on that was told to pause or to drain."
    done = "goes on"
    awaited = ""

    def needless(self, found: Overview) -> str:
        return "the run is finished: there is nothing to resume." if found.phase == "finished" else ""


class Stop(Steering):
    name = "stop"
    summary = "have all workers close gracefully"
    description = (
        "Closes all workers that are registered now, as SIGTERM would: each gives back its buffer at once, "
        "and what is not finished when DQ_SHUTDOWN_GRACE is over. The crawl stays: workers that start later "
        "go on."
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
    summary = "let a run end though a start() was broken off"
    description = (
        "A run is not finished while a start() was broken off (its worker was killed or stopped, or it "
        "raised) and none with the same arguments is complete. This says that the rest of it is not wanted."
    )
    done = "ends without what is missing"
    awaited = ""

    def needless(self, found: Overview) -> str:
        if found.phase == "finished":
            return "the run is finished: nothing is missing."
        return "" if found.census.incomplete else "no start() is broken off: nothing is missing."


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
